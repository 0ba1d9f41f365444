package ledger

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/stats"
)

// What became of keys and of calls is counted, each under its own name.
func TestKeyedCounters(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	owner := keyedCommand(l, "done", 1)
	token := mustKeyed(t, l, owner, machine.Keyed(keyed.Acquired)).Keyed.Record.Token
	mustKeyed(t, l, keyedCommand(l, "done", 2), machine.Keyed(keyed.InFlight))
	mustKeyed(t, l, ownedCommand(owner, keyed.Complete, token, []byte("done")), machine.Keyed(keyed.OK))
	mustKeyed(t, l, keyedCommand(l, "done", 3), machine.Keyed(keyed.Replay)) // from the state, not from the log
	for policy, want := range map[keyed.Policy]machine.Code{keyed.BecomeIndeterminate: machine.Keyed(keyed.Unknown),
		keyed.TakeOver: machine.Keyed(keyed.Acquired)} {
		key := fmt.Sprint("policy ", policy)
		first := keyedCommand(l, key, 1)
		first.Lease, first.Policy = int64(20*time.Millisecond), policy
		mustKeyed(t, l, first, machine.Keyed(keyed.Acquired))
		must.Equal(t, must.Get(l.Keyed(t.Context(), keyedCommand(l, key, 2), time.Minute, nil))(t).Code, want)
	}
	w := jobWrite()
	for range 2 {
		must.Get(l.WriteKeyed(t.Context(), w, nil))(t)
	}
	s := l.Stats().Keyed
	if s.Takeovers != 1 || s.Indeterminate != 1 || s.Expired != 0 {
		t.Errorf("%+v", s)
	}
	want := map[stats.KeyedCall]uint64{
		{Kind: keyed.Reserve, Code: machine.Keyed(keyed.Acquired)}: 4,
		{Kind: keyed.Reserve, Code: machine.Keyed(keyed.InFlight)}: 1,
		{Kind: keyed.Reserve, Code: machine.Keyed(keyed.Replay)}:   1,
		{Kind: keyed.Reserve, Code: machine.Keyed(keyed.Unknown)}:  1,
		{Kind: keyed.Complete, Code: machine.Keyed(keyed.OK)}:      1,
		{Code: machine.Committed}:                                  1, {Code: machine.Replayed}: 1,
	}
	if !maps.Equal(s.Calls, want) {
		t.Errorf("calls %v, want %v", s.Calls, want)
	}
}

// A record that a pass removes counts as expired.
func TestExpiredKeysAreCounted(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{Config: machine.Config{EvictionInterval: 1}})
	w := jobWrite()
	w.TTL = 1
	for i := range 2 { // the second one's pass removes the first
		w.ID.Key[0] = byte(i)
		must.Get(l.WriteKeyed(t.Context(), w, nil))(t)
	}
	if s := l.Stats().Keyed; s.Expired == 0 {
		t.Errorf("%+v", s)
	}
}

// The age of the oldest reservation is known while it is pending, also after a start, whether the
// state file or the log has it.
func TestOldestReservation(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	l := openTest(t, o)
	var owners [3]*machine.KeyedCommand
	var records [3]*machine.KeyedRecord
	for i := range owners {
		owners[i] = keyedCommand(l, fmt.Sprint(i), 1)
		records[i] = mustKeyed(t, l, owners[i], machine.Keyed(keyed.Acquired)).Keyed.Record
		if i == 1 { // the first two are in the state file, the third is in the log
			must.Do(t, l.flush())
		}
	}
	for i := range owners {
		check.Equal(t, l.Stats().Keyed.Oldest.UnixNano(), records[i].Created, "the oldest is of %d")
		must.Do(t, l.Close())
		l = openTest(t, o)
		check.Equal(t, l.Stats().Keyed.Oldest.UnixNano(), records[i].Created, "after a start the oldest is of %d")
		mustKeyed(t, l, ownedCommand(owners[i], keyed.Heartbeat, records[i].Token, nil), machine.Keyed(keyed.OK))
		mustKeyed(t, l, ownedCommand(owners[i], keyed.Complete, records[i].Token, nil), machine.Keyed(keyed.OK))
	}
	if got := l.Stats().Keyed.Oldest; !got.IsZero() {
		t.Errorf("nothing is reserved, and the oldest is of %v", got)
	}
}

// The reservations that are known agree with a model, and their memory stays in proportion to it.
func TestKnownReservations(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var r reservations
	r.begin()
	model := map[int]int64{}
	for step := range 20_000 {
		n := random.IntN(50)
		key := fmt.Append(nil, n)
		if random.IntN(2) == 0 {
			r.remove(key)
			delete(model, n)
		} else {
			if model[n] == 0 {
				model[n] = int64(1 + step/3 - random.IntN(2)*random.IntN(step/3+1)) // a late one now and then
			}
			r.add(key, model[n])
		}
		oldest := int64(0)
		for _, created := range model {
			if oldest == 0 || created < oldest {
				oldest = created
			}
		}
		got := int64(0)
		if at := r.oldest(); !at.IsZero() {
			got = at.UnixNano()
		}
		if got != oldest || len(r.known) != len(model) || len(r.order) > 2*len(model)+65 {
			t.Fatalf("step %d: the oldest is %d, want %d; %d known and %d in order, want %d", step, got, oldest,
				len(r.known), len(r.order), len(model))
		}
	}
}

// The records are counted by state while they change: what the counts say is what is there, in a ledger
// that was opened empty, and in one that was opened with records, from which on changes come between the
// steps of the count.
func TestRecordsAreCounted(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler),
		Config: machine.Config{EvictionInterval: 16}}
	draw := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	for range 3 {
		l := must.Get(Open(t.Context(), o))(t)
		for range 500 {
			changeSomeRecord(t, l, draw)
		}
		must.Await(t, func() bool { return l.Stats().Keyed.Records != nil })
		for range 100 {
			changeSomeRecord(t, l, draw)
		}
		// Again and again, because ledger time goes on by itself.
		must.Await(t, func() bool { return maps.Equal(l.Stats().Keyed.Records, countRecords(t, l)) })
		must.Do(t, l.Close())
	}
}

// Changes before and behind the key up to which records are counted are each counted once, wherever the
// steps of the count fall.
func TestCountInSteps(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{Config: machine.Config{EvictionInterval: 16}})
	draw := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	for range 200 {
		changeSomeRecord(t, l, draw)
	}
	must.Await(t, func() bool { return l.Stats().Keyed.Records != nil })
	records := &l.keyedCounters.records
	records.mu.Lock() // as after a start
	records.reset()
	records.mu.Unlock()
	for more := true; more; {
		must.Do(t, l.View(t.Context(), func(v machine.View) (err error) {
			more, err = records.step(v, 1+draw.IntN(9))
			return err
		}, machine.TableKeyed))
		for range 8 {
			changeSomeRecord(t, l, draw)
		}
	}
	var counted, there map[keyed.State]uint64
	defer func() {
		if t.Failed() {
			t.Log("counted", counted, "there", there)
		}
	}()
	must.Await(t, func() bool {
		counted, there = l.Stats().Keyed.Records, countRecords(t, l)
		return maps.Equal(counted, there)
	})
}

// changeSomeRecord sends a random command about one of some keys. Most records expire soon.
func changeSomeRecord(t *testing.T, l *Ledger, draw *rand.Rand) {
	t.Helper()
	key := fmt.Sprint("key ", draw.IntN(60))
	c := keyedCommand(l, key, byte(1+draw.IntN(250)))
	c.Lease, c.TTL = 1+draw.Int64N(int64(20*time.Millisecond)), 1+draw.Int64N(int64(10*time.Millisecond))
	c.Policy, c.ValidUntil = keyed.Policy(draw.IntN(2)), l.clock.now()+int64(time.Millisecond)
	if draw.IntN(8) == 0 {
		w := jobWrite()
		w.ID, w.TTL = c.ID, c.TTL
		must.Get(l.WriteKeyed(t.Context(), w, nil))(t)
		return
	}
	out := must.Get(l.Keyed(t.Context(), c, 0, nil))(t)
	if out.Code != machine.Keyed(keyed.Acquired) || draw.IntN(4) == 0 {
		return
	}
	kinds := []keyed.Kind{keyed.Complete, keyed.Reject, keyed.Release, keyed.Heartbeat, keyed.Checkpoint}
	owned := ownedCommand(c, kinds[draw.IntN(len(kinds))], out.Keyed.Record.Token, []byte("x"))
	owned.Lease = draw.Int64N(2) * int64(time.Millisecond)
	must.Get(l.Keyed(t.Context(), owned, 0, nil))(t)
}

// countRecords counts the records that are there, by their stored state.
func countRecords(t *testing.T, l *Ledger) map[keyed.State]uint64 {
	t.Helper()
	counts := map[keyed.State]uint64{}
	for s := keyed.Pending; s <= keyed.Expired; s++ {
		counts[s] = 0
	}
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		_, err := v.VisitKeyedStates(nil, 1_000, func(_ []byte, s keyed.State) {
			if s != keyed.Released {
				counts[s]++
			}
		})
		return err
	}, machine.TableKeyed))
	return counts
}
