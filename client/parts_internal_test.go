package client

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/internal/testkit/check"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// randomBlock has up to five transactions, with up to four operations each.
func randomBlock(random *rand.Rand, height uint64) *seqledgerv1.Block {
	block := &seqledgerv1.Block{
		Header: &seqledgerv1.BlockHeader{Height: height, TxCount: 1 + random.Uint32N(5)},
		Hash:   []byte{byte(height), byte(random.Uint32())},
	}
	for i := range block.GetHeader().GetTxCount() {
		t := &seqledgerv1.Transaction{TxId: fmt.Sprintf("%d-%d", height, i), BlockHeight: height, BlockPosition: i}
		for k := range 1 + random.IntN(4) {
			payload := fmt.Appendf(nil, "%d/%d/%d", height, i, k)
			t.Operations = append(t.Operations, op.Append(payload))
		}
		block.Transactions = append(block.Transactions, t)
	}
	return block
}

// split cuts a block into parts at random operations, as a server does.
func split(random *rand.Rand, block *seqledgerv1.Block) (parts []*seqledgerv1.Block) {
	newPart := func() *seqledgerv1.Block {
		return &seqledgerv1.Block{Header: proto.CloneOf(block.GetHeader()), Hash: slices.Clone(block.GetHash())}
	}
	part := newPart()
	for i, whole := range block.GetTransactions() {
		for k, operation := range whole.GetOperations() {
			if i+k > 0 && random.IntN(3) == 0 {
				part.Next = &seqledgerv1.BlockPosition{Transaction: uint32(i), Operation: uint32(k)}
				parts = append(parts, part)
				part = newPart()
			}
			// Continue the transaction in this part, or begin it here.
			n := len(part.GetTransactions())
			if n == 0 || part.GetTransactions()[n-1].GetBlockPosition() != uint32(i) {
				t := proto.CloneOf(whole)
				t.Operations, t.FirstOperation = nil, uint32(k)
				part.Transactions = append(part.Transactions, t)
				n++
			}
			t := part.GetTransactions()[n-1]
			t.Operations = append(t.Operations, proto.CloneOf(operation))
		}
	}
	return append(parts, part)
}

// join joins parts to blocks, up to an error.
func join(parts []*seqledgerv1.Block) (blocks []*seqledgerv1.Block, err error) {
	var j blockJoiner
	for _, part := range parts {
		block, err := j.add(proto.CloneOf(part))
		if err != nil {
			return blocks, err
		}
		if block != nil {
			blocks = append(blocks, block)
		}
	}
	return blocks, nil
}

// TestAnySplitIsJoined: wherever the server cuts, the joined blocks equal the server's.
func TestAnySplitIsJoined(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		var want, parts []*seqledgerv1.Block
		for height := range uint64(3) {
			block := randomBlock(random, height+1)
			want, parts = append(want, block), append(parts, split(random, block)...)
		}
		got, err := join(parts)
		if err != nil || !slices.EqualFunc(got, want, func(a, b *seqledgerv1.Block) bool { return proto.Equal(a, b) }) {
			t.Fatalf("seed %d: %d parts became %d blocks, %v", seed, len(parts), len(got), err)
		}
	}
}

// TestPartsAreNeverJoinedToAnotherBlock: damaged parts give a block that went in, a protocol error, or nothing.
func TestPartsAreNeverJoinedToAnotherBlock(t *testing.T) {
	t.Parallel()
	changes := map[string]func(random *rand.Rand, parts, others []*seqledgerv1.Block) []*seqledgerv1.Block{
		"one is lost": func(random *rand.Rand, p, _ []*seqledgerv1.Block) []*seqledgerv1.Block {
			i := random.IntN(len(p))
			return slices.Delete(p, i, i+1)
		},
		"one comes twice": func(random *rand.Rand, p, _ []*seqledgerv1.Block) []*seqledgerv1.Block {
			i := random.IntN(len(p))
			return slices.Insert(p, i, p[i])
		},
		"another order": func(random *rand.Rand, p, _ []*seqledgerv1.Block) []*seqledgerv1.Block {
			random.Shuffle(len(p), func(i, k int) { p[i], p[k] = p[k], p[i] })
			return p
		},
		"one of another block": func(random *rand.Rand, p, o []*seqledgerv1.Block) []*seqledgerv1.Block {
			p[random.IntN(len(p))] = o[random.IntN(len(o))]
			return p
		},
		"another cut": func(random *rand.Rand, p, _ []*seqledgerv1.Block) []*seqledgerv1.Block {
			part := p[random.IntN(len(p))]
			part.Next = &seqledgerv1.BlockPosition{Transaction: random.Uint32N(6), Operation: random.Uint32N(5)}
			return p
		},
		"no cut": func(_ *rand.Rand, p, _ []*seqledgerv1.Block) []*seqledgerv1.Block {
			// Only after a whole transaction: the missing end of a transaction shows only in its hash.
			for _, part := range p {
				if next := part.GetNext(); next.GetTransaction() > 0 && next.GetOperation() == 0 {
					part.Next = nil
				}
			}
			return p
		},
		"no transactions": func(random *rand.Rand, p, _ []*seqledgerv1.Block) []*seqledgerv1.Block {
			p[random.IntN(len(p))].Transactions = nil
			return p
		},
		"another beginning": func(random *rand.Rand, p, _ []*seqledgerv1.Block) []*seqledgerv1.Block {
			ts := p[random.IntN(len(p))].GetTransactions()
			ts[random.IntN(len(ts))].FirstOperation = random.Uint32N(5)
			return p
		},
		"another position": func(random *rand.Rand, p, _ []*seqledgerv1.Block) []*seqledgerv1.Block {
			ts := p[random.IntN(len(p))].GetTransactions()
			ts[random.IntN(len(ts))].BlockPosition = random.Uint32N(6)
			return p
		},
	}
	for name, change := range changes {
		refused := 0
		for seed := range uint64(300) {
			random := rand.New(rand.NewPCG(seed, 2))
			block, other := randomBlock(random, 1), randomBlock(random, 2)
			got, err := join(change(random, split(random, block), split(random, other)))
			if err != nil {
				refused++
				check.Is(t, err, failure.ErrProtocol, "%s, seed %d", name, seed)
			}
			for _, b := range got {
				if !proto.Equal(b, block) && !proto.Equal(b, other) {
					t.Errorf("%s, seed %d: got %v, which is neither %v nor %v", name, seed, b, block, other)
				}
			}
		}
		if refused == 0 {
			t.Errorf("%s: never refused", name)
		}
	}
}

// TestPartsOfTransactions: a part is accepted if it begins where the ones before ended and all its other fields are
// those of the same transaction.
func TestPartsOfTransactions(t *testing.T) {
	t.Parallel()
	whole := &seqledgerv1.Transaction{TxId: "1", Sequence: 7, ClientId: "c", BlockHeight: 3}
	for k := range 5 {
		whole.Operations = append(whole.Operations, op.Append([]byte{byte(k)}))
	}
	part := func(from, to int) *seqledgerv1.Transaction {
		p := proto.CloneOf(whole)
		p.Operations, p.FirstOperation = p.GetOperations()[from:to], uint32(from)
		return p
	}
	for name, test := range map[string]struct {
		change func(p *seqledgerv1.Transaction)
		fails  bool
	}{
		"as it is":       {func(*seqledgerv1.Transaction) {}, false},
		"too early":      {func(p *seqledgerv1.Transaction) { p.FirstOperation-- }, true},
		"too late":       {func(p *seqledgerv1.Transaction) { p.FirstOperation++ }, true},
		"nothing":        {func(p *seqledgerv1.Transaction) { p.Operations = nil }, true},
		"another id":     {func(p *seqledgerv1.Transaction) { p.TxId = "2" }, true},
		"another client": {func(p *seqledgerv1.Transaction) { p.ClientId = "d" }, true},
		"another number": {func(p *seqledgerv1.Transaction) { p.Sequence++ }, true},
		"another height": {func(p *seqledgerv1.Transaction) { p.BlockHeight++ }, true},
	} {
		first, second := part(0, 2), part(2, 5)
		test.change(second)
		err := appendOperations(first, second)
		if (err != nil) != test.fails || err != nil && !errors.Is(err, failure.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && !proto.Equal(first, whole) {
			t.Errorf("%s: joined to %v", name, first)
		}
	}
}

// TestChangesOfAHeaderAreSeen: a changed header is refused in every part, not only in the first.
func TestChangesOfAHeaderAreSeen(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 3))
		parts := split(random, randomBlock(random, 1))
		if len(parts) == 1 {
			continue
		}
		i := 1 + random.IntN(len(parts)-1)
		if random.IntN(2) == 0 {
			parts[i].Hash = append(bytes.Clone(parts[i].GetHash()), 0)
		} else {
			parts[i].Header.TxRoot = []byte("another root")
		}
		if blocks, err := join(parts); len(blocks) > 0 || !errors.Is(err, failure.ErrProtocol) {
			t.Errorf("seed %d: part %d of %d has changed: %v, %v", seed, i, len(parts), blocks, err)
		}
	}
	check.Is(t, check.Err(new(blockJoiner).add(&seqledgerv1.Block{})), failure.ErrProtocol, "a block without a header")
}
