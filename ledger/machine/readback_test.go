package machine

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"

	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// readBack reads back every block of the ledger and checks what the ledger
// promises about it: invariants 1 and 3, the hash chain, the Merkle trees, and
// that every receipt tells the truth. It trusts nothing that the machine says
// beside the blocks.
func readBack(r Reader, receipts []HandedOut) error {
	m, err := Open(r)
	if err != nil {
		return err
	}
	a := blockReader{
		view: m.View(r), at: map[uint64]Transaction{}, numbered: map[[2]uint64]uint64{}, inSession: map[string]uint64{},
		count: map[uint64]uint64{}, highest: map[uint64]uint64{}, lowest: map[uint64]uint64{},
		horizon: m.head.retention.horizon,
	}
	var scopes []Scope
	err = r.Ascend(TableScopes, nil, func(key, _ []byte) bool {
		scope, _, err := splitScope(key)
		scopes = append(scopes, scope)
		return err == nil
	})
	if err != nil {
		return err
	}
	for _, scope := range scopes {
		if err := a.chain(scope); err != nil {
			return fmt.Errorf("scope %s: %w", scope, err)
		}
	}
	for created, n := range a.count {
		first := a.lowest[created]
		if first != 1 && created >= a.horizon || a.highest[created] != first-1+n {
			return fmt.Errorf("invariant 3: stream %d has %d transactions up to sequence %d", created, n,
				a.highest[created])
		}
	}
	if err := a.streams(); err != nil {
		return err
	}
	for _, h := range receipts {
		if err := a.receipt(h); err != nil {
			return err
		}
	}
	return nil
}

type blockReader struct {
	view      View
	at        map[uint64]Transaction
	numbered  map[[2]uint64]uint64 // creation index, sequence → ledger index
	inSession map[string]uint64    // scope, client, session, sequence → ledger index
	count     map[uint64]uint64    // creation index → transactions
	highest   map[uint64]uint64    // creation index → sequence
	lowest    map[uint64]uint64    // the same
	horizon   uint64
}

// chain walks the blocks of a scope.
func (a *blockReader) chain(scope Scope) error {
	chain, err := a.view.Chain(scope)
	if err != nil {
		return err
	}
	height, hash := chain.Height, chain.Hash
	first, err := a.view.FirstHeight(chain)
	if err != nil {
		return err
	}
	var previous Hash
	if first > height { // none is kept
		previous = hash
	}
	for h := uint64(1); h < first; h++ {
		_, err := a.view.Block(scope, h)
		if gone, ok := errors.AsType[*GoneError](err); !ok || gone.FirstHeight != first || gone.Horizon != a.horizon {
			return fmt.Errorf("block %d, before the first that is kept, which is %d: %w", h, first, err)
		}
	}
	for h := first; h <= height; h++ {
		block, err := a.view.Block(scope, h)
		if err != nil {
			return fmt.Errorf("block %d: %w", h, err)
		}
		switch {
		case block.Header.Scope != scope || block.Header.Height != h:
			return fmt.Errorf("block %d says that it is %d of %s", h, block.Header.Height, block.Header.Scope)
		case h == first && first > 1: // the header says what was before it
		case block.Header.PreviousHash != previous:
			return fmt.Errorf("block %d: the chain is broken", h)
		case int(block.Header.TxCount) != len(block.Transactions) || len(block.Transactions) == 0:
			return fmt.Errorf("block %d has %d transactions, its header says %d", h, len(block.Transactions),
				block.Header.TxCount)
		}
		previous = block.Header.Hash()
		if err := a.block(&block); err != nil {
			return fmt.Errorf("block %d: %w", h, err)
		}
	}
	if previous != hash {
		return errors.New("the head of the chain is not the hash of the last block")
	}
	if _, err := a.view.Block(scope, height+1); !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("there is a block beyond the head of the chain (%w)", err)
	}
	return nil
}

// block checks the tree and every transaction of it.
func (a *blockReader) block(block *Block) error {
	hasher := rfc6962.DefaultHasher
	var leaves [][]byte
	for _, x := range block.Transactions {
		leaf := LeafHash(x.Leaf())
		if !bytes.Equal(leaf[:], hasher.HashLeaf(x.Leaf())) {
			return fmt.Errorf("transaction %d: the leaf hash is not RFC 6962's", x.Index)
		}
		leaves = append(leaves, leaf[:])
	}
	if !bytes.Equal(treeRoot(leaves), block.Header.TxRoot[:]) {
		return errors.New("tx_root is not the root of the transactions")
	}
	for i, x := range block.Transactions {
		if x.BlockHeight != block.Header.Height || int(x.Position) != i || x.Scope != block.Header.Scope {
			return fmt.Errorf("transaction %d does not know its place: %d/%d", x.Index, x.BlockHeight, x.Position)
		}
		if _, err := a.view.Proof(x.Index); x.Index < a.horizon {
			if _, gone := errors.AsType[*GoneError](err); !gone {
				return fmt.Errorf("proof of transaction %d before the horizon: %w", x.Index, err)
			}
		} else if err := verifyProof(a.view, &x, leaves[i]); err != nil {
			return fmt.Errorf("proof of transaction %d: %w", x.Index, err)
		}
		if err := a.transaction(&x); err != nil {
			return err
		}
	}
	return nil
}

// treeRoot is RFC 6962's definition, word for word.
func treeRoot(leaves [][]byte) []byte {
	if len(leaves) == 1 {
		return leaves[0]
	}
	k := 1
	for k*2 < len(leaves) {
		k *= 2
	}
	return rfc6962.DefaultHasher.HashChildren(treeRoot(leaves[:k]), treeRoot(leaves[k:]))
}

func verifyProof(v View, x *Transaction, leaf []byte) error {
	p, err := v.Proof(x.Index)
	if err != nil {
		return err
	}
	if p.Header.Height != x.BlockHeight || p.Header.Scope != x.Scope || p.LeafIndex != uint64(x.Position) {
		return fmt.Errorf("it is about leaf %d of block %d", p.LeafIndex, p.Header.Height)
	}
	return p.verify(leaf)
}

// verify asks somebody else's verifier whether the path leads from a leaf to the root.
func (p *Proof) verify(leaf []byte) error {
	path := make([][]byte, len(p.Path))
	for i := range p.Path {
		path[i] = p.Path[i][:]
	}
	return proof.VerifyInclusion(
		rfc6962.DefaultHasher, p.LeafIndex, uint64(p.Header.TxCount), leaf, path, p.Header.TxRoot[:])
}

// transaction checks what holds for each: above all that nothing ran twice.
func (a *blockReader) transaction(x *Transaction) error {
	if other, twice := a.at[x.Index]; twice {
		return fmt.Errorf("ledger index %d has two transactions, in %s and %s", x.Index, other.Scope, x.Scope)
	}
	a.at[x.Index] = *x
	if found, err := a.view.Transaction(x.ID()); x.Index < a.horizon {
		if _, gone := errors.AsType[*GoneError](err); !gone {
			return fmt.Errorf("transaction %d before the horizon: %w", x.Index, err)
		}
	} else if err != nil || !bytes.Equal(found.Encode(), x.Encode()) {
		return fmt.Errorf("transaction %d is not found by its id: %w", x.Index, err)
	}
	if hash, _ := HashOperations(nil, x.Operations); hash != x.RequestHash {
		return fmt.Errorf("transaction %d: the request hash is not that of its operations", x.Index)
	}
	if x.Actor == "system:gc" || x.Keyed != nil {
		return nil
	}
	number := [2]uint64{x.CreatedIndex, x.Sequence}
	if other, twice := a.numbered[number]; twice {
		return fmt.Errorf("invariant 1: sequence %d of stream %d was committed twice, at %d and %d",
			x.Sequence, x.CreatedIndex, other, x.Index)
	}
	a.numbered[number] = x.Index
	if a.count[x.CreatedIndex]++; a.count[x.CreatedIndex] == 1 {
		a.lowest[x.CreatedIndex] = x.Sequence
	}
	a.lowest[x.CreatedIndex] = min(a.lowest[x.CreatedIndex], x.Sequence)
	a.highest[x.CreatedIndex] = max(a.highest[x.CreatedIndex], x.Sequence)
	if x.Session == 0 {
		return nil
	}
	request := fmt.Sprintf("%q %q %d %d", x.Scope, x.ClientID, x.Session, x.Sequence)
	if other, twice := a.inSession[request]; twice {
		return fmt.Errorf("invariant 1: request %s was committed twice, at %d and %d", request, other, x.Index)
	}
	a.inSession[request] = x.Index
	return nil
}

// streams checks the streams that are there against the blocks.
func (a *blockReader) streams() error {
	n, total := uint64(0), a.view.Streams()
	var wrong error
	_, err := a.view.VisitStreams(nil, nil, func(_ []byte, s NamedStream) bool {
		n++
		if s.Last != a.highest[s.CreatedIndex] && (a.highest[s.CreatedIndex] != 0 || s.CreatedIndex >= a.horizon) {
			wrong = fmt.Errorf("invariant 3: stream %s/%s is at %d, its last transaction at %d",
				s.Scope, s.ClientID, s.Last, a.highest[s.CreatedIndex])
		}
		receipts, err := a.view.Receipts(s.Scope, s.ClientID, 1<<20)
		for i, r := range receipts {
			if r.Sequence != s.Last-uint64(i) || r.Index != a.numbered[[2]uint64{s.CreatedIndex, r.Sequence}] {
				wrong = fmt.Errorf("receipt %d of stream %s/%s is about sequence %d", i, s.Scope, s.ClientID,
					r.Sequence)
			}
		}
		wrong = firstErr(wrong, err)
		return wrong == nil
	})
	if n != total && wrong == nil {
		wrong = fmt.Errorf("there are %d streams, the head counts %d", n, total)
	}
	return firstErr(err, wrong)
}

func (a *blockReader) receipt(h HandedOut) error {
	x, there := a.at[h.Receipt.Index]
	if !there && h.Receipt.Index < a.horizon {
		return nil
	}
	if !there {
		return fmt.Errorf("invariant 2: the transaction of an acknowledged write is not there: %+v", h.Receipt)
	}
	got, want := x.receipt(), h.Receipt
	want.Replayed = false
	hash, _ := HashOperations(nil, h.Write.Operations)
	switch {
	case fmt.Sprint(got) != fmt.Sprint(want):
		return fmt.Errorf("transaction %d is %+v, its receipt says %+v", x.Index, got, want)
	case x.RequestHash != hash:
		return fmt.Errorf("invariant 5: receipt %d answers a request with other operations", x.Index)
	case x.ClientID != h.Write.ClientID || x.Scope != h.Write.Scope:
		return fmt.Errorf("receipt %d answers a request of another stream: %+v", x.Index, x)
	}
	return nil
}

// The tree of readBack is checked against a hash that stands in RFC 6962's
// reference implementation: the root of the leaves "" and 0x00.
func TestTreeRootOfReference(t *testing.T) {
	t.Parallel()
	leaf := func(b ...byte) []byte {
		h := sha256.Sum256(append([]byte{0}, b...))
		return h[:]
	}
	const want = "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"
	check.Equal(t, fmt.Sprintf("%x", treeRoot([][]byte{leaf(), leaf(0)})), want, "the root is %s")
}
