package journal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestJournalSharesFsyncs holds the first fsync up until many callers wait, and
// expects one more to serve them all.
func TestJournalSharesFsyncs(t *testing.T) {
	t.Parallel()
	m := newMemory()
	f := m.open(t, temporary(t), Options{})
	begin(t, f)
	must.Do(t, f.Append(one, write(0, "first")))
	entered, release := make(chan struct{}), make(chan struct{})
	m.mu.Lock()
	before := m.steps["sync"]
	var held sync.Once
	m.fail = func(step, _ string) (int, error) {
		if step == "sync" {
			held.Do(func() {
				close(entered)
				m.mu.Unlock()
				<-release
				m.mu.Lock()
			})
		}
		return 0, nil
	}
	m.mu.Unlock()
	var group sync.WaitGroup
	sync := func() {
		check.Is(t, f.Sync(), nil)
	}
	group.Go(sync) // ends with its fsync
	<-entered
	for id := uint64(1); id <= 50; id++ {
		must.Do(t, f.Append(one, write(id, fmt.Sprint(id))))
		group.Go(sync) // ends with the fsync that all share
	}
	close(release)
	group.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.steps["sync"] - before; n > 3 {
		t.Errorf("51 callers took %d fsyncs", n)
	}
}

// TestJournalClaims: one Writer at a time has a stream, and nothing is appended
// without a claim.
func TestJournalClaims(t *testing.T) {
	t.Parallel()
	f := newMemory().open(t, temporary(t), Options{})
	begin(t, f)
	check.Is(t, check.Err(f.Claim(one)), ErrClaimed)
	check.Is(t, f.Forget(one), ErrClaimed, "a stream in use must not be forgotten")
	f.Release(one)
	if err := f.Append(one, write(0, "")); err == nil {
		t.Error("an unclaimed stream took a record")
	}
	must.Do(t, f.Forget(Name{Organization: "other"}), "there is nothing to forget, but")
	begin(t, f)
	must.Do(t, f.Close())
	check.Is(t, f.Append(one, write(0, "")), ErrClosed)
	must.Do(t, f.Close(), "closing twice")
}

// TestJournalForget: unsettled writes and the session go, outcomes stay.
func TestJournalForget(t *testing.T) {
	t.Parallel()
	m, path := newMemory(), temporary(t)
	f := m.open(t, path, Options{})
	begin(t, f)
	add(t, f, write(0, "told"), write(1, "open"), Record{Kind: KindSettled, ID: 0, Receipt: []byte("receipt")})
	f.Release(one)
	must.Do(t, f.Forget(one))
	_ = f.Close()
	got := only(m.powerFailure(path, 0).open(t, path, Options{}))
	if fmt.Sprint(tags(got)) != "[told+]" || got.Head.Session != 0 || string(got.Entries[0].Receipt) != "receipt" {
		t.Errorf("got %+v", got)
	}
}

// TestJournalBounds: a full journal says so, room comes back with a signal, and
// the file never grows beyond its bound however much passes through it.
func TestJournalBounds(t *testing.T) {
	t.Parallel()
	path := temporary(t)
	f := must.Get(Open(path, Options{MaxBytes: minMaxBytes}))(t)
	defer f.Close()
	begin(t, f)
	check.Is(t, f.Append(one, Record{Kind: KindWrite, Sequence: 1, Request: make([]byte, minMaxBytes/4)}), ErrTooLarge)
	id, first := uint64(0), uint64(0)
	largest := int64(0)
	for range 30 {
		freed := f.Freed()
		for {
			r := write(id, fmt.Sprint("tag-", id))
			r.Request = make([]byte, 200)
			if err := f.Append(one, r); errors.Is(err, ErrFull) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			id++
		}
		select {
		case <-freed:
			t.Fatal("room was announced and nothing had gone")
		default:
		}
		for ; first < id; first++ {
			add(t, f, Record{Kind: KindSettled, ID: first, Receipt: make([]byte, 20)},
				Record{Kind: KindAcknowledged, ID: first})
		}
		select {
		case <-freed:
		default:
			t.Fatal("room came back without a signal")
		}
		info := must.Get(os.Stat(path))(t)
		largest = max(largest, info.Size())
	}
	if largest > minMaxBytes {
		t.Errorf("the file grew to %d bytes, its bound is %d", largest, minMaxBytes)
	}
	check.Equal(t, f.live, 0, "nothing is live, but %d bytes count as live")
}

// TestJournalContradictions: records that do not follow from what came before
// are refused and change nothing.
func TestJournalContradictions(t *testing.T) {
	t.Parallel()
	f := newMemory().open(t, temporary(t), Options{})
	begin(t, f)
	add(t, f, write(0, "a"), write(1, "b"), write(2, "c"), Record{Kind: KindSettled, ID: 0})
	before := only(f)
	for name, r := range map[string]Record{
		"a tag twice":                   write(3, "b"),
		"a settled tag twice":           write(3, "a"),
		"an id out of turn":             {Kind: KindWrite, ID: 9, Sequence: 4},
		"a sequence out of turn":        {Kind: KindWrite, ID: 3, Sequence: 5},
		"settled out of turn":           {Kind: KindSettled, ID: 2},
		"settled twice":                 {Kind: KindSettled, ID: 0},
		"acknowledged while open":       {Kind: KindAcknowledged, ID: 1},
		"acknowledged and never there":  {Kind: KindAcknowledged, ID: 9},
		"dropped after it was settled":  {Kind: KindDropped, ID: 0},
		"renumbered behind open writes": {Kind: KindHead, Head: Head{Session: 9, NextID: 3, NextSequence: 9}},
		"ids that go back":              {Kind: KindHead, Head: Head{Session: 9, NextID: 1, NextSequence: 4}},
		"an unknown kind":               {Kind: 99},
		"too large a reserve":           {Kind: KindWrite, ID: 3, Sequence: 4, Reserve: maxReserve + 1},
	} {
		if err := f.Append(one, r); err == nil {
			t.Errorf("%s was taken", name)
		}
		if got := only(f); !reflect.DeepEqual(got, before) {
			t.Errorf("%s changed the state to %+v", name, got)
		}
	}
}

// TestJournalModel makes random changes to several streams, with power failures
// and rewrites anywhere, and compares with a list that is kept beside.
func TestJournalModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	m, path := newMemory(), temporary(t)
	f := m.open(t, path, Options{MaxBytes: minMaxBytes})
	names := []Name{{"a", "", "1"}, {"a", "v", "1"}, {"b", "", "2"}}
	durable := make(map[Name]State)
	for _, name := range names {
		must.Get(f.Claim(name))(t)
	}
	for range 3000 {
		name := names[random.IntN(len(names))]
		if r, ok := randomRecord(random, f.streams[name].state()); ok {
			if err := f.Append(name, r); err != nil && !errors.Is(err, ErrFull) {
				t.Fatalf("%+v: %v", r, err)
			}
		}
		switch random.IntN(12) {
		case 0, 1:
			must.Do(t, f.Sync())
			for _, s := range f.Streams() {
				durable[s.Name] = s
			}
		case 2:
			// Nothing that was appended since the last Sync is there.
			_ = f.lock.Close()
			m = m.powerFailure(path, 0)
			f = m.open(t, path, Options{MaxBytes: minMaxBytes})
			for _, name := range names {
				got := must.Get(f.Claim(name))(t)
				if want := durable[name]; !equal(got, want) {
					t.Fatalf("%s: want %+v after the power failure, got %+v", name, want, got)
				}
			}
		}
	}
}

// equal compares what is kept; an empty list is as good as none.
func equal(a, b State) bool {
	return reflect.DeepEqual(a.Head, b.Head) && slices.EqualFunc(a.Entries, b.Entries, func(x, y Entry) bool {
		return fmt.Sprint(x) == fmt.Sprint(y)
	})
}

// randomRecord is a change that is possible in a state.
func randomRecord(random *rand.Rand, s State) (Record, bool) {
	if s.Head.Session == 0 {
		return Record{Kind: KindHead,
			Head: Head{Ledger: 1, Session: 1 + random.Uint64N(1000), NextID: s.Head.NextID,
				NextSequence: 1 + random.Uint64N(5)}}, true
	}
	open := s.Unsettled()
	settled := s.Entries[:len(s.Entries)-len(open)]
	switch kind := random.IntN(10); {
	case kind < 5:
		r := Record{Kind: KindWrite, ID: s.Head.NextID, Sequence: s.Head.NextSequence, Key: "k",
			Request: make([]byte, 1+random.IntN(100))}
		if random.IntN(2) == 0 {
			r.Tag, r.Reserve = fmt.Sprint("t", r.ID), 30
		}
		return r, true
	case kind < 8 && len(open) > 0:
		return Record{Kind: KindSettled, ID: open[0].ID, Receipt: make([]byte, random.IntN(30))}, true
	case kind == 8 && len(settled) > 0:
		return Record{Kind: KindAcknowledged, ID: settled[random.IntN(len(settled))].ID}, true
	case kind == 9 && len(open) > 0 && random.IntN(4) == 0:
		return Record{Kind: KindDropped, ID: open[random.IntN(len(open))].ID}, true
	case kind == 9:
		head := s.Head
		head.Session++
		if head.Attempt = nil; random.IntN(2) == 0 {
			head.Attempt = make([]byte, attemptBytes)
		}
		if len(open) == 0 && random.IntN(3) == 0 {
			head.NextSequence = 1 // evicted, begun anew
		}
		return Record{Kind: KindHead, Head: head}, true
	}
	return Record{}, false
}

// TestJournalInspect looks at a file that is open and at one that is not there.
func TestJournalInspect(t *testing.T) {
	t.Parallel()
	path := temporary(t)
	f := must.Get(Open(path, Options{}))(t)
	defer f.Close()
	begin(t, f)
	add(t, f, write(0, "a"))
	report, err := Inspect(path)
	if err != nil || report.Damage != nil || report.Good != report.Bytes || len(report.Streams) != 1 ||
		!equal(report.Streams[0], only(f)) {
		t.Errorf("got %+v, %v", report, err)
	}
	if _, err := Inspect(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("want the file system's error, got %v", err)
	}
}
