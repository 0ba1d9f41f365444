package ledger

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

func numbered(n int) []byte { return binary.BigEndian.AppendUint64([]byte("key "), uint64(n)) }

// A key that is in the set is never said to be missing, whatever was added and removed before, and one that is not
// is nearly always.
func TestKeySet(t *testing.T) {
	t.Parallel()
	var s keySet
	s.begin()
	if !s.lacks(numbered(1)) || s.counters.Load() != nil {
		t.Error("an empty set has a key, or memory")
	}
	s.remove(numbered(1)) // of an empty set, nothing
	draw := rand.New(rand.NewPCG(1, 2))
	model := map[int]bool{}
	for range 15_000 {
		n := draw.IntN(3_000)
		if model[n] {
			s.remove(numbered(n))
		} else {
			s.add(numbered(n))
		}
		model[n] = !model[n]
		if model[n] && s.lacks(numbered(n)) {
			t.Fatalf("key %d was added and is missing", n)
		}
	}
	present, unsure := 0, 0
	for n := range 6_000 {
		switch {
		case model[n] && s.lacks(numbered(n)):
			t.Fatalf("key %d is missing", n)
		case model[n]:
			present++
			s.remove(numbered(n))
		case !s.lacks(numbered(n)):
			unsure++
		}
	}
	if present == 0 || unsure > 30 {
		t.Errorf("%d keys were there, and %d others may be, of 6,000", present, unsure)
	}
	for n := range 6_000 {
		if !s.lacks(numbered(n)) {
			t.Fatalf("every key was removed, and key %d may be there", n)
		}
	}
}

// Counters that are full stay so: they forget how many keys they count, and must not come to say that one is missing
// which is there.
func TestKeySetIsFull(t *testing.T) {
	t.Parallel()
	var s keySet
	s.begin()
	key := numbered(7)
	for range 3 * keySetMost {
		s.add(key)
	}
	for range 3*keySetMost - 1 {
		s.remove(key)
	}
	if s.lacks(key) {
		t.Error("a key that was added more often than removed is missing")
	}
	// The counters beside them have not been touched.
	var sum uint64
	for i := range s.counters.Load() {
		for word := s.counters.Load()[i].Load(); word != 0; word >>= 4 {
			sum += word & keySetMost
		}
	}
	check.Equal(t, sum, 2*keySetMost, "the counters add up to %d, want two that are full")
}

// Who asks while the set changes gets an answer that is true of a key which stays.
func TestKeySetIsAskedMeanwhile(t *testing.T) {
	t.Parallel()
	var s keySet
	s.begin()
	s.add(numbered(-1))
	var asking sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		asking.Go(func() { // ends with stop; joined below
			for {
				select {
				case <-stop:
					return
				default:
				}
				if s.lacks(numbered(-1)) {
					t.Error("a key that stays is missing")
					return
				}
			}
		})
	}
	for n := range 5_000 {
		s.add(numbered(n))
		s.remove(numbered(n / 2))
		s.add(numbered(n / 2))
	}
	close(stop)
	asking.Wait()
}

// What the ledger knows of its records agrees with the state, in a ledger that was opened empty and in ones that were
// opened with records: no record is said to be missing, and what is gone is known to be, so that a Reserve of a fresh
// key needs no look at the state.
func TestMissingRecordsAreKnown(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler),
		Config: machine.Config{EvictionInterval: 16}}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	for range 2 {
		l := must.Get(Open(t.Context(), o))(t)
		for range 60 {
			changeSomeRecord(t, l, draw)
		}
		records := &l.keyedCounters.records
		must.Await(t, func() bool { return records.counts() != nil })
		for range 60 {
			changeSomeRecord(t, l, draw)
		}
		must.Do(t, l.View(t.Context(), func(v machine.View) error { // beside which nothing changes
			there := map[string]bool{}
			_, err := v.VisitKeyedStates(nil, 1_000, func(key []byte, _ keyed.State) { there[string(key)] = true })
			for i := range 120 {
				c := keyedCommand(l, fmt.Sprint("key ", i), 1)
				if key := c.ID.TableKey(); records.lacks(key) == there[string(key)] {
					t.Errorf("key %d is there: %v; known to be missing: %v", i, there[string(key)], records.lacks(key))
				}
			}
			return err
		}))
		must.Do(t, l.Close())
	}
}

// Nothing is said to be missing before all records that the start has found are known.
func TestNothingIsMissingBeforeTheCount(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	for i := range 10 {
		mustKeyed(t, l, keyedCommand(l, fmt.Sprint(i), 1), machine.Keyed(keyed.Acquired))
	}
	records := &l.keyedCounters.records
	must.Await(t, func() bool { return records.counts() != nil })
	records.mu.Lock() // as after a start
	records.reset()
	records.mu.Unlock()
	for more := true; more; {
		absent := keyedCommand(l, "absent", 1).ID.TableKey()
		if records.lacks(absent) {
			t.Error("not all records are known, and one is known to be missing")
		}
		must.Do(t, l.View(t.Context(), func(v machine.View) (err error) {
			more, err = records.step(v, 3)
			return err
		}, machine.TableKeyed))
		if !more && !records.lacks(absent) {
			t.Error("all records are known, and one may be there that is not")
		}
	}
	// What is decided without a look is what the look would have said.
	mustKeyed(t, l, keyedCommand(l, "3", 2), machine.Keyed(keyed.InFlight))
	mustKeyed(t, l, keyedCommand(l, "absent", 2), machine.Keyed(keyed.Acquired))
}

// A fresh key is reserved, and a fresh keyed write committed, while the state is being read or changed by
// somebody: neither needs a look at the state.
func TestFreshKeysNeedNoLook(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	must.Await(t, func() bool { return l.keyedCounters.records.counts() != nil })
	for range cap(l.source.Views) { // no View can run
		l.source.Views <- struct{}{}
	}
	c := keyedCommand(l, "fresh", 1)
	token := mustKeyed(t, l, c, machine.Keyed(keyed.Acquired)).Keyed.Record.Token
	mustKeyed(t, l, ownedCommand(c, keyed.Complete, token, nil), machine.Keyed(keyed.OK))
	check.Equal(t, must.Get(l.WriteKeyed(t.Context(), jobWrite(), nil))(t).Code, machine.Committed)
	for range cap(l.source.Views) {
		<-l.source.Views
	}
	commands := l.Stats().Commands
	mustKeyed(t, l, keyedCommand(l, "fresh", 2), machine.Keyed(keyed.Replay))
	check.Equal(t, must.Get(l.WriteKeyed(t.Context(), jobWrite(), nil))(t).Code, machine.Replayed)
	check.Equal(t, l.Stats().Commands-commands, 0, "what is known was decided by the log, %d times")
}
