package keyed

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/rapidtest"
)

// world states the invariants without the rules: the work behind a key, guarded by a token.
type world struct {
	running map[AttemptID]uint64 // owners that use their token
	highest uint64               // highest token handed out
	over    map[AttemptID]bool   // released, finished or taken over
	valid   map[AttemptID]int64  // an attempt never extends its own validity
}

// The commands are random, come from many attempts at random times, and include copies. The key has one owner at a
// time. Tokens grow. Without a takeover the key is completed once in the life of a record. A finished record never
// changes before it expires. An attempt that has ended never owns anything again. Every record has one encoding.
func TestPropertyOfOneKey(t *testing.T) {
	t.Parallel()
	met := map[Code]int{}
	rapidtest.CheckUntil(t, func() string {
		for code := OK; code <= LastCode; code++ {
			if met[code] == 0 {
				return fmt.Sprintf("no command has met code %d", code)
			}
		}
		return ""
	}, func(t *rapid.T) {
		w := world{running: map[AttemptID]uint64{}, over: map[AttemptID]bool{}, valid: map[AttemptID]int64{}}
		var r *Record
		var sent []*Command
		now, token := start, uint64(0)
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			now += rapid.SampledFrom([]int64{0, 0, 1, second, 20 * second, lease, 400 * second}).Draw(t, "later")
			if rapid.IntRange(0, 9).Draw(t, "expire") == 0 && r != nil && r.Due(Moment{}) <= now {
				next, kept := Expire(r, Moment{Now: now})
				if !kept && r.Live(now) {
					t.Fatalf("a live record was forgotten: %+v", r)
				}
				r = next
			}
			token += uint64(rapid.IntRange(1, 3).Draw(t, "index"))
			c := drawCommand(t, r, sent, now)
			if until, known := w.valid[c.AttemptID]; known && c.Kind == Reserve {
				copied := *c
				copied.ValidUntil = until
				c = &copied
			} else if c.Kind == Reserve {
				w.valid[c.AttemptID] = c.ValidUntil
			}
			sent = append(sent, c)
			live := r.Live(now)
			var before Record
			if r != nil {
				before = *r
			}
			next, out := Transition(r, c, Moment{Now: now, Token: token})
			met[out.Code]++
			switch {
			case out.Code == Acquired:
				if next.State != Pending || next.AttemptID != c.AttemptID {
					t.Fatalf("acquired: %+v", next)
				}
				if w.over[c.AttemptID] {
					t.Fatal("an attempt that is over owns the key again")
				}
				if again := w.running[c.AttemptID]; again != 0 && again != next.Token {
					t.Fatalf("the attempt had token %d and has %d", again, next.Token)
				} else if again == 0 && next.Token <= w.highest {
					t.Fatalf("token %d after %d", next.Token, w.highest)
				}
				if live && before.AttemptID != c.AttemptID {
					if before.Policy != TakeOver || now < before.LeaseEnd {
						t.Fatalf("taken over: %+v", before)
					}
					w.over[before.AttemptID] = true
				}
				w.running[c.AttemptID], w.highest = next.Token, next.Token
			case out.Code == OK && (c.Kind == Complete || c.Kind == Reject):
				must.Equal(t, w.running[c.AttemptID], c.Token,
					"a token that was never issued has completed the key: %v")
				w.over[c.AttemptID] = true
			case out.Code == OK && c.Kind == Release:
				w.over[c.AttemptID] = true
			}
			if live && before.State.finished() && out.Changed && c.Kind != Purge &&
				(next.State != Expired || now < before.Expires) {
				t.Fatalf("a finished record has changed: %+v, %+v", before, next)
			}
			if forget := before.Completed + min(before.ForgetAfter, 1<<61); out.Code == Acquired && r != nil &&
				before.State.finished() && now < forget {
				t.Fatalf("a finished key was forgotten too early, %+v", before)
			}
			if live && before.State == Pending && !next.Live(now) && c.Kind != Release {
				t.Fatalf("a pending record has disappeared: %+v", before)
			}
			r = next
			checkEncoding(t, r)
		}
	})
}

func drawCommand(t *rapid.T, r *Record, sent []*Command, now int64) *Command {
	if len(sent) > 0 && rapid.IntRange(0, 3).Draw(t, "copy") == 0 {
		return rapid.SampledFrom(sent).Draw(t, "of")
	}
	c := &Command{
		Kind:        Kind(rapid.IntRange(1, 8).Draw(t, "kind")),
		AttemptID:   AttemptID{rapid.ByteRange(1, 9).Draw(t, "attempt")},
		Fingerprint: Fingerprint{1, [32]byte{rapid.SampledFrom([]byte{7, 7, 7, 8}).Draw(t, "request")}},
		ValidUntil:  now + rapid.SampledFrom([]int64{-1, 0, second, 300 * second}).Draw(t, "valid"),
		Lease:       rapid.SampledFrom([]int64{second, lease, lease, 0}).Draw(t, "lease"),
		TTL:         rapid.SampledFrom([]int64{second, 500 * second}).Draw(t, "ttl"),
		ForgetAfter: rapid.SampledFrom([]int64{0, 0, 800 * second, int64(Never)}).Draw(t, "forget"),
		Policy:      Policy(rapid.IntRange(0, 1).Draw(t, "policy")),
		State:       rapid.SampledFrom([]State{Committed, Rejected}).Draw(t, "state"),
		Response:    rapid.SampledFrom([][]byte{nil, []byte("a"), []byte("b")}).Draw(t, "response"),
		Data:        []byte("half"),
	}
	if r != nil && rapid.IntRange(0, 3).Draw(t, "owner") > 0 {
		c.AttemptID, c.Token = r.AttemptID, r.Token
	} else if r != nil {
		c.Token = r.Token + uint64(rapid.IntRange(0, 1).Draw(t, "token"))
	}
	if c.Kind == Reserve && rapid.Bool().Draw(t, "fresh") {
		c.AttemptID = AttemptID{rapid.ByteRange(10, 250).Draw(t, "attempt")}
	}
	return c
}

func checkEncoding(t *rapid.T, r *Record) {
	if r == nil {
		return
	}
	encoded := r.Append(nil)
	back, err := Decode(encoded)
	if err != nil || !bytes.Equal(back.Append(nil), encoded) {
		t.Fatalf("%+v decodes as %+v, %v", r, back, err)
	}
}

// FuzzDecode checks that a record that decodes encodes to the same bytes, and that no command on it panics.
func FuzzDecode(f *testing.F) {
	r := &Record{State: Pending, Token: 300, AttemptID: AttemptID{1}, Attempts: 2, Checkpoint: []byte("c"),
		Past: []PastAttempt{{AttemptID{9}, 5}}}
	f.Add(r.Append(nil), byte(1), int64(0))
	r.State, r.Response, r.Expires, r.ForgetAfter = Committed, []byte("done"), start, int64(Never)
	f.Add(r.Append(nil), byte(8), start)
	f.Add([]byte{recordVersion}, byte(0), int64(1))
	f.Fuzz(func(t *testing.T, b []byte, kind byte, now int64) {
		r, err := Decode(b)
		if err != nil {
			return
		}
		if again := r.Append(nil); !bytes.Equal(again, b) {
			t.Errorf("%x decodes, and encodes to %x", b, again)
		}
		now = max(0, min(now, int64(1<<62)))
		c := &Command{Kind: Kind(kind), AttemptID: r.AttemptID, Token: r.Token,
			ValidUntil: now + int64(time.Second), Lease: lease}
		Transition(r, c, Moment{Now: now, Token: r.Token + 1})
		Expire(r, Moment{Now: now})
	})
}
