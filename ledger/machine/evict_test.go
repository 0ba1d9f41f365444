package machine

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// A stream is removed when it is idle for strictly longer than client_ttl.
func TestTTLExactlyAndOneTickOver(t *testing.T) {
	t.Parallel()
	config := testConfig()
	f := newFixture(t, config)
	f.commit(appendWrite("c", 1, 1, "x"))
	start := f.now
	f.now = start + config.ClientTTL
	f.round()
	if _, found := f.stream("c"); !found {
		t.Error("idle for exactly client_ttl, the stream was evicted")
	}
	f.now++
	f.commit(appendWrite("other", 1, 1, "x")) // no round: what is over waits, and answers as live
	f.refuse(appendWrite("c", 1, 1, "x"), Replayed)
	f.round()
	if _, found := f.stream("c"); found {
		t.Error("idle for one nanosecond longer, the stream is still there")
	}
	if _, found := f.stream("other"); !found {
		t.Error("a live stream was evicted")
	}
}

// What an evicted client meets: its old session never runs, a request without
// a session meets an empty stream.
func TestInvariant6RequestsAfterEviction(t *testing.T) {
	t.Parallel()
	config := testConfig()
	f := newFixture(t, config)
	old := f.open("c", 1, 0, Committed)
	f.commit(inSession(appendWrite("c", 1, 1, "x"), old.Session))
	first := f.commit(appendWrite("plain", 1, 1, "x"))
	f.commit(appendWrite("plain", 2, 2, "y"))
	f.now += config.ClientTTL + 1
	f.round()

	f.refuse(inSession(appendWrite("c", 1, 1, "x"), old.Session), SessionExpired)
	f.refuse(inSession(appendWrite("c", 2, 2, "y"), old.Session), SessionExpired)
	f.open("c", 9, old.Session, SessionExpired)
	if out := f.refuse(appendWrite("plain", 2, 2, "y"), SequenceGap); out.Last != 0 {
		t.Errorf("the gap names last %d, want 0", out.Last)
	}
	// The documented limit of the TTL: it runs as a new write, in a new life.
	if out := f.commit(appendWrite("plain", 1, 1, "x")); out.CreatedIndex == first.CreatedIndex {
		t.Error("a new life of the stream has the creation index of the old one")
	}
	// Invariant 6: in use again, the old session is fenced; it never runs.
	f.open("c", 2, 0, Committed)
	f.refuse(inSession(appendWrite("c", 1, 1, "x"), old.Session), SessionFenced)
	// In use without a session, the old one lies above the stream's, which is 0.
	f.now += config.ClientTTL + 1
	f.round()
	f.commit(appendWrite("c", 1, 1, "x"))
	f.refuse(inSession(appendWrite("c", 2, 1, "x"), old.Session), SessionExpired)
	if err := readBack(f.mem, nil); err != nil {
		t.Error(err)
	}
}

// The index entry lags behind last_seen; a popped entry that is not due goes
// back under its true time and counts toward the limit.
func TestLaggingIndexGoesBack(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionLimit = 2
	f := newFixture(t, config)
	start := f.now
	for i, client := range []string{"busy1", "idle", "busy2"} {
		f.now = start + int64(i)
		f.commit(appendWrite(client, 1, 0, "x"))
	}
	busy := start + 50*second
	f.now = busy
	f.commit(appendWrite("busy1", 2, 0, "x"))
	f.commit(appendWrite("busy2", 2, 0, "x"))
	indexed := func() (times []int64) {
		for _, key := range f.mem.tables[TableExpiry].keys {
			_, at, _, err := splitExpiryKey([]byte(key))
			if err != nil {
				t.Fatal(err)
			}
			times = append(times, at-start)
		}
		return times
	}
	if got := indexed(); !slices.Equal(got, []int64{0, 1, 2}) {
		t.Errorf("the writes have moved the index: %v", got)
	}
	f.now = start + config.ClientTTL + 10 // all three are due by the index
	f.round()                             // takes busy1 and idle: the limit is 2
	if _, found := f.stream("idle"); found {
		t.Error("the idle stream is still there")
	}
	if got := indexed(); !slices.Equal(got, []int64{2, busy - start}) {
		t.Errorf("the index has %v, want busy2 where it was and busy1 at its true time", got)
	}
	f.round()
	if got := indexed(); !slices.Equal(got, []int64{busy - start, busy - start}) {
		t.Errorf("the index has %v, want both busy streams at their true time", got)
	}
	f.now = busy + config.ClientTTL
	f.round()
	if n := f.view().Streams(); n != 2 {
		t.Errorf("%d streams, want 2: neither is over its time", n)
	}
	f.now++
	f.round()
	if n := f.view().Streams(); n != 0 {
		t.Errorf("%d streams, want none", n)
	}
}

// The limit takes entries in the order of (indexed time, key): which stream
// goes first is the same on every node.
func TestEvictionOrderAndLimit(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionLimit = 2
	f := newFixture(t, config)
	start := f.now
	for i, client := range []string{"d", "b", "c", "a"} { // d is the oldest; b and c share a time
		f.now = start + []int64{0, 5, 5, 9}[i]
		f.commit(appendWrite(client, 1, 0, "x"))
	}
	f.now = start + config.ClientTTL + 100
	for _, want := range [][]string{{"a", "c"}, {}} {
		f.round()
		var left []string
		if err := f.view().VisitStreams(nil, nil, func(_ []byte, s NamedStream) bool {
			left = append(left, s.ClientID)
			return true
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(left, want) {
			t.Errorf("after the round there are %q, want %q", left, want)
		}
	}
}

// Streams come before entities, and both share the limit.
func TestStreamsBeforeEntities(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionLimit = 3
	f := newFixture(t, config)
	f.commit(operations("a", 1, 0, setUntil("k1", "", f.now+2), setUntil("k2", "", f.now+1), setUntil("k3", "", f.now+3)))
	f.commit(appendWrite("b", 1, 0, "x"))
	f.now += config.ClientTTL + 1
	f.round()
	if n := f.view().Streams(); n != 0 {
		t.Errorf("%d streams are left, want none", n)
	}
	if n := len(f.mem.tables[TableEntities].keys); n != 2 {
		t.Fatalf("%d entities are left, want 2: streams take two of the limit of 3", n)
	}
	if _, there := f.mem.tables[TableEntities].values[string(append(appendScopeKey(nil, testScope), "k2"...))]; there {
		t.Error("k2 is left, which expired first")
	}
}

// Expired entities leave by transactions of system:gc, at most 1,000 operations
// each, one for each scope, each at a ledger index of its own.
func TestGCTransactions(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionLimit = 5_000
	f := newFixture(t, config)
	fill := func(scope Scope, sequence uint64, n int) {
		w := operations("c", sequence, 0)
		w.Scope = scope
		for i := range n {
			w.Operations = append(w.Operations, setUntil(fmt.Sprintf("%d-%04d", sequence, i), "v", f.now+1))
		}
		f.commit(w)
	}
	vault := Scope{"acme", "v"}
	fill(vault, 1, 3)
	fill(testScope, 1, 1_000)
	fill(testScope, 2, 1)
	f.now++
	f.configure(ConfigUpdate{EvictionInterval: new(uint64(1))})
	at := f.view().Index()
	// The command took one index; then 1,000 and 1 in the organization, 3 in the vault.
	var got []string
	for index := at - 3; index <= at; index++ {
		x, err := f.view().Transaction(f.view().TxIDAt(index))
		if errors.Is(err, ErrNotFound) {
			got = append(got, "command")
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if x.Actor != "system:gc" || x.ClientID != "" || x.Sequence != 0 || x.Session != 0 || x.CommittedAt != f.now {
			t.Errorf("the transaction at %d is %+v", index, x)
		}
		for _, op := range x.Operations {
			if op.Kind != OpExpireEntity {
				t.Errorf("operation %+v", op)
			}
		}
		got = append(got, fmt.Sprintf("%s: %d", x.Scope, len(x.Operations)))
	}
	if want := []string{"command", "acme: 1000", "acme: 1", "acme v: 3"}; !slices.Equal(got, want) {
		t.Errorf("the indexes %d to %d hold %q, want %q", at-3, at, got, want)
	}
	if n := len(f.mem.tables[TableEntities].keys); n != 0 {
		t.Errorf("%d entities are left", n)
	}
	if err := readBack(f.mem, nil); err != nil {
		t.Error(err)
	}
}

// An index that a gc transaction takes never triggers a round, and the round
// of a multiple that it takes is left out.
func TestGCIndexTriggersNoRound(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionInterval, config.EvictionLimit = 5, 1
	f := newFixture(t, config)
	f.commit(operations("c", 1, 0, // index 2
		setUntil("k1", "", f.now+1), setUntil("k2", "", f.now+1), setUntil("k3", "", f.now+1)))
	f.now++
	left := func() int { return len(f.mem.tables[TableEntities].keys) }
	f.commit(appendWrite("c", 2, 0, "x")) // 3
	f.commit(appendWrite("c", 3, 0, "x")) // 4
	if left() != 3 {
		t.Fatalf("%d entities before the round, want 3", left())
	}
	f.configure(ConfigUpdate{}) // 5: a round, whose transaction takes 6
	if left() != 2 || f.view().Index() != 6 {
		t.Fatalf("%d entities at index %d, want 2 at 6", left(), f.view().Index())
	}
	// At an interval of 2, index 7 is none; 8 is a round, whose transaction takes 9.
	f.configure(ConfigUpdate{EvictionInterval: new(uint64(2))})
	if left() != 2 || f.view().Index() != 7 {
		t.Fatalf("%d entities at index %d, want 2 at 7", left(), f.view().Index())
	}
	// The interval is read after the command: at 8 it becomes 3, so no round.
	f.configure(ConfigUpdate{EvictionInterval: new(uint64(3))})
	if left() != 2 || f.view().Index() != 8 {
		t.Fatalf("%d entities at index %d, want 2 at 8: the interval is read after the command", left(), f.view().Index())
	}
	f.configure(ConfigUpdate{EvictionInterval: new(uint64(9))}) // 9 is a multiple of 9: a round, it takes 10
	if left() != 1 || f.view().Index() != 10 {
		t.Fatalf("%d entities at index %d, want 1 at 10", left(), f.view().Index())
	}
	f.configure(ConfigUpdate{EvictionInterval: new(uint64(11))}) // 11: a round at once, it takes 12
	if left() != 0 || f.view().Index() != 12 {
		t.Fatalf("%d entities at index %d, want none at 12", left(), f.view().Index())
	}
}

// A gc transaction that takes a multiple of the interval does not start the
// round of that multiple.
func TestGCTakesAMultiple(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionInterval, config.EvictionLimit = 1, 1
	f := newFixture(t, config)
	f.commit(operations("c", 1, 0, setUntil("k1", "", f.now+1), setUntil("k2", "", f.now+1)))
	f.now++
	f.configure(ConfigUpdate{}) // each index is a multiple, but only the command's starts a round
	if n := len(f.mem.tables[TableEntities].keys); n != 1 || f.view().Index() != 4 {
		t.Errorf("%d entities at index %d, want 1 at 4: one round of one", n, f.view().Index())
	}
}

// A refused command triggers the round of its index as any other.
func TestInvariant4RefusalStillTriggersTheRound(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionInterval = 3
	f := newFixture(t, config)
	f.commit(appendWrite("c", 1, 0, "x")) // 2
	f.now += config.ClientTTL + 1
	if out := f.refuse(appendWrite("c", 9, 0, "x"), SequenceGap); out.Last != 1 { // 3
		t.Errorf("the gap names last %d, want 1: the round comes after the command", out.Last)
	}
	if _, found := f.stream("c"); found {
		t.Error("the refused command at a multiple of the interval triggered no round")
	}
}

// Invariant 4, for every code that refuses: the state is the same to the last
// byte apart from the head (the fixture compares), and so are the digest's
// inputs: refusing is part of the history.
func TestInvariant4RefusalMovesTheDigest(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	f.commit(appendWrite("c", 1, 1, "x"))
	index, digest := f.view().Index(), f.view().Digest()
	f.refuse(appendWrite("c", 7, 0, "x"), SequenceGap)
	if f.view().Index() != index+1 || f.view().Digest() == digest {
		t.Error("a refused command must take an index and move the digest")
	}
	// A refusal does not keep the stream alive.
	before, _ := f.stream("c")
	f.now += 9
	f.refuse(appendWrite("c", 7, 0, "x"), SequenceGap)
	f.refuse(appendWrite("c", 1, 1, "x"), Replayed)
	if after, _ := f.stream("c"); after != before {
		t.Errorf("the stream is %+v after refusals, want %+v", after, before)
	}
}

// Invariant 10, in small: a million one-shot clients leave no more than the
// limits say. Here it is a thousand, against a limit of twenty streams.
func TestInvariant10OneShotClients(t *testing.T) {
	t.Parallel()
	config := Config{EvictionInterval: 10, ClientTTL: second, EvictionLimit: 20, ReceiptWindow: 2, MaxStreams: 20}
	f := newFixture(t, config)
	committed := 0
	for i := range 1_000 {
		f.now += second / 12 // some 12 clients a client_ttl
		if out := f.entry(AppendWrite(nil, appendWrite(fmt.Sprint(i), 1, 1, "x")))[0]; out.Code == Committed {
			committed++
		}
		streams := len(f.mem.tables[TableStreams].keys)
		if streams > 20 || len(f.mem.tables[TableExpiry].keys) != streams || uint64(streams) != f.view().Streams() {
			t.Fatalf("after %d clients: %d streams, %d expiry entries, %d counted",
				i, streams, len(f.mem.tables[TableExpiry].keys), f.view().Streams())
		}
	}
	if committed < 800 {
		t.Errorf("only %d of 1,000 one-shot clients could write", committed)
	}
}
