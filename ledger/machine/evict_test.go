package machine

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
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
	check.Equal(t, f.refuse(appendWrite("plain", 2, 2, "y"), SequenceGap).Last, 0, "the gap names last %d")
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
	must.Do(t, readBack(f.mem, nil))
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
			must.Do(t, err)
			times = append(times, at-start)
		}
		return times
	}
	check.EqualSlices(t, indexed(), []int64{0, 1, 2}, "the writes have moved the index: %v")
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
	check.Equal(t, f.view().Streams(), 2, "%d streams, want 2: neither is over its time")
	f.now++
	f.round()
	check.Equal(t, f.view().Streams(), 0, "%d streams, want none")
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
		must.Get(f.view().VisitStreams(nil, nil, func(_ []byte, s NamedStream) bool {
			left = append(left, s.ClientID)
			return true
		}))(t)
		check.EqualSlices(t, left, want, "after the round there are %q")
	}
}

// Streams come before entities, and both share the limit.
func TestStreamsBeforeEntities(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionLimit = 3
	f := newFixture(t, config)
	f.commit(operations("a", 1, 0, setUntil("k1", "", f.now+2), setUntil("k2", "", f.now+1),
		setUntil("k3", "", f.now+3)))
	f.commit(appendWrite("b", 1, 0, "x"))
	f.now += config.ClientTTL + 1
	f.round()
	check.Equal(t, f.view().Streams(), 0, "%d streams are left, want none")
	must.Equal(t, len(f.mem.tables[TableEntities].keys), 2,
		"%d entities are left, want 2: streams take two of the limit of 3")
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
		must.Do(t, err)
		if x.Actor != "system:gc" || x.ClientID != "" || x.Sequence != 0 || x.Session != 0 || x.CommittedAt != f.now {
			t.Errorf("the transaction at %d is %+v", index, x)
		}
		for _, op := range x.Operations {
			check.Equal(t, op.Kind, OpExpireEntity, "operation %+v: %v", op)
		}
		got = append(got, fmt.Sprintf("%s: %d", x.Scope, len(x.Operations)))
	}
	if want := []string{"command", "acme: 1000", "acme: 1", "acme v: 3"}; !slices.Equal(got, want) {
		t.Errorf("the indexes %d to %d hold %q, want %q", at-3, at, got, want)
	}
	check.Equal(t, len(f.mem.tables[TableEntities].keys), 0, "%d entities are left")
	must.Do(t, readBack(f.mem, nil))
}

// A pass follows the command that brings the count of commands to the interval,
// read after the command. Indexes that system:gc takes count for nothing.
func TestPassesAreCountedInCommands(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionInterval, config.EvictionLimit = 5, 1
	f := newFixture(t, config) // the first command
	f.commit(operations("c", 1, 0, setUntil("k1", "", f.now+1), setUntil("k2", "", f.now+1),
		setUntil("k3", "", f.now+1),
		setUntil("k4", "", f.now+200), setUntil("k5", "", f.now+200)))
	f.now++
	state := func(when string, wantLeft int, wantIndex uint64) {
		t.Helper()
		if left := len(f.mem.tables[TableEntities].keys); left != wantLeft || f.view().Index() != wantIndex {
			t.Fatalf("%s: %d entities at index %d, want %d at %d", when, left, f.view().Index(), wantLeft, wantIndex)
		}
	}
	f.commit(appendWrite("c", 2, 0, "x"))
	f.refuse(appendWrite("c", 9, 0, "x"), SequenceGap)
	state("after four commands", 5, 4)
	f.one(AppendTick(nil))
	state("the fifth is a tick: a pass, whose transaction takes an index", 4, 6)
	f.configure(ConfigUpdate{EvictionInterval: new(uint64(3)), EvictionLimit: new(uint64(1))})
	state("the first command of the next pass, at an index behind the transaction's", 4, 7)
	f.one(AppendTick(nil))
	state("the second one", 4, 8)
	f.configure(ConfigUpdate{EvictionInterval: new(uint64(4))})
	state("the third one makes the interval four", 4, 9)
	f.configure(ConfigUpdate{EvictionInterval: new(uint64(1))})
	state("and the fourth one: a pass, of up to ten, because the one before left two", 2, 11)
	if f.m.head.backlog {
		t.Error("nothing that is due is left, and the state says that there is")
	}
	f.now += 200
	f.one(AppendTick(nil))
	state("one again, because the pass before left nothing", 1, 13)
	must.Do(t, readBack(f.mem, nil))
}

// However many indexes system:gc takes, passes come no more often than their
// interval: each of these takes the index just below the next multiple.
func TestPassesDoNotCascade(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionInterval, config.EvictionLimit = 10, 9
	f := newFixture(t, config)
	const scopes = 90
	for i := range scopes {
		w := operations("c", 1, 0, setUntil("k", "", f.now+1))
		w.Scope.Vault = fmt.Sprint(i)
		f.commit(w)
	}
	f.now++
	passes, index := f.m.evictions.Rounds, f.m.head.index
	for range 20 {
		f.one(AppendTick(nil))
	}
	check.Equal(t, f.m.evictions.Rounds-passes, 2, "%d passes in 20 commands of an interval of 10")
	if left := len(f.mem.tables[TableEntities].keys); f.m.head.index != index+20+scopes || left != 0 {
		t.Errorf("%d entities left at index %d, want none at %d: 9 and then up to 90", left, f.m.head.index, index+
			20+scopes)
	}
}

// A pass does a bounded amount of work, however large its limit is.
func TestPassWorkIsBounded(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionLimit, config.ReceiptWindow = maxEvictLimit, maxWindow
	f := newFixture(t, config)
	for i := range 8 {
		w := operations("c", uint64(i)+1, 0)
		for j := range MaxOperations {
			w.Operations = append(w.Operations, setUntil(fmt.Sprintf("%d/%d", i, j), "", f.now+1))
		}
		f.entry(AppendWrite(nil, w))
	}
	f.now++
	f.round()
	check.Equal(t, len(f.mem.tables[TableEntities].keys), 8*MaxOperations-MaxPassWork, "%d entities are left")
	if !f.m.head.backlog || f.m.evictions.Full != 1 {
		t.Error("the state does not say that some are left")
	}
	f.round()
	check.Equal(t, len(f.mem.tables[TableEntities].keys), 0, "%d entities are left")
	// Long keys and long records cost more.
	for _, test := range []struct{ key, record, work int }{{20, 60, 1}, {600, 60, 3}, {1_300, 0, 6}, {300, 8_300, 6}} {
		check.Equal(t, entryWork(test.key, test.record), test.work, "a key of %d bytes with a record of %d costs %d",
			test.key, test.record)
	}
}

// walkCounter counts the walks over the expiry index. In a store each may step over the deleted
// keys of all kinds.
type walkCounter struct {
	*Memory

	walks int
}

func (w *walkCounter) Ascend(table Table, from []byte, visit func(key, value []byte) bool) error {
	if table == TableExpiry {
		w.walks++
	}
	return w.Memory.Ascend(table, from, visit)
}

// A pass does not walk over a kind that is known to have no entries, and walks over it again once
// it has one.
func TestPassesSkipEmptyKinds(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionInterval = 1
	f := newFixture(t, config)
	counter := &walkCounter{Memory: f.mem}
	pass := func(command []byte) (walks int) {
		counter.walks = 0
		must.Get(f.m.Apply(counter, AppendEntry(nil, f.now, command)))(t)
		return counter.walks
	}
	f.reopen()
	for _, test := range []struct {
		when    string
		command []byte
		want    int
	}{
		{"after a start", AppendTick(nil), 3},
		{"with an empty index", AppendTick(nil), 0},
		{"with an entity and its stream", AppendWrite(nil, operations("c", 1, 0, setUntil("k", "", f.now+10))), 2},
		{"with both, which are not due", AppendTick(nil), 2},
	} {
		check.Equal(t, pass(test.command), test.want, "%s: a pass walked %d times", test.when)
	}
	f.now += 10
	if pass(AppendTick(nil)); len(f.mem.tables[TableEntities].keys) != 0 {
		t.Error("the entity is due and still there")
	}
	if due, err := f.m.View(counter).Due(f.now); due || err != nil {
		t.Errorf("due: %v, %v; only a stream is left, which has been seen just now", due, err)
	}
}

// A pass follows a refused command as any other.
func TestInvariant4RefusalCounts(t *testing.T) {
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
		t.Error("no pass followed the refused command")
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
