package wire

import (
	"encoding/hex"
	"math"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Timestamp converts Unix nanoseconds, which are never negative; 0 means none.
func Timestamp(nanoseconds int64) *timestamppb.Timestamp {
	if nanoseconds == 0 {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: nanoseconds / 1e9, Nanos: int32(nanoseconds % 1e9)}
}

// RenderScope renders a scope.
func RenderScope(s machine.Scope) *seqledgerv1.Scope {
	return &seqledgerv1.Scope{Organization: s.Organization, Vault: s.Vault}
}

func renderKey(k machine.Key) string {
	if !k.Present {
		return ""
	}
	return machine.FormatUUID(k.UUID)
}

// renderHash avoids the second allocation of hex.EncodeToString.
func renderHash(h machine.RequestHash) string {
	var text [2 * len(h)]byte
	hex.Encode(text[:], h[:])
	return string(text[:])
}

// RenderReceipt renders a receipt without a proof.
func RenderReceipt(r *machine.Receipt) *seqledgerv1.Receipt {
	receipt := new(seqledgerv1.Receipt)
	fillReceipt(receipt, r)
	receipt.CommittedAt = Timestamp(r.CommittedAt)
	results := make([]seqledgerv1.OperationResult, len(r.Versions))
	receipt.Results = make([]*seqledgerv1.OperationResult, len(r.Versions))
	for i, version := range r.Versions {
		results[i].Version = version
		receipt.Results[i] = &results[i]
	}
	return receipt
}

// fillReceipt sets every field but the time and the results, which the callers allocate differently.
func fillReceipt(receipt *seqledgerv1.Receipt, r *machine.Receipt) {
	receipt.TxId = machine.NewTxID(r.LedgerID, r.Index).String()
	receipt.Sequence = r.Sequence
	receipt.Session = r.Session
	receipt.Index = r.Index
	receipt.BlockHeight = r.BlockHeight
	receipt.BlockPosition = r.Position
	receipt.Actor = r.Actor
	receipt.RequestHash = renderHash(r.RequestHash)
	receipt.Replayed = r.Replayed
	receipt.BlockHeader, receipt.Proof = nil, nil
}

// RenderProof renders the path of a proof.
func RenderProof(p *machine.Proof) *seqledgerv1.MerkleProof {
	proof := &seqledgerv1.MerkleProof{LeafIndex: p.LeafIndex, TreeSize: uint64(p.Header.TxCount)}
	for i := range p.Path {
		proof.Path = append(proof.Path, p.Path[i][:])
	}
	return proof
}

// RenderHeader renders the header of a block.
func RenderHeader(h *machine.BlockHeader) *seqledgerv1.BlockHeader {
	return &seqledgerv1.BlockHeader{
		Scope: RenderScope(h.Scope), Height: h.Height, PreviousHash: h.PreviousHash[:], TxRoot: h.TxRoot[:],
		TxCount: h.TxCount, CommittedAt: Timestamp(h.CommittedAt),
	}
}

// RenderBlock renders a block without its transactions.
func RenderBlock(h *machine.BlockHeader) *seqledgerv1.Block {
	hash := h.Hash()
	return &seqledgerv1.Block{Header: RenderHeader(h), Hash: hash[:]}
}

// RenderTransaction renders a transaction without its operations: see Part.
func RenderTransaction(t *machine.Transaction) *seqledgerv1.Transaction {
	x := &seqledgerv1.Transaction{
		TxId: t.ID().String(), Scope: RenderScope(t.Scope), ClientId: t.ClientID, StreamCreatedIndex: t.CreatedIndex,
		Session: t.Session, Sequence: t.Sequence, IdempotencyKey: renderKey(t.Key),
		RequestHash: renderHash(t.RequestHash), Actor: t.Actor, CommittedAt: Timestamp(t.CommittedAt), Index: t.Index,
		BlockHeight: t.BlockHeight, BlockPosition: t.Position, Encoding: 1, Changed: t.Changed(),
	}
	if k := t.Keyed; k != nil {
		x.Encoding = 2
		x.Keyed = &seqledgerv1.KeyedIdentity{Namespace: k.Namespace, Principal: k.Principal, KeyHash: k.Key[:]}
	}
	return x
}

// renderOperation renders an operation as it was asked for.
func renderOperation(op *machine.Operation) *seqledgerv1.Operation {
	m := message.Operation{
		Kind: message.Kind(op.Kind), // the numbers are the same
		Key:  string(op.Key), Relation: string(op.Relation), Subject: string(op.Subject), Value: op.Value,
		Condition: renderCondition(&op.Condition), ExpiresAt: Timestamp(op.ExpiresAt),
	}
	return m.Message()
}

func renderCondition(c *machine.Condition) *seqledgerv1.Condition {
	switch c.Kind {
	case machine.ConditionNotExists:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_NotExists{NotExists: true}}
	case machine.ConditionMustExist:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_MustExist{MustExist: true}}
	case machine.ConditionVersion:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_Version{Version: c.Version}}
	case machine.ConditionValueEquals:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: c.Value}}
	}
	return nil
}

// RenderConfig renders the replicated configuration.
func RenderConfig(c machine.Config) *seqledgerv1.Config {
	return &seqledgerv1.Config{
		EvictionInterval: c.EvictionInterval,
		ClientTtl:        &durationpb.Duration{Seconds: c.ClientTTL / 1e9, Nanos: int32(c.ClientTTL % 1e9)},
		EvictionLimit:    c.EvictionLimit, ReceiptWindow: c.ReceiptWindow, MaxStreams: c.MaxStreams,
		RetainBlocks: &durationpb.Duration{Seconds: c.RetainBlocks / 1e9, Nanos: int32(c.RetainBlocks % 1e9)},
		RetainBytes:  c.RetainBytes,
	}
}

// RenderRetention renders what of the history is kept.
func RenderRetention(r machine.Retained) *seqledgerv1.Retention {
	return &seqledgerv1.Retention{Horizon: r.Horizon.Index(), GoneUntil: Timestamp(r.Since), Bytes: r.Bytes}
}

// RenderEntity renders an entity. The id is that of the transaction that set it.
func RenderEntity(e *machine.Entity, id machine.TxID) *seqledgerv1.Entity {
	return &seqledgerv1.Entity{
		Key: e.Key, Value: e.Value, Version: e.Version, ExpiresAt: Timestamp(e.ExpiresAt), TxId: id.String(),
	}
}

// RenderState renders an existing stream. The newest receipt may be nil.
func RenderState(
	stream machine.StreamState, newest *machine.Receipt, config machine.Config,
) *seqledgerv1.ClientState {
	state := &seqledgerv1.ClientState{
		Status:                seqledgerv1.ClientStatus_CLIENT_STATUS_ACTIVE,
		LastCommittedSequence: stream.Last, Session: stream.Session, CreatedIndex: stream.CreatedIndex,
		LastSeen: Timestamp(stream.LastSeen), ReceiptWindow: uint32(config.ReceiptWindow),
		// The sum may overflow, because a TTL has no upper bound.
		ExpiresAt: Timestamp(stream.LastSeen + min(config.ClientTTL, math.MaxInt64-stream.LastSeen)),
	}
	if newest != nil {
		state.LastIdempotencyKey = renderKey(newest.Key)
		state.LastRequestHash = renderHash(newest.RequestHash)
	}
	return state
}

// Part collects transactions until they fill a message.
type Part struct {
	Transactions []*seqledgerv1.Transaction
	Next         *seqledgerv1.BlockPosition // where the next part begins; nil: nothing is omitted
	Behind       bool                       // the first operation is not there
	limit, size  int
}

// NewPart returns an empty part of at most limit bytes.
func NewPart(limit int) *Part { return &Part{limit: limit} }

// FieldBytes bounds the encoding overhead of a message in a list.
const FieldBytes = 6

// Add adds the operations of a transaction from the given one on, and reports whether there is room for more. A part
// has at least one operation, whatever its size.
func (p *Part) Add(t *machine.Transaction, first int) (more bool) {
	if first > 0 && first >= len(t.Operations) {
		p.Behind = true
		return false
	}
	x := RenderTransaction(t)
	x.FirstOperation = uint32(first)
	size := p.size + proto.Size(x) + FieldBytes
	for i := first; i < len(t.Operations); i++ {
		op := renderOperation(&t.Operations[i])
		size += proto.Size(op) + FieldBytes
		if size > p.limit && (len(p.Transactions) > 0 || len(x.Operations) > 0) {
			p.Next = &seqledgerv1.BlockPosition{Transaction: t.Position, Operation: uint32(i)}
			break
		}
		x.Operations = append(x.Operations, op)
		p.size = size
	}
	if len(x.Operations) > 0 {
		p.Transactions = append(p.Transactions, x)
	}
	return p.Next == nil
}
