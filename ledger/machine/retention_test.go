package machine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// retaining is a fixture that keeps so much, with a pass after each command.
func retaining(t testing.TB, blocks int64, bytes uint64) *fixture {
	t.Helper()
	config := testConfig()
	config.EvictionInterval, config.ClientTTL = 1, 1_000_000*second
	config.RetainBlocks, config.RetainBytes = blocks, bytes
	return newFixture(t, config)
}

func (f *fixture) horizon() uint64 { return f.view().Horizon().Index() }

// mustBeGone fails unless an error says that something lies before the horizon.
func (f *fixture) mustBeGone(what string, err error, firstHeight uint64) {
	f.Helper()
	gone, ok := errors.AsType[*GoneError](err)
	if !ok || gone.Horizon != f.horizon() || gone.FirstHeight != firstHeight {
		f.Errorf("%s: %v, want gone before index %d and height %d", what, err, f.horizon(), firstHeight)
	}
}

// The horizon passes what is older than retain_blocks, strictly, and nothing younger.
func TestHorizonFollowsTheTime(t *testing.T) {
	t.Parallel()
	f := retaining(t, 10*second, 0)
	var indexes []uint64
	begin := f.now
	for i := range uint64(20) {
		f.now = begin + int64(i)*second
		indexes = append(indexes, f.commit(appendWrite("c", i+1, 0, "x")).Receipt.Index)
	}
	// At second 19, what was written before second 9 is older than ten seconds.
	if got, want := f.horizon(), indexes[9]; got != want {
		t.Errorf("at second 19 the horizon is %d, want %d, which was written at second 9", got, want)
	}
	f.now = begin + 19*second + 1
	f.one(AppendTick(nil))
	check.Equal(t, f.horizon(), indexes[10], "a nanosecond later the horizon is %d")
	if kept := f.view().Retained(); kept.Bytes != 10*3 || kept.Since != begin+9*second {
		t.Errorf("kept is %+v, want ten operations of three bytes", kept)
	}
}

// The horizon never passes what is within retain_bytes, and leaves at most a mark's distance more.
func TestHorizonFollowsTheBytes(t *testing.T) {
	t.Parallel()
	f := retaining(t, 0, 1<<20)
	payload := strings.Repeat("x", 10_000)
	size := uint64(len(payload) + 3) // kind, length
	for i := range uint64(300) {
		f.commit(appendWrite("c", i+1, 0, payload))
		kept := f.view().Retained().Bytes
		if written := (i + 1) * size; kept < min(written, 1<<20) || kept > 1<<20+minMarkBytes+2*size {
			t.Fatalf("after %d bytes %d are kept", written, kept)
		}
	}
	if f.horizon() == 0 {
		t.Error("the horizon has not moved")
	}
}

// A larger bound never brings back what is gone, and a smaller one holds from the next pass on.
func TestHorizonNeverMovesBack(t *testing.T) {
	t.Parallel()
	f := retaining(t, 10*second, 0)
	for i := range uint64(30) {
		f.now += second
		f.commit(appendWrite("c", i+1, 0, "x"))
	}
	before := f.horizon()
	f.configure(ConfigUpdate{RetainBlocks: new(1_000 * second)})
	f.configure(ConfigUpdate{RetainBlocks: new(int64(0))})
	f.now += 1_000 * second
	f.one(AppendTick(nil))
	if got := f.horizon(); got != before || before == 0 {
		t.Errorf("the horizon is %d, it was %d", got, before)
	}
	f.configure(ConfigUpdate{RetainBlocks: new(second)})
	if got := f.horizon(); got <= before {
		t.Errorf("with a second to keep the horizon is still %d", got)
	}
}

// Every answer about what lies before the horizon says so; nothing else changes by it.
func TestAnswersOnEitherSideOfTheHorizon(t *testing.T) {
	t.Parallel()
	f := retaining(t, 10*second, 0)
	scope := Scope{Organization: "acme"}
	f.commit(operations("old", 1, 1, set("long", longValue), set("short", "v"), relate("doc", "owner", "bob")))
	first := f.commit(appendWrite("c", 1, 9, "first"))
	old := f.commit(appendWrite("c", 2, 2, "old"))
	f.now += second
	f.one(AppendTick(nil)) // leaves a mark
	f.now += 5 * second
	kept := f.commit(appendWrite("c", 3, 3, "kept"))
	f.now += 6 * second
	f.commit(appendWrite("d", 1, 0, "young"))
	if f.horizon() <= old.Receipt.Index || f.horizon() > kept.Receipt.Index {
		t.Fatalf("the horizon is %d, want one behind %d", f.horizon(), old.Receipt.Index)
	}
	for _, dropped := range []bool{false, true} {
		if dropped {
			f.drop()
		}
		f.checkGone(scope, first.Receipt, old.Receipt)
		f.checkKept(scope, kept.Receipt)
		check.Equal(t, len(audit(t, f.m, f.mem)), 0, "dropped %v: %v", dropped)
		must.Do(t, readBack(f.mem, nil), "dropped %v", dropped)
	}
}

func (f *fixture) checkGone(scope Scope, first, old Receipt) {
	f.Helper()
	v := f.view()
	_, err := v.Transaction(NewTxID(testLedger, old.Index))
	f.mustBeGone("transaction", err, 0)
	_, err = v.TransactionScope(NewTxID(testLedger, old.Index))
	f.mustBeGone("scope of a transaction", err, 0)
	_, err = v.Proof(old.Index)
	f.mustBeGone("proof", err, 0)
	_, err = v.ReceiptAt(old.Index)
	f.mustBeGone("receipt", err, 0)
	_, err = v.Block(scope, old.BlockHeight)
	f.mustBeGone("block", err, old.BlockHeight+1)
	if _, err := v.Transaction(NewTxID(testLedger+1, old.Index)); !errors.Is(err, ErrNotFound) {
		f.Errorf("a transaction of another ledger: %v, want not found", err)
	}
	f.refuse(appendWrite("c", 2, 2, "old"), AlreadyCommitted)
	f.refuse(appendWrite("c", 1, 9, "first"), AlreadyCommitted)
	if out := f.refuse(appendWrite("c", 2, 7, "another"), AlreadyCommitted); out.Receipt.Index != 0 {
		f.Errorf("a receipt that is gone is told: %+v", out.Receipt)
	}
}

func (f *fixture) checkKept(scope Scope, kept Receipt) {
	f.Helper()
	v := f.view()
	if x, err := v.Transaction(NewTxID(testLedger, kept.Index)); err != nil || x.Sequence != 3 {
		f.Errorf("a transaction behind the horizon: %+v, %v", x, err)
	}
	if b, err := v.Block(scope, kept.BlockHeight); err != nil || len(b.Transactions) != 1 {
		f.Errorf("a block behind the horizon: %+v, %v", b, err)
	}
	f.refuse(appendWrite("c", 3, 3, "kept"), Replayed)
	receipts, err := v.Receipts(scope, "c", 10)
	indexes, err2 := v.ReceiptIndexes(scope, "c", 0, 10)
	if len(receipts) != 1 || err != nil || !slices.Equal(indexes, []uint64{kept.Index}) || err2 != nil {
		f.Errorf("the window has %d receipts, %v, at %v, %v; want the one that is kept",
			len(receipts), err, indexes, err2)
	}
	e, there := f.entity("long")
	if !there || string(e.Value) != longValue {
		f.Errorf("a long value from before the horizon is %q, %v", e.Value, there)
	}
	if e, there := f.entity("short"); !there || string(e.Value) != "v" {
		f.Errorf("a short value from before the horizon is %q, %v", e.Value, there)
	}
	n := 0
	count := func([]byte, Relationship) bool { n++; return true }
	if _, err := v.VisitRelationships(scope, "doc", "", nil, count); n != 1 || err != nil {
		f.Errorf("%d relationships, %v", n, err)
	}
}

// drop does with the state in memory what a ledger does with its files.
func (f *fixture) drop() {
	f.Helper()
	for from, more := []byte(nil), true; more; more = from != nil {
		live, next, err := f.view().FindLive(from, f.horizon()-1)
		if err == nil {
			err = Carry(f.mem, live)
		}
		must.Do(f, err)
		from = next
	}
	for _, key := range slices.Clone(f.mem.tables[TableBlocks].keys) {
		if key < string(appendIndexKey(nil, f.horizon())) {
			_ = f.mem.Delete(TableBlocks, []byte(key))
		}
	}
}

// A keyed write whose transaction is gone is answered for as long as its record lives.
func TestKeyedWriteBeforeTheHorizon(t *testing.T) {
	t.Parallel()
	f := retaining(t, 10*second, 0)
	w := &KeyedWrite{
		ID: KeyedID{Scope: testScope, Principal: "client:test", Key: [32]byte{1}}, Actor: "client:test",
		TTL: 1_000 * second, MaxKeys: 10, Operations: []Operation{{Kind: OpAppend, Value: []byte("x")}},
	}
	first := f.one(AppendKeyedWrite(nil, w))
	for range 3 {
		f.now += 6 * second
		f.commit(appendWrite("c", 1+f.lastOf("c"), 0, "x"))
	}
	f.drop()
	out := f.one(AppendKeyedWrite(nil, w))
	if out.Code != AlreadyCommitted || out.Receipt.Index != first.Receipt.Index || out.Receipt.LedgerID != testLedger {
		t.Errorf("a repeat gave %+v, want ALREADY_COMMITTED at %d", out, first.Receipt.Index)
	}
	hash, _ := HashOperations(nil, w.Operations)
	if r, answered, err := f.view().AnswerKeyedWrite(w, hash, f.now); answered || err != nil {
		t.Errorf("the state answers with %+v, %v", r, err)
	}
	other := *w
	other.Operations = []Operation{{Kind: OpAppend, Value: []byte("y")}}
	check.Equal(t, f.one(AppendKeyedWrite(nil, &other)).Code, IdempotencyKeyReused,
		"another request under the key gave %v")
	check.Equal(t, len(audit(t, f.m, f.mem)), 0)
}

func (f *fixture) lastOf(client string) uint64 {
	s, _ := f.stream(client)
	return s.Last
}

// A value that is carried is compared, listed and replaced as one in a block, and what replaced it makes
// it clutter.
func TestCarriedValues(t *testing.T) {
	t.Parallel()
	for _, length := range []int{
		maxValueInRecord + 1, carriedPiece, carriedPiece + 1, 3*carriedPiece + 7, MaxValueBytes,
	} {
		f := retaining(t, 10*second, 0)
		value := strings.Repeat("v", length)
		f.commit(operations("c", 1, 0, set("a", "x"), set("k", value), set("k2", value)))
		for i := range uint64(3) {
			f.now += 6 * second
			f.commit(appendWrite("d", i+1, 0, "x"))
		}
		f.drop()
		if live, _, err := f.view().FindLive(nil, f.horizon()-1); len(live) != 0 || err != nil {
			t.Errorf("%d values have to be carried again, %v", len(live), err)
		}
		equals := func(value string) Condition { return Condition{Kind: ConditionValueEquals, Value: []byte(value)} }
		f.refuse(operations("c", 2, 0, provided(set("k", "y"), equals(value+"v"))), ValueMismatch)
		f.refuse(operations("c", 2, 0, provided(set("k", "y"), equals(value[:length-1]+"w"))), ValueMismatch)
		if unused, _, err := f.view().FindUnused(nil); len(unused) != 0 || err != nil {
			t.Errorf("%d rows are unused, %v", len(unused), err)
		}
		f.commit(operations("c", 2, 0, provided(set("k", "y"), equals(value)), provided(remove("k2"), equals(value))))
		unused, next, err := f.view().FindUnused(nil)
		if len(unused) != f.mem.Len(TableCarried) || next != nil || err != nil {
			t.Errorf("%d of %d rows are unused, %v", len(unused), f.mem.Len(TableCarried), err)
		}
		if err := DropCarried(f.mem, unused); err != nil || f.mem.Len(TableCarried) != 0 {
			t.Errorf("%d rows are left, %v", f.mem.Len(TableCarried), err)
		}
		check.Equal(t, len(audit(t, f.m, f.mem)), 0)
	}
}

// A value that was found in an earlier view may be gone when it is read. The answer says so and is never
// that the state is damaged.
func TestValueThatChangesWhileItIsRead(t *testing.T) {
	t.Parallel()
	f := retaining(t, 10*second, 0)
	f.commit(operations("c", 1, 0, set("k", longValue)))
	ref := must.Get(f.view().EntityRef(testScope, "k"))(t)
	f.commit(operations("c", 2, 0, set("k", longValue+"2")))
	for i := range uint64(3) {
		f.now += 6 * second
		f.commit(appendWrite("d", i+1, 0, "x"))
	}
	f.drop()
	check.Is(t, NewBlocks(f.mem, f.view().Horizon()).ReadValue(&ref), ErrChanged,
		"reading a value that nothing leads to gave")
	// What the state itself leads to must be there.
	f.mem.Clear(TableCarried)
	check.Is(t, check.Err(f.view().Entity(testScope, "k")), ErrCorrupt, "a carried value that is missing")
	if problems := audit(t, f.m, f.mem); len(problems) == 0 {
		t.Error("the audit does not miss it")
	}
}

// The first block that is kept is found from everywhere, in few reads.
func TestFirstHeight(t *testing.T) {
	t.Parallel()
	const height = 300
	f := chainFixture(t, height)
	c := must.Get(f.view().Chain(testScope))(t)
	for first := uint64(1); first <= height+1; first++ {
		horizon := f.m.head.index + 1
		if first <= height {
			header := must.Get(f.view().Block(testScope, first))(t)
			horizon = header.Transactions[0].Index
		}
		counted := &countingReader{Reader: f.mem}
		got, err := NewBlocks(counted, Horizon{index: horizon, epochs: f.m.head.epochs}).FirstHeight(c)
		if err != nil || got != first || counted.gets > 20 {
			t.Fatalf("with the horizon at block %d the first is %d, after %d reads, %v", first, got, counted.gets, err)
		}
	}
}

// An idle ledger asks for passes until its history is marked, and again when it has grown old.
func TestIdleHistoryGrowsOld(t *testing.T) {
	t.Parallel()
	f := retaining(t, 10*second, 0)
	f.configure(ConfigUpdate{EvictionInterval: new(uint64(1_000))})
	f.commit(appendWrite("c", 1, 0, "x"))
	due := func(at int64) bool {
		due := must.Get(f.view().Due(at))(t)
		return due
	}
	if due(f.now) || !due(f.now+second) {
		t.Error("what is not marked is not due after a second")
	}
	f.now += second
	f.configure(ConfigUpdate{EvictionInterval: new(uint64(1))})
	if due(f.now+10*second) || !due(f.now+10*second+1) {
		t.Error("what is marked is due at another time than when it is too old")
	}
	f.now += 10*second + 1
	f.one(AppendTick(nil))
	if f.horizon() == 0 || due(f.now+1_000*second) {
		t.Errorf("the horizon is %d, or an empty history is due", f.horizon())
	}
}

// What was written at a wrong time, which an epoch sets right, counts as written at the right one.
func TestEpochSetsMarksBack(t *testing.T) {
	t.Parallel()
	f := retaining(t, 10*second, 0)
	right := f.now
	f.now += 1_000_000 * second / 2
	f.commit(appendWrite("c", 1, 0, "wrong time"))
	f.one(AppendEpoch(nil, 0xfeed, right))
	for _, step := range []struct {
		after int64
		moved bool
	}{{10 * second, false}, {10*second + 1, true}} {
		f.now = right + step.after
		before := f.horizon()
		f.one(AppendTick(nil))
		if moved := f.horizon() != before; moved != step.moved {
			t.Errorf("%d ns after the right time the horizon went from %d to %d", step.after, before, f.horizon())
		}
	}
}

// However much is due at once, a pass removes a bounded number of marks, and the next ones go on.
func TestHorizonMovesInSteps(t *testing.T) {
	t.Parallel()
	f := retaining(t, 0, 0)
	const marks = 3*maxMarksPassed/2 + 1
	for i := range uint64(marks) {
		f.now += maxMarkInterval
		f.commit(appendWrite("c", i+1, 0, "x"))
	}
	f.now += second + 1
	left := func() int { return f.mem.Len(TableMeta) - 1 }
	must.Equal(t, left(), marks, "there are %d marks")
	f.configure(ConfigUpdate{RetainBlocks: new(second)})
	check.Equal(t, left(), marks-maxMarksPassed, "after a pass %d marks are left")
	f.one(AppendTick(nil))
	check.Equal(t, left(), 0, "after two passes %d marks are left")
}

// The limits of what may be kept.
func TestRetentionLimits(t *testing.T) {
	t.Parallel()
	f := retaining(t, 0, 0)
	for _, test := range []struct {
		update ConfigUpdate
		field  string
	}{
		{ConfigUpdate{RetainBlocks: new(second - 1)}, "retain_blocks"},
		{ConfigUpdate{RetainBlocks: new(-second)}, "retain_blocks"},
		{ConfigUpdate{RetainBytes: new(uint64(minRetainBytes - 1))}, "retain_bytes"},
		{ConfigUpdate{RetainBytes: new(uint64(minRetainBytes)), RetainBlocks: new(second)}, ""},
		{ConfigUpdate{RetainBytes: new(uint64(0)), RetainBlocks: new(int64(0))}, ""},
	} {
		out := f.configure(test.update)
		if got := fmt.Sprint(out.Field); (out.Field == nil) != (test.field == "") ||
			out.Field != nil && out.Field.Field != test.field {
			t.Errorf("%+v gave %v, %s", test.update, out.Code, got)
		}
	}
}

// The audit notices a mark, a horizon or a count that the history does not bear out.
func TestAuditOfRetention(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(f *fixture){
		"a mark with other bytes": func(f *fixture) {
			key := []byte(f.mem.tables[TableMeta].keys[1])
			k := must.Get(decodeMark(key, f.mem.tables[TableMeta].values[string(key)]))(f)
			k.bytes--
			_ = f.mem.Put(TableMeta, key, k.append(nil))
		},
		"a mark that is gone": func(f *fixture) {
			keys := f.mem.tables[TableMeta].keys
			_ = f.mem.Delete(TableMeta, []byte(keys[len(keys)-1]))
		},
		"other bytes in the head": func(f *fixture) { f.m.head.retention.bytes++ },
		"a block that must be there": func(f *fixture) {
			for _, key := range slices.Clone(f.mem.tables[TableBlocks].keys) {
				if key <= string(appendIndexKey(nil, f.horizon())) {
					_ = f.mem.Delete(TableBlocks, []byte(key))
				}
			}
		},
	} {
		f := retaining(t, 10*second, 0)
		for i := range uint64(20) {
			f.now += second
			f.commit(appendWrite("c", i+1, 0, "x"))
		}
		f.drop()
		must.Equal(t, len(audit(t, f.m, f.mem)), 0)
		if damage(f); len(audit(t, f.m, f.mem)) == 0 {
			t.Errorf("%s is not noticed", name)
		}
	}
}

// The audit notices damage to a value that is carried, whether its block is still there or not.
func TestAuditOfCarriedValues(t *testing.T) {
	t.Parallel()
	for _, dropped := range []bool{false, true} {
		f := retaining(t, 10*second, 0)
		value := longValue + strings.Repeat("w", carriedPiece)
		f.commit(operations("c", 1, 0, set("k", value)))
		for i := range uint64(3) {
			f.now += 6 * second
			f.commit(appendWrite("d", i+1, 0, "x"))
		}
		blocks := f.mem.Clone()
		f.drop()
		if !dropped {
			f.mem.tables[TableBlocks] = blocks.tables[TableBlocks]
		}
		if problems := audit(t, f.m, f.mem); len(problems) != 0 || f.mem.Len(TableCarried) != 2 {
			t.Fatalf("dropped %v, %d rows: %v", dropped, f.mem.Len(TableCarried), problems)
		}
		for _, key := range slices.Clone(f.mem.tables[TableCarried].keys) {
			row := f.mem.tables[TableCarried].values[key]
			for name, damaged := range map[string][]byte{
				"cut": row[:len(row)-1], "longer": append(slices.Clone(row), 'x'), "none": nil,
			} {
				if name == "none" && !dropped {
					continue // it is read from its block
				}
				_ = f.mem.Delete(TableCarried, []byte(key))
				if damaged != nil {
					_ = f.mem.Put(TableCarried, []byte(key), damaged)
				}
				if len(audit(t, f.m, f.mem)) == 0 {
					t.Errorf("dropped %v: a row that is %s is not noticed", dropped, name)
				}
			}
			_ = f.mem.Put(TableCarried, []byte(key), row)
		}
	}
}
