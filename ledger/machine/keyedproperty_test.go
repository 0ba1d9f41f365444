package machine_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/rapidtest"
	. "github.com/seqledger/seqledger/ledger/machine"
)

// keyedCommand makes a command on a key, or a write that belongs to one.
func (h *history) keyedCommand() any {
	if rapid.IntRange(0, 3).Draw(h.T, "a write") == 0 {
		return h.job()
	}
	if len(h.keyed) > 0 && rapid.IntRange(0, 4).Draw(h.T, "copy") == 0 {
		return rapid.SampledFrom(h.keyed[max(0, len(h.keyed)-20):]).Draw(h.T, "of")
	}
	c := h.newKeyed()
	h.keyed = append(h.keyed, c)
	return c
}

func (h *history) keyedID() KeyedID {
	return KeyedID{
		pick(h.T, "scope", propertyScopes...), pick(h.T, "namespace", "", "jobs"), pick(h.T, "principal", "p", "pq"),
		[32]byte{rapid.ByteRange(1, 2).Draw(h.T, "key")},
	}
}

func (h *history) newKeyed() *KeyedCommand {
	t := h.T
	id := h.keyedID()
	if len(h.keyed) > 0 && rapid.IntRange(0, 3).Draw(t, "known") > 0 {
		id = rapid.SampledFrom(h.keyed[max(0, len(h.keyed)-9):]).Draw(t, "id").ID
	}
	c := &KeyedCommand{ID: id, Actor: "client:test", MaxKeys: pick[uint64](t, "max keys", 1, 2, 50, 50)}
	c.Kind = keyed.Reserve
	c.AttemptID = keyed.AttemptID{rapid.ByteRange(1, 250).Draw(t, "attempt")}
	c.Policy = keyed.Policy(rapid.IntRange(0, 1).Draw(t, "policy"))
	c.Fingerprint = keyed.Fingerprint{Algorithm: 1, Digest: [32]byte{pick[byte](t, "request", 7, 7, 7, 8)}}
	c.ValidUntil = max(0, h.now+pick[int64](t, "valid", 100, 5, 5, 1, 0, -200)*second)
	c.Lease = pick[int64](t, "lease", 1, 5, 60) * second
	c.TTL = pick[int64](t, "ttl", 1, 10, 1_000) * second
	c.ForgetAfter = pick(t, "forget", 0, 0, c.TTL+pick[int64](t, "longer", 0, 5, 100)*second, int64(keyed.Never))
	r := h.model.Key(id)
	if k := h.model.Keys[id]; r == nil && k != nil { // it says nothing any more, and its owner may come late
		r = &k.Record
	}
	if r == nil || rapid.IntRange(0, 3).Draw(t, "own") == 0 {
		if r != nil && rapid.Bool().Draw(t, "attempt again") {
			c.AttemptID = r.AttemptID
		}
		return c
	}
	content := []byte(pick(t, "content", "", "short", longValue, string(bytes.Repeat([]byte("r"), 513))))
	own := KeyedCommand{ID: id, Actor: c.Actor}
	own.Kind = keyed.Kind(rapid.IntRange(2, 8).Draw(t, "kind"))
	switch own.Kind {
	case keyed.Resolve:
		own.State = pick(t, "state", keyed.Committed, keyed.Rejected)
	case keyed.Purge:
		return &own
	default:
		own.AttemptID, own.Token = r.AttemptID, r.Token-rapid.Uint64Range(0, 9).Draw(t, "token")/9
	}
	switch own.Kind {
	case keyed.Complete, keyed.Reject, keyed.Resolve:
		own.Response, own.TTL = content, pick[int64](t, "ttl", 0, 1, 10)*second
	case keyed.Heartbeat:
		own.Lease = pick[int64](t, "lease", 0, 5, 60) * second
	case keyed.Checkpoint:
		own.Data = content
	}
	return &own
}

// job makes a keyed write.
func (h *history) job() *KeyedWrite {
	if len(h.jobs) > 0 && rapid.Bool().Draw(h.T, "again") {
		return rapid.SampledFrom(h.jobs[max(0, len(h.jobs)-9):]).Draw(h.T, "which")
	}
	w := &KeyedWrite{
		ID: h.keyedID(), ClientID: pick(h.T, "client", "", "web"), Actor: "client:test",
		TTL: pick[int64](h.T, "ttl", 1, 10, 1_000) * second, MaxKeys: pick[uint64](h.T, "max keys", 1, 2, 50, 50),
	}
	w.Operations = h.operations(w.ID.Scope)
	h.jobs = append(h.jobs, w)
	return w
}

// siege reserves and releases a key more often than it remembers attempts.
func (h *history) siege() {
	id, attempt := h.keyedID(), byte(0)
	h.entry(70, func() any {
		c := &KeyedCommand{ID: id, Actor: "client:siege", MaxKeys: 50}
		if r := h.model.Key(id); r != nil && r.State == keyed.Pending {
			c.Kind, c.AttemptID, c.Token = keyed.Release, r.AttemptID, r.Token
			return c
		}
		attempt++
		c.Kind, c.AttemptID, c.Lease, c.TTL = keyed.Reserve, keyed.AttemptID{attempt, 1}, second, second
		c.ValidUntil = h.now + 100*second + int64(attempt%5)
		return c
	})
}

// compareKeys compares every record with the model's, and with what is kept beside it.
func (h *history) compareKeys() {
	v := h.m.View(h.mem)
	must.Equal(h, h.mem.Len(TableKeyed), len(h.model.Keys), "%d records")
	pending := 0
	for id, k := range h.model.Keys {
		if k.Record.State == keyed.Pending {
			pending++
		}
		want := h.model.Key(id)
		got, err := v.Keyed(&id, h.model.Time)
		if want == nil {
			if !errors.Is(err, ErrNotFound) {
				h.Fatalf("the record of %+v is %+v, %v, and says nothing", id, got, err)
			}
			continue
		}
		if err != nil {
			h.Fatalf("the record of %+v: %v, want %+v", id, err, want)
		}
		if whole, err := v.ReadAttachments(got); err != nil || !whole {
			h.Fatalf("attachments of %+v: %t, %v", id, whole, err)
		}
		if ledgermodel.DifferRecord(&got.Record, want) || !bytes.Equal(got.Response, want.Response) ||
			!bytes.Equal(got.Checkpoint, want.Checkpoint) {
			h.Fatalf("the record is\n%+v, want\n%+v", got.Record, *want)
		}
		must.Equal(h, must.Get(v.Keys(id.Scope, id.Principal))(h), h.model.KeysOf(id.Scope, id.Principal),
			"%q has %d keys", id.Principal)
	}
	if v.PendingKeys() != uint64(pending) {
		h.Fatalf("%d records are counted as pending, want %d", v.PendingKeys(), pending)
	}
}

// keyedStep applies one command on a key at a time that matters to keys. Where the state answers it, it must say what
// the log says then.
func (h *history) keyedStep() {
	if later := pick[int64](h.T, "seconds", 0, 0, 1, 5, 70, 700, 4_000_000) * second; later > 0 {
		for _, step := range []int64{later, 9 * second, 9 * second, 9 * second, 9 * second} {
			h.now += step
			h.entry(1, func() any { return ledgermodel.Tick{} }) // so that the state answers at the time of the log
			if rapid.Bool().Draw(h.T, "at once") {
				break // else what an outage added to the leases passes
			}
		}
	}
	if len(h.keyed) > 0 && rapid.IntRange(0, 3).Draw(h.T, "to a boundary") == 0 {
		h.toBoundary()
	}
	if rapid.IntRange(0, 49).Draw(h.T, "siege") == 0 {
		h.siege()
	}
	command := h.keyedCommand()
	if rapid.IntRange(0, 29).Draw(h.T, "an epoch") == 0 {
		command = h.epoch()
	}
	answer, answered := h.fromState(command, h.now)
	_, out := h.entry(1, func() any { return command })
	if answer.Index = out[0].Index; answered {
		must.Equal(h, ledgermodel.Differ(&answer, &out[0]), "", "the state %s")
	}
	h.compareKeys()
	later := h.now + pick(h.T, "asked later", 0, 1, second-1, second, 60*second, 1_000*second)
	if answer, answered := h.fromState(command, later); answered {
		want := h.model.Ask(command, later)
		must.Equal(h, ledgermodel.Differ(&answer, &want), "", "asked later, the state %s")
	}
}

// fromState asks the state for the answer to a command that comes at a ledger time.
func (h *history) fromState(command any, now int64) (answer Outcome, answered bool) {
	var err error
	v := h.m.View(h.mem)
	switch c := command.(type) {
	case *KeyedCommand:
		answer, answered, err = v.AnswerKeyed(c, now)
	case *KeyedWrite:
		hash, _ := HashOperations(nil, c.Operations)
		answer.Code = Replayed
		answer.Receipt, answered, err = v.AnswerKeyedWrite(c, hash, now)
	}
	must.Do(h, err)
	return answer, answered
}

// toBoundary goes to a moment at which a record becomes something else, or to the one before or behind it.
func (h *history) toBoundary() {
	c := rapid.SampledFrom(h.keyed[max(0, len(h.keyed)-5):]).Draw(h.T, "of")
	if k := h.model.Keys[c.ID]; k != nil {
		to := pick(h.T, "boundary", h.model.LeaseEnd(k), k.Record.Expires, k.Record.ValidUntil)
		if to += rapid.Int64Range(-1, 1).Draw(h.T, "nanos"); to > h.now && to < h.now+1_000*second {
			h.now = to
			h.entry(1, func() any { return ledgermodel.Tick{} })
		}
	}
}

// Commands on keys, and writes that belong to keys, give what the model says, whatever log entries they stand in,
// wherever the machine restarts; no response, count or index entry is left behind; and
// the state answers without the log what the log would.
func TestKeysEqualTheModel(t *testing.T) {
	t.Parallel()
	fired := map[string]int{}
	rapidtest.CheckUntil(t, func() string {
		rules := []string{
			"taken over", "own token again", "lease over, outcome unknown", "unknown outcome settled", "outage",
			"settled behind its lease", "completion after a takeover", "key put back", "key removed", "time set back",
			"too many attempts",
		}
		for _, kind := range []string{"reserve", "complete", "release", "heartbeat", "checkpoint"} {
			rules = append(rules, kind+": "+Keyed(keyed.LeaseLost).String())
		}
		for code := Keyed(keyed.OK); code <= MaxCode; code++ {
			rules = append(rules, "keyed: "+code.String())
		}
		for _, code := range []Code{Committed, Replayed, IdempotencyKeyReused, AlreadyCommitted, TooManyKeys} {
			rules = append(rules, "keyed write: "+code.String())
		}
		for _, rule := range rules {
			if fired[rule] == 0 {
				return fmt.Sprintf("%q has not happened", rule)
			}
		}
		return ""
	}, func(t *rapid.T) {
		h := newHistory(t)
		for range rapid.IntRange(5, 40).Draw(t, "entries") {
			h.keyedStep()
		}
		for rule, n := range h.model.Fired {
			fired[rule] += n
		}
		h.compareState()
		h.checkAudits()
		h.checkOtherGroupings()
		h.checkReplayAddsNothing()
	})
}
