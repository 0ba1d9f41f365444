package machine

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// mixedFixture has three blocks of eight transactions, of which one is long, in
// one scope and as many in another, and entities with short, long and expired values.
func mixedFixture(t testing.TB) *fixture {
	t.Helper()
	config := testConfig()
	config.ReceiptWindow = 20
	f := newFixture(t, config)
	sequence := uint64(0)
	for block := range 3 {
		var commands [][]byte
		for i := range 8 {
			sequence++
			w := appendWrite("c", sequence, 0, strings.Repeat("x", 10+300*(i%3)))
			w.Operations = append(w.Operations,
				Operation{Kind: OpSetEntity, Key: fmt.Appendf(nil, "k%d-%d", block, i),
					Value: []byte(strings.Repeat("v", 50*(i%2)+1))})
			if i == 7 {
				w.Operations[1].ExpiresAt = 1
			}
			elsewhere := *w
			elsewhere.Scope = Scope{"other", "vault"}
			commands = append(commands, AppendWrite(nil, w), AppendWrite(nil, &elsewhere))
		}
		f.entry(commands...)
		f.now++
	}
	return f
}

// The parts of a block make the whole of it, wherever they begin and end.
func TestBlockParts(t *testing.T) {
	t.Parallel()
	f := mixedFixture(t)
	chain := must.Get(f.view().Chain(testScope))(t)
	for _, maxBytes := range []int{0, 1, 400, 1_000, 1 << 20} {
		for height := uint64(1); height <= 3; height++ {
			want := must.Get(f.view().Block(testScope, height))(t)
			var got []Transaction
			var leaves []Hash
			parts := 0
			for next := uint32(0); next < want.Header.TxCount; parts++ {
				part, err := f.view().BlockPart(chain, height, next, maxBytes)
				header, hashes, leafErr := f.view().LeafHashes(chain, height, next, maxBytes)
				if err != nil || leafErr != nil || part.Header != want.Header || header != want.Header {
					t.Fatalf("at %d: %v, %v, header %+v", next, err, leafErr, part.Header)
				}
				if part.Next <= next || len(part.Transactions) != int(part.Next-next) ||
					len(hashes) != len(part.Transactions) {
					t.Fatalf("the part at %d ends at %d with %d transactions and %d leaves", next, part.Next,
						len(part.Transactions), len(hashes))
				}
				got, leaves, next = append(got, part.Transactions...), append(leaves, hashes...), part.Next
			}
			if !reflect.DeepEqual(got, want.Transactions) {
				t.Errorf("height %d in parts of %d bytes is another block", height, maxBytes)
			}
			if (maxBytes <= 1) != (parts == 8) || (maxBytes == 1<<20) != (parts == 1) {
				t.Errorf("%d parts of %d bytes", parts, maxBytes)
			}
			tree := must.Get(NewBlockTree(want.Header, leaves))(t)
			check.Is(t, check.Err(tree.Proof(want.Header.TxCount)), ErrNotFound, "a position behind the end")
		}
	}
	if part, err := f.view().BlockPart(chain, 1, 8, 100); err != nil || len(part.Transactions) != 0 ||
		part.Next != 8 {
		t.Errorf("behind the end: %+v, %v", part, err)
	}
	check.Is(t, check.Err(f.view().BlockPart(chain, 4, 0, 100)), ErrNotFound, "a height that is not there")
}

// Leaves that do not lead to the root are damage, of every number of leaves.
func TestBlockTreeChecksTheRoot(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 33; n++ {
		leaves := make([]Hash, n)
		for i := range leaves {
			leaves[i] = LeafHash([]byte{byte(i)})
		}
		header := BlockHeader{Scope: testScope, Height: 1, TxCount: uint32(n), TxRoot: merkleRoot(slices.Clone(leaves))}
		tree, err := NewBlockTree(header, leaves)
		if err != nil {
			t.Fatal(n, err)
		}
		for i := range leaves {
			p, err := tree.Proof(uint32(i))
			must.Do(t, firstErr(err, p.verify(leaves[i][:])), "leaf %d of %d", i, n)
		}
		check.Is(t, check.Err(NewBlockTree(header, leaves[:n-1])), ErrCorrupt, "a leaf is missing")
		leaves[n/2][3] ^= 1
		check.Is(t, check.Err(NewBlockTree(header, leaves)), ErrCorrupt, "a leaf is another")
	}
}

// countingReader counts what is read, whatever it is.
type countingReader struct {
	Reader
	gets, visited int
}

func (c *countingReader) Get(table Table, key []byte) ([]byte, error) {
	c.gets++
	return c.Reader.Get(table, key)
}

func (c *countingReader) Ascend(table Table, from []byte, visit func(key, value []byte) bool) error {
	return c.Reader.Ascend(table, from, func(key, value []byte) bool {
		c.visited++
		return visit(key, value)
	})
}

// An id without a transaction is looked for as long as one with one, also where
// nothing follows it.
func TestTransactionScope(t *testing.T) {
	t.Parallel()
	f := mixedFixture(t)
	last := f.commit(appendWrite("d", 1, 0, "x")).Index
	for _, refusedBehind := range []bool{false, true} {
		if refusedBehind {
			f.one(AppendWrite(nil, appendWrite("d", 9, 0, "a gap"))) // takes an index and makes no block
		}
		for name, test := range map[string]struct {
			id    TxID
			found bool
		}{
			"there":            {NewTxID(testLedger, last), true},
			"in another scope": {NewTxID(testLedger, 3), true},
			"no transaction":   {NewTxID(testLedger, 1), false},
			"behind the end":   {NewTxID(testLedger, last+100), false},
			"far behind":       {NewTxID(testLedger, maxLedgerIndex), false},
			"another ledger":   {NewTxID(testLedger+1, last), false},
		} {
			r := &countingReader{Reader: f.mem}
			scope, err := f.m.View(r).TransactionScope(test.id)
			want, wantErr := f.view().Transaction(test.id)
			if test.found != (wantErr == nil) || !errors.Is(err, wantErr) || scope != want.Scope {
				t.Errorf("%s: %v, %v, want %v, %v", name, scope, err, want.Scope, wantErr)
			}
			// Behind the end there is no record, and another one is read in its place.
			if r.gets != 0 || r.visited != 1 {
				t.Errorf("%s (refused behind: %t): %d gets, %d records", name, refusedBehind, r.gets, r.visited)
			}
		}
	}
}

// Receipts that are found first and read later are those of one View.
func TestReceiptsInPieces(t *testing.T) {
	t.Parallel()
	f := mixedFixture(t)
	for _, limit := range []int{0, 1, 7, 100} {
		want := must.Get(f.view().Receipts(testScope, "c", limit))(t)
		indexes := must.Get(f.view().ReceiptIndexes(testScope, "c", 0, limit))(t)
		must.Equal(t, len(indexes), len(want), "limit %d: %v", limit)
		for i, index := range indexes {
			got, err := f.view().ReceiptAt(index)
			if err != nil || !reflect.DeepEqual(got, want[i]) {
				t.Errorf("receipt %d: %+v, %v, want %+v", i, got, err, want[i])
			}
		}
		for below := uint64(1); below <= 25; below++ {
			indexes := must.Get(f.view().ReceiptIndexes(testScope, "c", below, limit))(t)
			all := must.Get(f.view().Receipts(testScope, "c", 100))(t)
			var wanted []uint64
			for _, r := range all {
				if r.Sequence < below && len(wanted) < limit {
					wanted = append(wanted, r.Index)
				}
			}
			check.EqualSlices(t, indexes, wanted, "below %d, limit %d: %v", below, limit)
		}
	}
	check.Is(t, check.Err(f.view().ReceiptAt(1)), ErrCorrupt, "an index of the window without a transaction is damage")
}

// A listing whose values are read afterwards is the listing, also when the state
// has gone on meanwhile.
func TestEntitiesInPieces(t *testing.T) {
	t.Parallel()
	f := mixedFixture(t)
	var want []Entity
	must.Get(f.view().VisitEntities(testScope, "k", "", func(e Entity) bool {
		want = append(want, e)
		return true
	}))(t)
	var got []EntityRef
	must.Get(f.view().VisitEntityRefs(testScope, "k", "", func(e EntityRef) bool {
		got = append(got, e)
		return true
	}))(t)
	f.commit(operations("e", 1, 0, set("k0-1",
		"another value that is longer than what a record of an entity holds itself")))
	f.commit(operations("e", 2, 0, Operation{Kind: OpDeleteEntity, Key: []byte("k0-3")}))
	missing := 0
	for i := range got {
		if got[i].missing {
			missing++
		}
		for range 2 { // the second time there is nothing to read
			must.Do(t, f.view().ReadValue(&got[i]))
		}
		if !reflect.DeepEqual(got[i].Entity, want[i]) {
			t.Errorf("entity %d is %+v, want %+v", i, got[i].Entity, want[i])
		}
	}
	if len(got) != len(want) || len(got) != 21 || missing == 0 || missing == len(got) {
		t.Errorf("%d entities, %d of them without a value, want %d", len(got), missing, len(want))
	}
}

// A listing steps over a bounded number of expired entities in one View.
func TestVisitEntityRefsIsBounded(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionInterval = maxInterval
	f := newFixture(t, config)
	const dead = maxExpiredScan + 5
	for n, sequence := 0, uint64(1); n <= dead; sequence++ {
		w := appendWrite("c", sequence, 0, "")
		w.Operations = nil
		for ; len(w.Operations) < MaxOperations && n <= dead; n++ {
			op := Operation{Kind: OpSetEntity, Key: fmt.Appendf(nil, "%06d", n), ExpiresAt: 1}
			if n == dead {
				op.ExpiresAt = 0
			}
			w.Operations = append(w.Operations, op)
		}
		f.entry(AppendWrite(nil, w))
	}
	seen := 0
	count := func(EntityRef) bool { seen++; return true }
	resume, err := f.view().VisitEntityRefs(testScope, "", "", count)
	if err != nil || seen != 0 || resume != fmt.Sprintf("%06d", maxExpiredScan-1) {
		t.Errorf("saw %d and resumes at %q, %v", seen, resume, err)
	}
	if resume, err = f.view().VisitEntityRefs(testScope, "", resume, count); err != nil || seen != 1 || resume != "" {
		t.Errorf("then saw %d and resumes at %q, %v", seen, resume, err)
	}
}
