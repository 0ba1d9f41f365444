package machine

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

var (
	notExists = Condition{Kind: ConditionNotExists}
	mustExist = Condition{Kind: ConditionMustExist}
)

func version(n uint64) Condition     { return Condition{Kind: ConditionVersion, Version: n} }
func valueEquals(v string) Condition { return Condition{Kind: ConditionValueEquals, Value: []byte(v)} }

// Rule 10, each kind of condition on a present, an absent, a deleted and an
// expired entity, for a set and for a delete.
func TestRule10Conditions(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	present := f.commit(operations("w", 1, 0, set("present", "v"), set("long", longValue))).Index
	expires := f.now + second
	expired := f.commit(operations("w", 2, 0, setUntil("expired", "v", expires), set("deleted", "v"),
		set("empty", ""))).Index
	f.commit(operations("w", 3, 0, remove("deleted")))
	f.now = expires

	for _, test := range []struct {
		name      string
		key       string
		condition Condition
		want      Code // 0: it holds
		version   uint64
	}{
		{"not_exists, present", "present", notExists, KeyExists, present},
		{"not_exists, absent", "absent", notExists, 0, 0},
		{"not_exists, deleted", "deleted", notExists, 0, 0},
		{"not_exists, expired", "expired", notExists, 0, 0},
		{"must_exist, present", "present", mustExist, 0, 0},
		{"must_exist, absent", "absent", mustExist, KeyNotFound, 0},
		{"must_exist, deleted", "deleted", mustExist, KeyNotFound, 0},
		{"must_exist, expired", "expired", mustExist, KeyNotFound, 0},
		{"version, equal", "present", version(present), 0, 0},
		{"version, lower", "present", version(present - 1), VersionMismatch, present},
		{"version, higher", "present", version(present + 1), VersionMismatch, present},
		{"version 0, present", "present", version(0), VersionMismatch, present},
		{"version 0, absent", "absent", version(0), KeyNotFound, 0},
		{"version, absent", "absent", version(present), KeyNotFound, 0},
		{"version, expired", "expired", version(expired), KeyNotFound, 0},
		{"value_equals, equal", "present", valueEquals("v"), 0, 0},
		{"value_equals, other", "present", valueEquals("w"), ValueMismatch, present},
		{"value_equals, longer", "present", valueEquals("vv"), ValueMismatch, present},
		{"value_equals empty, present", "present", valueEquals(""), ValueMismatch, present},
		{"value_equals empty, equal", "empty", valueEquals(""), 0, 0},
		{"value_equals long, equal", "long", valueEquals(longValue), 0, 0},
		{"value_equals long, other", "long", valueEquals(longValue[1:] + "w"), ValueMismatch, present},
		{"value_equals long, empty", "long", valueEquals(""), ValueMismatch, present},
		{"version, long", "long", version(present), 0, 0},
		{"value_equals, absent", "absent", valueEquals("v"), KeyNotFound, 0},
		{"value_equals empty, absent", "absent", valueEquals(""), KeyNotFound, 0},
		{"value_equals, expired", "expired", valueEquals("v"), KeyNotFound, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, op := range []Operation{set(test.key, "new"), remove(test.key)} {
				if test.want == 0 {
					trial := fixture{TB: t, mem: f.mem.Clone(), now: f.now}
					trial.reopen()
					trial.commit(operations("c", 1, 0, provided(op, test.condition)))
					continue
				}
				// Behind an unconditional operation, which must not happen either.
				out := f.refuse(operations("c", 1, 0, set("bystander", "x"), provided(op, test.condition)), test.want)
				if out.OperationIndex != 1 || string(out.EntityKey) != test.key || out.CurrentVersion != test.version {
					t.Errorf("the outcome names operation %d, key %q, version %d, want 1, %q, %d",
						out.OperationIndex, out.EntityKey, out.CurrentVersion, test.key, test.version)
				}
			}
		})
	}
	// The same sequence is still free.
	f.commit(operations("c", 1, 0, provided(set("present", "w"), version(present))))
}

// Conditions see the earlier operations of their own write, and no later one.
func TestRule10SeesEarlierOperations(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		ops  []Operation
		want Code
		at   int
	}{
		{"set, then not_exists", []Operation{set("a", "1"), provided(set("a", "2"), notExists)}, KeyExists, 1},
		{"set, then must_exist", []Operation{set("a", "1"), provided(set("a", "2"), mustExist)}, Committed, 0},
		{"set, then value", []Operation{set("a", "1"), provided(set("a", "2"), valueEquals("1"))}, Committed, 0},
		{"set, then old value", []Operation{set("there", "1"), provided(set("there", "2"), valueEquals("old"))},
			ValueMismatch, 1},
		{"set, then old version", []Operation{set("there", "1"), provided(remove("there"), version(2))},
			VersionMismatch, 1},
		{"old version, then set", []Operation{provided(set("there", "1"), version(2)), set("there", "2")},
			Committed, 0},
		{"set twice, then value", []Operation{set("a", "1"), set("a", "2"), provided(remove("a"), valueEquals("2"))},
			Committed, 0},
		{"delete, then must_exist", []Operation{remove("there"), provided(set("there", "x"), mustExist)},
			KeyNotFound, 1},
		{"delete, then not_exists", []Operation{remove("there"), provided(set("there", "x"), notExists)}, Committed, 0},
		{"delete, set, not_exists", []Operation{remove("there"), set("there", "x"),
			provided(remove("there"), notExists)}, KeyExists, 2},
		{"set expired, then not_exists", []Operation{setUntil("a", "1", testStart), provided(set("a", "2"), notExists)},
			Committed, 0},
		{"set expired, then must_exist", []Operation{setUntil("a", "1", testStart), provided(set("a", "2"), mustExist)},
			KeyNotFound, 1},
		{"not_exists, then set", []Operation{provided(set("a", "1"), notExists), set("a", "2")}, Committed, 0},
		{"another key", []Operation{set("a", "1"), provided(set("b", "2"), mustExist)}, KeyNotFound, 1},
		{"a later operation", []Operation{provided(set("a", "1"), mustExist), set("a", "2")}, KeyNotFound, 0},
		{"the first that fails", []Operation{provided(remove("x"), mustExist), provided(remove("y"), mustExist)},
			KeyNotFound, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testConfig())
			f.commit(operations("w", 1, 0, set("there", "old"))) // at ledger index 2
			out := f.refuse(operations("c", 1, 0, test.ops...), test.want)
			check.Equal(t, out.OperationIndex, test.at, "operation %d is named")
		})
	}
}

// Versions are the ledger index of the last set; the results of a receipt are
// 0 where nothing changed.
func TestVersionsAndResults(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	first := f.commit(operations("c", 1, 1,
		set("k", "v"), remove("absent"), relate("doc", "owner", "bob"), relate("doc", "owner", "bob"),
		unrelate("doc", "owner", "eve"), Operation{Kind: OpAppend}, remove("k"), remove("k"), set("k", "w"),
	))
	i := first.Index
	want := []uint64{i, 0, i, 0, 0, i, i, 0, i}
	check.EqualSlices(t, first.Receipt.Versions, want, "the results are %v")
	again := f.refuse(operations("c", 1, 1, operationsAt(f, i)...), Replayed)
	check.EqualSlices(t, again.Receipt.Versions, want, "replayed, the results are %v")
	if e, ok := f.entity("k"); !ok || e.Version != i || string(e.Value) != "w" {
		t.Errorf("the entity is %+v, want version %d", e, i)
	}
	// The same value set again is a change; a key re-created never repeats a version.
	second := f.commit(operations("c", 2, 2, set("k", "w"))).Index
	f.commit(operations("c", 3, 3, remove("k")))
	third := f.commit(operations("c", 4, 4, set("k", "w")))
	if e, _ := f.entity("k"); second <= i || e.Version != third.Index {
		t.Errorf("version %d after %d and %d", e.Version, i, second)
	}
	f.refuse(operations("c", 5, 5, provided(set("k", "x"), version(second))), VersionMismatch)
	none := f.commit(operations("c", 5, 5, remove("absent"), relate("doc", "owner", "bob")))
	check.EqualSlices(t, none.Receipt.Versions, []uint64{0, 0}, "a write that changes nothing has the results %v")
}

// operationsAt returns the operations of the transaction at an index, read back.
func operationsAt(f *fixture, index uint64) []Operation {
	f.Helper()
	x := must.Get(f.view().Transaction(f.view().TxIDAt(index)))(f)
	return x.Operations
}

// An entity is absent from the very moment that its expires_at names, for
// reads, listings and deletes, though its record waits for a round.
func TestExpiredEntityIsAbsent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	until := f.now + 10
	f.commit(operations("c", 1, 0, setUntil("k", "v", until), set("stays", "v")))
	tick := uint64(1)
	listed := func(at int64) (keys []string) {
		f.now = at
		tick++
		f.commit(appendWrite("c", tick, 0, "tick")) // moves ledger time
		must.Get(f.view().VisitEntities(testScope, "", "", func(e Entity) bool {
			keys = append(keys, e.Key)
			return true
		}))(t)
		return keys
	}
	check.EqualSlices(t, listed(until-1), []string{"k", "stays"}, "one nanosecond before: %q")
	if e, ok := f.entity("k"); !ok || e.ExpiresAt != until {
		t.Errorf("one nanosecond before: %+v, %v", e, ok)
	}
	check.EqualSlices(t, listed(until), []string{"stays"}, "at its time: %q")
	if _, ok := f.entity("k"); ok {
		t.Error("at its time it can still be read")
	}
	check.Equal(t, f.commit(operations("c", tick+1, 0, remove("k"))).Receipt.Versions[0], 0,
		"deleting what has expired says that it changed something: %v")
	f.commit(operations("c", tick+2, 0, provided(set("k", "new"), notExists)))
	f.now += 1_000 * second
	f.commit(appendWrite("c", tick+3, 0, "tick"))
	f.round()
	if e, ok := f.entity("k"); !ok || string(e.Value) != "new" || e.ExpiresAt != 0 {
		t.Errorf("set again without expires_at it is %+v, %v: it must stay", e, ok)
	}
}

// A set without expires_at clears an earlier one, a later one replaces it.
func TestExpiresAtClearedAndMoved(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	soon, late := f.now+10, f.now+1_000
	f.commit(operations("c", 1, 0, setUntil("cleared", "v", soon), setUntil("later", "v", soon),
		setUntil("sooner", "v", late),
		setUntil("deleted", "v", soon)))
	f.commit(operations("c", 2, 0, set("cleared", "w"), setUntil("later", "w", late), setUntil("sooner", "w", soon),
		remove("deleted")))
	if e, _ := f.entity("cleared"); e.ExpiresAt != 0 {
		t.Errorf("expires_at is %d after a set without one", e.ExpiresAt)
	}
	// the stream, "later", "sooner"
	check.Equal(t, len(f.mem.tables[TableExpiry].keys), 3, "the expiry index has %d entries")
	f.now = soon
	f.round()
	for key, want := range map[string]bool{"cleared": true, "later": true, "sooner": false, "deleted": false} {
		if _, ok := f.entity(key); ok != want {
			t.Errorf("%s is there: %v, want %v", key, ok, want)
		}
	}
	f.now = late
	f.round()
	if _, ok := f.entity("later"); ok {
		t.Error("it is there past its second expires_at")
	}
}

// Entities of one scope are not seen from another.
func TestEntitiesBelongToTheirScope(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	f.commit(operations("c", 1, 0, set("k", "v"), relate("doc", "owner", "bob")))
	w := operations("c", 1, 0, provided(set("k", "w"), notExists), relate("doc", "owner", "bob"))
	w.Scope.Vault = "v"
	if out := f.commit(w); out.Receipt.Versions[1] != out.Index {
		t.Error("the relationship of another scope was taken for this one's")
	}
	if e, _ := f.entity("k"); string(e.Value) != "v" {
		t.Errorf("the organization's entity is %q after a write to its vault", e.Value)
	}
}

// A long value is read from the block of its transaction: from an entry before,
// from the entry that is being applied, from the last of several operations.
func TestLongValues(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	long := func(n int) string { return longValue + string(rune('a'+n)) }
	f.commit(operations("w", 1, 0, set("k", long(0)), set("other", long(1)), set("k", long(2))))
	read := func(key, want string) {
		t.Helper()
		if e, ok := f.entity(key); !ok || string(e.Value) != want {
			t.Errorf("entity %s is %q, want %q", key, e.Value, want)
		}
	}
	read("k", long(2))
	read("other", long(1))
	if n := len(f.mem.tables[TableEntities].values[string(append(appendScopeKey(nil, testScope), "k"...))]); n > 8 {
		t.Errorf("the record of a long value takes %d bytes", n)
	}
	outcomes := f.entry(
		AppendWrite(nil, operations("w", 2, 0, provided(set("k", long(3)), valueEquals(long(2))))),
		AppendWrite(nil, operations("w", 3, 0, provided(set("k", long(4)), valueEquals(long(2))))),
		AppendWrite(nil, operations("w", 3, 0, provided(set("k", long(5)), valueEquals(long(3))),
			provided(remove("k"), valueEquals(long(4))))),
		AppendWrite(nil, operations("w", 3, 0, provided(set("k", long(6)), valueEquals(long(3))),
			provided(set("k", "short"), valueEquals(long(6))))),
	)
	for i, want := range []Code{Committed, ValueMismatch, ValueMismatch, Committed} {
		check.Equal(t, outcomes[i].Code, want, "write %d: %s", i)
	}
	read("k", "short")
	f.commit(operations("w", 4, 0, set("k", longValue[1:]))) // as long as a record takes
	read("k", longValue[1:])
	var listed []string
	if _, err := f.view().VisitEntities(testScope, "", "", func(e Entity) bool {
		listed = append(listed, e.Key+"="+string(e.Value))
		return true
	}); err != nil || !slices.Equal(listed, []string{"k=" + longValue[1:], "other=" + long(1)}) {
		t.Error(listed, err)
	}
}

// A value of a long write stays in its block as well: reading it costs its own
// chunks and no others.
func TestValuesOfLongWrites(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	payload := Operation{Kind: OpAppend, Value: make([]byte, 20*operationChunk)}
	f.commit(operations("w", 1, 0, payload, set("k", longValue), payload, set("long", string(payload.Value))))
	for key, want := range map[string]int{"k": 3 * operationChunk, "long": 22 * operationChunk} {
		record := f.mem.tables[TableEntities].values[string(append(appendScopeKey(nil, testScope), key...))]
		e, err := decodeEntity(record)
		if err != nil || !e.inBlock || len(record) > 30 {
			t.Errorf("%s: %d bytes, %+v, %v", key, len(record), e, err)
		}
		values := valueReader{r: f.mem}
		if value, err := values.read(&e, []byte(key), -1); err != nil || len(value) == 0 || values.fetched > want {
			t.Errorf("%s: a value of %d bytes, %d checked, at most %d are its own; %v", key, len(value), values.fetched,
				want, err)
		}
	}
	check.Equal(t, len(audit(t, f.m, f.mem)), 0)
}

// A repeat, a conflict of keys and a receipt need no operations, neither their own nor
// those of the other transactions in the record: here they are all damaged.
func TestReceiptsReadNoOperations(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	const n = 4 // the receipt window
	payload := strings.Repeat("payload.", 4<<10)
	writes := make([]*Write, n)
	commands := make([][]byte, n)
	for i := range writes {
		writes[i] = appendWrite("w", uint64(i+1), byte(i+1), payload)
		commands[i] = AppendWrite(nil, writes[i])
	}
	f.entry(commands...)
	damaged := 0
	for _, record := range f.mem.tables[TableBlocks].values {
		for at := bytes.Index(record, []byte(payload)); at >= 0; at = bytes.Index(record, []byte(payload)) {
			clear(record[at : at+len(payload)])
			damaged++
		}
	}
	if damaged != n {
		t.Fatalf("%d of %d payloads are damaged", damaged, n)
	}
	for i, w := range writes {
		if out := f.write(w); out.Code != Replayed || out.Receipt.Sequence != uint64(i+1) {
			t.Errorf("repeat of sequence %d: %+v", i+1, out)
		}
	}
	f.refuse(appendWrite("w", 3, 0, "another"), SequenceReused)
	f.refuse(appendWrite("w", n+1, 3, "another"), IdempotencyKeyReused)
	receipts, err := f.view().Receipts(testScope, "w", n)
	if err != nil || len(receipts) != n {
		t.Errorf("%d receipts, %v", len(receipts), err)
	}
	check.Is(t, check.Err(f.view().Transaction(f.view().TxIDAt(receipts[0].Index))), ErrCorrupt,
		"the transaction itself")
}

// A record that leads to no operation which has set its entity is damage.
func TestValueThatIsNotInItsBlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	written := f.commit(operations("w", 1, 0, set("k", longValue), set("other", longValue), remove("k3"))).Index
	key := append(appendScopeKey(nil, testScope), "k"...)
	first := set("k", longValue)
	size := len(appendOperation(nil, &first))
	for name, e := range map[string]entity{
		"another entity's": {version: written, entityPlace: entityPlace{true, uint64(size)}},
		"a delete": {version: written,
			entityPlace: entityPlace{true, uint64(2*size + len("other") - 1)}},
		"beside it":         {version: written, entityPlace: entityPlace{true, 1}},
		"too far":           {version: written, entityPlace: entityPlace{true, 1 << 40}},
		"before everything": {version: written - 1, entityPlace: entityPlace{true, 0}},
		"after everything":  {version: written + 1, entityPlace: entityPlace{true, 0}},
	} {
		_ = f.mem.Put(TableEntities, key, e.append(nil))
		if e, err := f.view().Entity(testScope, "k"); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
		check.Is(t, check.Err(f.view().VisitEntities(testScope, "", "", func(Entity) bool { return true })), ErrCorrupt,
			"%s, in a listing", name)
	}
}
