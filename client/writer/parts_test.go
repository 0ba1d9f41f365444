package writer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/proof"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// blockOfThree is the first block of a chain. Its three transactions have three
// operations each.
func blockOfThree(t *testing.T, root byte) *seqledgerv1.Block {
	t.Helper()
	header := &seqledgerv1.BlockHeader{
		Scope: org, Height: 1, PreviousHash: make([]byte, 32), TxRoot: slices.Repeat([]byte{root}, 32), TxCount: 3,
		CommittedAt: timestamppb.New(time.Unix(1, 0)),
	}
	hash := must.Get(proof.BlockHash(header))(t)
	block := &seqledgerv1.Block{Header: header, Hash: hash}
	for i := range uint32(3) {
		x := &seqledgerv1.Transaction{TxId: txID(1, uint64(i)), Scope: org, ClientId: "c", BlockHeight: 1,
			BlockPosition: i}
		for k := range 3 {
			x.Operations = append(x.Operations, payload(fmt.Sprint(i, "/", k)))
		}
		block.Transactions = append(block.Transactions, x)
	}
	return block
}

// partsOf splits a block of blockOfThree into four parts, as a server does: within the
// first transaction, within the second one, and behind it.
func partsOf(block *seqledgerv1.Block) []*seqledgerv1.Block {
	cut := func(i, from, to int) *seqledgerv1.Transaction {
		x := proto.CloneOf(block.GetTransactions()[i])
		x.Operations, x.FirstOperation = x.GetOperations()[from:to], uint32(from)
		return x
	}
	part := func(next *seqledgerv1.BlockPosition, transactions ...*seqledgerv1.Transaction) *seqledgerv1.Block {
		return &seqledgerv1.Block{
			Header: proto.CloneOf(block.GetHeader()), Hash: slices.Clone(block.GetHash()),
			Transactions: transactions, Next: next,
		}
	}
	return []*seqledgerv1.Block{
		part(&seqledgerv1.BlockPosition{Operation: 1}, cut(0, 0, 1)),
		part(&seqledgerv1.BlockPosition{Transaction: 1, Operation: 2}, cut(0, 1, 3), cut(1, 0, 2)),
		part(&seqledgerv1.BlockPosition{Transaction: 2}, cut(1, 2, 3)),
		part(nil, cut(2, 0, 3)),
	}
}

// getAndWatch reads the block of a fake server with GetBlock and with Watch.
func getAndWatch(t *testing.T, parts []*seqledgerv1.Block, read func(how string, block *seqledgerv1.Block, err error)) {
	t.Helper()
	s, c := start(t)
	s.set(func(s *fakeServer) { s.blockParts, s.height = parts, 0 })
	block, err := c.GetBlock(t.Context(), &seqledgerv1.GetBlockRequest{
		// A request that asks for parts makes no difference.
		Scope: org, Height: 1, Content: seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS,
		Start: &seqledgerv1.BlockPosition{Transaction: 7},
	})
	read("GetBlock", block, err)
	for i, m := range s.asked {
		asked, due := m.(*seqledgerv1.GetBlockRequest), (*seqledgerv1.BlockPosition)(nil)
		if i > 0 {
			due = parts[i-1].GetNext()
		}
		if asked.GetContent() != seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS || !proto.Equal(asked.GetStart(), due) {
			t.Errorf("call %d: asked for %v, want the part at %v", i, asked, due)
		}
	}
	for block, err := range c.Watch(t.Context(), &seqledgerv1.WatchRequest{Scope: org}) {
		read("Watch", block, err)
		break
	}
}

// TestBlocksAreJoined from their parts, if these are of one block.
func TestBlocksAreJoined(t *testing.T) {
	t.Parallel()
	want := blockOfThree(t, 1)
	for name, parts := range map[string][]*seqledgerv1.Block{"whole": {want}, "in parts": partsOf(want)} {
		getAndWatch(t, parts, func(how string, block *seqledgerv1.Block, err error) {
			if err != nil || !proto.Equal(block, want) {
				t.Errorf("%s, %s: got %v, %v", name, how, block, err)
			}
		})
	}
	mixed := slices.Concat(partsOf(want)[:2], partsOf(blockOfThree(t, 2))[2:])
	getAndWatch(t, mixed, func(how string, block *seqledgerv1.Block, err error) {
		if !errors.Is(err, failure.ErrProtocol) || block != nil {
			t.Errorf("%s: want ErrProtocol, got %v, %v", how, block, err)
		}
	})
	s, c := start(t)
	s.set(func(s *fakeServer) { s.blockParts = partsOf(want) })
	if block, err := c.GetBlock(t.Context(),
		&seqledgerv1.GetBlockRequest{Scope: org, Height: 2}); !errors.Is(err, failure.ErrProtocol) {
		t.Errorf("block 1 where 2 was asked for: %v, %v", block, err)
	}
}

// transactionParts are the answers that bring one transaction of three operations.
func transactionParts() []*seqledgerv1.GetTransactionResponse {
	var parts []*seqledgerv1.GetTransactionResponse
	for i := range uint32(3) {
		parts = append(parts, &seqledgerv1.GetTransactionResponse{
			NextOperation: (i + 1) % 3,
			Transaction: &seqledgerv1.Transaction{
				TxId: txID(1, 1), Scope: org, FirstOperation: i,
				Operations: []*seqledgerv1.Operation{payload(fmt.Sprint(i))},
			},
		})
	}
	parts[0].BlockHeader, parts[0].Proof = &seqledgerv1.BlockHeader{Height: 1}, &seqledgerv1.MerkleProof{TreeSize: 1}
	return parts
}

// TestTransactionsAreJoined from their parts, and only from those that belong together.
func TestTransactionsAreJoined(t *testing.T) {
	t.Parallel()
	type parts = []*seqledgerv1.GetTransactionResponse
	get := func(p parts) (*fakeServer, *seqledgerv1.GetTransactionResponse, error) {
		s, c := start(t)
		s.transactionParts = p
		answer, err := c.GetTransaction(t.Context(), &seqledgerv1.GetTransactionRequest{
			TxId: txID(1, 1), IncludeProof: true, FirstOperation: 2,
		})
		return s, answer, err
	}
	want := transactionParts()[0]
	want.NextOperation = 0
	for _, more := range transactionParts()[1:] {
		want.Transaction.Operations = append(want.Transaction.Operations, more.GetTransaction().GetOperations()...)
	}
	s, answer, err := get(transactionParts())
	if err != nil || !proto.Equal(answer, want) {
		t.Errorf("got %v, %v", answer, err)
	}
	for i, m := range s.asked {
		asked := m.(*seqledgerv1.GetTransactionRequest)
		if !asked.GetParts() || asked.GetFirstOperation() != uint32(i) || asked.GetIncludeProof() != (i == 0) {
			t.Errorf("call %d asks for %v", i, asked)
		}
	}
	for name, change := range map[string]func(p parts) parts{
		"not from the start": func(p parts) parts { return p[1:] },
		"of another":         func(p parts) parts { p[1].Transaction.TxId = txID(1, 2); return p },
		"next is too far":    func(p parts) parts { p[0].NextOperation = 2; return p[1:] },
		"next goes back":     func(p parts) parts { p[1].NextOperation = 1; return p },
		"no transaction":     func(p parts) parts { p[0].Transaction = nil; return p },
		"no second part":     func(p parts) parts { p[1].Transaction = nil; return p },
	} {
		if _, answer, err := get(change(transactionParts())); !errors.Is(err, failure.ErrProtocol) || answer != nil {
			t.Errorf("%s: want ErrProtocol, got %v, %v", name, answer, err)
		}
	}
}

// TestAWatchOfHeaders asks for headers and checks that each follows from the one before.
func TestAWatchOfHeaders(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*fakeServer)
		seen   int
		want   error
	}{
		"the chain":     {func(*fakeServer) {}, 3, nil},
		"another chain": {func(s *fakeServer) { s.chain = 1 }, 2, failure.ErrOtherLedger},
		"a break": {func(s *fakeServer) {
			s.onWatch = func(uint64) error { s.set(func(s *fakeServer) { s.onWatch = nil }); return errBroken }
		}, 3, nil},
	} {
		s, c := start(t)
		s.onWatch = func(at uint64) error {
			if at == 2 {
				s.set(test.change)
			}
			return nil
		}
		seen, request := 0, &seqledgerv1.WatchRequest{Scope: org,
			Content: seqledgerv1.BlockContent_BLOCK_CONTENT_HEADER}
		for block, err := range c.Watch(t.Context(), request) {
			if err != nil {
				check.Is(t, err, test.want, "%s", name)
				break
			}
			if seen++; len(block.GetTransactions()) != 0 || block.GetHeader().GetHeight() != uint64(seen) {
				t.Errorf("%s: block %d came as %v", name, seen, block)
			}
			if seen == 3 {
				break
			}
		}
		if seen != test.seen {
			t.Errorf("%s: %d blocks, want %d", name, seen, test.seen)
		}
	}
}

// TestABreakWithinABlock: the block is read again from its beginning.
func TestABreakWithinABlock(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	want := blockOfThree(t, 1)
	s.height = 0
	s.blockParts = partsOf(want)[:2]
	s.onQuiet = func(context.Context) error {
		s.set(func(s *fakeServer) { s.blockParts, s.onQuiet = partsOf(want), nil })
		return errBroken
	}
	for block, err := range c.Watch(t.Context(), &seqledgerv1.WatchRequest{Scope: org}) {
		if err != nil || !proto.Equal(block, want) {
			t.Errorf("got %v, %v", block, err)
		}
		break
	}
}
