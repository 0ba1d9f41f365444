package wire

import (
	"bytes"
	"crypto/sha256"
	"math"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// drawTransaction draws a transaction as a ledger may have committed it.
func drawTransaction(t *rapid.T) *machine.Transaction {
	some := rapid.SliceOf(rapid.Byte())
	key := func(name string) []byte { return []byte(rapid.StringN(1, 9, -1).Draw(t, name)) }
	x := &machine.Transaction{
		LedgerID:    machine.LedgerID(rapid.Uint64().Draw(t, "ledger")),
		Index:       rapid.Uint64Range(1, 1<<58-1).Draw(t, "index"),
		CommittedAt: rapid.Int64Range(1, math.MaxInt64).Draw(t, "time"),
		Scope:       machine.Scope{Organization: "acme", Vault: rapid.SampledFrom([]string{"", "v"}).Draw(t, "vault")},
		ClientID:    "c", CreatedIndex: rapid.Uint64().Draw(t, "created"), Session: rapid.Uint64().Draw(t, "session"),
		Sequence: rapid.Uint64Min(1).Draw(t, "sequence"), Actor: "user:1",
		BlockHeight: rapid.Uint64().Draw(t, "height"), Position: rapid.Uint32().Draw(t, "position"),
	}
	if x.Key.Present = rapid.Bool().Draw(t, "has key"); x.Key.Present {
		copy(x.Key.UUID[:], some.Draw(t, "uuid"))
	}
	copy(x.RequestHash[:], some.Draw(t, "hash"))
	for range rapid.IntRange(1, 6).Draw(t, "operations") {
		op := machine.Operation{Kind: machine.OperationKind(rapid.IntRange(1, 6).Draw(t, "kind"))}
		switch op.Kind {
		case machine.OpCreateRelationship, machine.OpDeleteRelationship:
			op.Key, op.Relation, op.Subject = key("resource"), key("relation"), key("subject")
		case machine.OpAppend:
			op.Value = some.Draw(t, "payload")
		case machine.OpSetEntity:
			op.Value, op.ExpiresAt = some.Draw(t, "value"), rapid.Int64Range(0, math.MaxInt64).Draw(t, "expires")
			fallthrough
		case machine.OpDeleteEntity:
			op.Condition.Kind = machine.ConditionKind(rapid.IntRange(0, 4).Draw(t, "condition"))
			switch op.Condition.Kind {
			case machine.ConditionVersion:
				op.Condition.Version = rapid.Uint64().Draw(t, "version")
			case machine.ConditionValueEquals:
				op.Condition.Value = some.Draw(t, "compared")
			}
			fallthrough
		default:
			op.Key = key("key")
		}
		x.Operations = append(x.Operations, op)
		x.Versions = append(x.Versions, rapid.SampledFrom([]uint64{0, x.Index}).Draw(t, "version"))
	}
	if rapid.Bool().Draw(t, "is keyed") {
		x.Keyed = &machine.KeyedID{Scope: x.Scope, Namespace: "n", Principal: rapid.String().Draw(t, "principal")}
		copy(x.Keyed.Key[:], some.Draw(t, "key hash"))
	}
	return x
}

// TestALeafIsTheSameOnBothSides: what a client computes from an answer is what the ledger hashed, for any transaction
// and header.
func TestALeafIsTheSameOnBothSides(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x := drawTransaction(t)
		part := NewPart(math.MaxInt)
		want := x.Leaf()
		if !part.Add(x, 0) || len(part.Transactions) != 1 {
			t.Fatal("it is not a part by itself:", part)
		}
		if got, err := message.CanonicalLeaf(part.Transactions[0]); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v: the client hashes %x, the ledger %x", err, got, want)
		}
		header := machine.BlockHeader{
			Scope: x.Scope, Height: x.BlockHeight, TxCount: x.Position, CommittedAt: x.CommittedAt,
			PreviousHash: sha256.Sum256([]byte("previous")), TxRoot: sha256.Sum256([]byte("root")),
		}
		block := RenderBlock(&header)
		encoded, err := message.CanonicalHeader(block.Header)
		hash := header.Hash()
		if sum := sha256.Sum256(encoded); err != nil || sum != hash || !bytes.Equal(block.Hash, hash[:]) {
			t.Fatalf("%v: the client hashes the header to %x, the ledger to %s, and the answer says %x", err, sum, hash,
				block.Hash)
		}
	})
}

// TestPartsJoin: the parts of a block, whatever their size, have each operation once and in order, and none but a lone
// operation is longer than asked.
func TestPartsJoin(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		transactions := make([]*machine.Transaction, rapid.IntRange(1, 5).Draw(t, "transactions"))
		whole := NewPart(math.MaxInt)
		for i := range transactions {
			transactions[i] = drawTransaction(t)
			transactions[i].Position = uint32(i)
			x := *transactions[i]
			whole.Add(&x, 0)
		}
		limit := rapid.IntRange(1, 2_000).Draw(t, "limit")
		var joined []*seqledgerv1.Transaction
		for start := new(seqledgerv1.BlockPosition); start != nil; {
			part := NewPart(limit)
			first := int(start.GetOperation())
			for _, x := range transactions[start.GetTransaction():] {
				x := *x
				if !part.Add(&x, first) {
					break
				}
				first = 0
			}
			if part.Behind || len(part.Transactions) == 0 {
				t.Fatalf("the part from %v on is empty", start)
			}
			size, operations := 0, 0
			for i, m := range part.Transactions {
				size, operations = size+proto.Size(m)+FieldBytes, operations+len(m.Operations)
				if int(m.FirstOperation) > 0 && i > 0 {
					t.Fatal("a transaction begins in the middle of a part:", m)
				}
				if m.FirstOperation > 0 {
					joined[len(joined)-1].Operations = append(joined[len(joined)-1].Operations, m.Operations...)
					continue
				}
				joined = append(joined, m)
			}
			if size > limit && operations > 1 {
				t.Fatalf("a part of %d operations has %d bytes, more than %d", operations, size, limit)
			}
			start = part.Next
		}
		must.Equal(t, len(joined), len(whole.Transactions), "%d transactions are joined")
		for i := range joined {
			if !proto.Equal(joined[i], whole.Transactions[i]) {
				t.Fatalf("joined: %v, want %v", joined[i], whole.Transactions[i])
			}
		}
		last := *transactions[0]
		if part := NewPart(limit); part.Add(&last, len(last.Operations)) || !part.Behind {
			t.Fatal("a part behind the last operation was made")
		}
	})
}

// TestRenderState: the expiry of a stream does not overflow, and what is not there is left out.
func TestRenderState(t *testing.T) {
	t.Parallel()
	config := machine.DefaultConfig()
	state := machine.StreamState{CreatedIndex: 1, Session: 2, Last: 3, LastSeen: 4e9}
	got := RenderState(state, nil, config)
	left := got.ExpiresAt.AsTime().Sub(got.LastSeen.AsTime()).Nanoseconds()
	if left != config.ClientTTL || got.LastRequestHash != "" || got.LastIdempotencyKey != "" ||
		got.LastCommittedSequence != 3 || got.Session != 2 || got.CreatedIndex != 1 {
		t.Error(got)
	}
	newest := receiptOf(3, 1)
	newest.Key = machine.Key{Present: true}
	if got = RenderState(state, newest, config); len(got.LastRequestHash) != 32 || len(got.LastIdempotencyKey) != 36 {
		t.Error(got)
	}
	config.ClientTTL = math.MaxInt64
	if got = RenderState(state, nil, config); got.ExpiresAt.AsTime().UnixNano() != math.MaxInt64 {
		t.Error("the end of time is", got.ExpiresAt.AsTime())
	}
	check.Equal(t, RenderConfig(config).ClientTtl.AsDuration().Nanoseconds(), math.MaxInt64,
		"the longest time to live is: %v")
}

// TestRenderTheRest: an entity, and a proof with its path in order.
func TestRenderTheRest(t *testing.T) {
	t.Parallel()
	id := machine.NewTxID(7, 9)
	e := RenderEntity(&machine.Entity{Key: "k", Value: []byte("v"), Version: 9, ExpiresAt: 1_000_000_002}, id)
	if e.Key != "k" || string(e.Value) != "v" || e.Version != 9 || e.TxId != id.String() ||
		e.ExpiresAt.Seconds != 1 || e.ExpiresAt.Nanos != 2 {
		t.Error(e)
	}
	if e = RenderEntity(new(machine.Entity), id); e.ExpiresAt != nil {
		t.Error("an entity that stays expires at", e.ExpiresAt)
	}
	path := []machine.Hash{{1}, {2}, {3}}
	p := RenderProof(&machine.Proof{Header: machine.BlockHeader{TxCount: 8}, LeafIndex: 5, Path: path})
	if p.LeafIndex != 5 || p.TreeSize != 8 || len(p.Path) != len(path) {
		t.Fatal(p)
	}
	for i := range path {
		if !bytes.Equal(p.Path[i], path[i][:]) {
			t.Errorf("step %d of the path is %x", i, p.Path[i])
		}
	}
}
