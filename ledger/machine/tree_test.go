package machine

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// leaves returns the leaf index and the hash of each block, in the order of the records.
func (f *fixture) leaves(t *testing.T) (indexes string, hashes []Hash) {
	t.Helper()
	must.Do(t, f.view().VisitLeaves(0, func(l RecordLeaves) bool {
		for i, hash := range l.Blocks {
			indexes, hashes = indexes+fmt.Sprint(l.First+uint64(i), " "), append(hashes, hash)
		}
		return true
	}))
	return indexes, hashes
}

// Blocks are leaves of the ledger's tree in the order of the records, from leaf 1 on, and a restored ledger has another
// tree, the first leaf of which says where it comes from.
func TestLeavesOfALedger(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	check.Equal(t, f.view().Tree(), Tree{testLedger, 1, 1, originOf(0, 0, Hash{})}, "the first tree is %+v")
	other := appendWrite("c", 1, 0, "x")
	other.Scope = Scope{"acme", "vault"}
	f.entry(AppendWrite(nil, appendWrite("a", 1, 0, "x")), AppendWrite(nil, other))
	f.commit(appendWrite("a", 2, 0, "y"))
	indexes, hashes := f.leaves(t)
	check.Equal(t, indexes, "1 2 3 ", "the leaves are %s")
	for i, at := range []struct {
		scope  Scope
		height uint64
	}{{testScope, 1}, {other.Scope, 1}, {testScope, 2}} {
		block := must.Get(f.view().Block(at.scope, at.height))(t)
		check.Equal(t, hashes[i], block.Header.Hash(), "leaf %d is %s", i+1)
	}
	before, digest := f.view().Index(), f.view().Digest()
	f.one(AppendEpoch(nil, 0xfeed, 0))
	check.Equal(t, f.view().Tree(), Tree{0xfeed, f.view().Index(), 1, originOf(testLedger, before, digest)},
		"the tree of the restored ledger is %+v")
	f.commit(appendWrite("a", 3, 0, "z"))
	indexes, _ = f.leaves(t)
	check.Equal(t, indexes, "1 2 3 1 ", "the leaves are %s")
	check.Equal(t, f.view().Tree().Leaves, 2, "the tree has %d leaves")
}

func originOf(id LedgerID, index uint64, digest Hash) Hash {
	b := appendIndexKey(appendIndexKey([]byte{3}, uint64(id)), index)
	return sha256.Sum256(append(b, digest[:]...))
}

// The audit counts the leaves itself.
func TestAuditCountsLeaves(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(f *fixture){
		"a block under another leaf": func(f *fixture) {
			f.m.head.leaves++
			f.commit(appendWrite("a", 3, 0, "z"))
			f.m.head.leaves--
		},
		"another number in the head": func(f *fixture) { f.m.head.leaves++ },
		"the leaves go on in an epoch": func(f *fixture) {
			leaves := f.m.head.leaves
			f.one(AppendEpoch(nil, 0xfeed, 0))
			f.m.head.leaves = leaves
			f.commit(appendWrite("a", 3, 0, "z"))
		},
	} {
		f := newFixture(t, testConfig())
		f.commit(appendWrite("a", 1, 0, "x"))
		f.commit(appendWrite("a", 2, 0, "y"))
		var problems []string
		report := func(p Problem) { problems = append(problems, p.What) }
		must.Do(t, check.Err(f.m.AuditWhole(f.mem, report, nil)))
		check.Equal(t, len(problems), 0, "%s: before it the audit says %d of %q", name, problems)
		change(f)
		must.Do(t, check.Err(f.m.AuditWhole(f.mem, report, nil)))
		if !strings.Contains(strings.Join(problems, "\n"), "of the ledger's tree") &&
			!strings.Contains(strings.Join(problems, "\n"), "in the ledger's tree") {
			t.Errorf("%s: the audit says %q", name, problems)
		}
	}
}

// A leaf has the hash of the operations and what they did, so that it is small and another result has another hash.
func TestLeafCoversResults(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	large := strings.Repeat("x", MaxValueBytes)
	index := f.commit(operations("a", 1, 0, set("k", large), remove("absent"))).Index
	parts := must.Get(f.view().Leaf(f.view().TxIDAt(index)))(t)
	x := must.Get(f.view().Transaction(f.view().TxIDAt(index)))(t)
	check.Equal(t, string(parts.Data), string(x.Leaf()), "the leaf is %x")
	check.Equal(t, parts.Header.TxRoot, LeafHash(x.Leaf()), "the root is %s")
	check.Equal(t, parts.Block, 1, "its block is leaf %d")
	if len(parts.Data) > 200 {
		t.Errorf("the leaf has %d bytes", len(parts.Data))
	}
	x.Versions[1] = x.Index
	if LeafHash(x.Leaf()) == parts.Header.TxRoot {
		t.Error("another result has the same leaf")
	}
}
