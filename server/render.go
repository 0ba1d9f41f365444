package server

import (
	"encoding/hex"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// timeOf converts Unix nanoseconds, which are never negative; 0 means none.
func timeOf(nanoseconds int64) *timestamppb.Timestamp {
	if nanoseconds == 0 {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: nanoseconds / 1e9, Nanos: int32(nanoseconds % 1e9)}
}

func renderScope(s machine.Scope) *seqledgerv1.Scope {
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

func renderReceipt(r *machine.Receipt) *seqledgerv1.Receipt {
	receipt := new(seqledgerv1.Receipt)
	fillReceipt(receipt, r)
	receipt.CommittedAt = timeOf(r.CommittedAt)
	results := make([]seqledgerv1.OperationResult, len(r.Versions))
	receipt.Results = make([]*seqledgerv1.OperationResult, len(r.Versions))
	for i, version := range r.Versions {
		results[i].Version = version
		receipt.Results[i] = &results[i]
	}
	return receipt
}

// fillReceipt sets every field but the time and the results, which the callers allocate
// differently.
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

func renderProof(p *machine.Proof) *seqledgerv1.MerkleProof {
	proof := &seqledgerv1.MerkleProof{LeafIndex: p.LeafIndex, TreeSize: uint64(p.Header.TxCount)}
	for i := range p.Path {
		proof.Path = append(proof.Path, p.Path[i][:])
	}
	return proof
}

func renderHeader(h *machine.BlockHeader) *seqledgerv1.BlockHeader {
	return &seqledgerv1.BlockHeader{
		Scope: renderScope(h.Scope), Height: h.Height, PreviousHash: h.PreviousHash[:], TxRoot: h.TxRoot[:],
		TxCount: h.TxCount, CommittedAt: timeOf(h.CommittedAt),
	}
}

// renderBlock renders a block without its transactions.
func renderBlock(h *machine.BlockHeader) *seqledgerv1.Block {
	hash := h.Hash()
	return &seqledgerv1.Block{Header: renderHeader(h), Hash: hash[:]}
}

func renderTransaction(t *machine.Transaction) *seqledgerv1.Transaction {
	transaction := &seqledgerv1.Transaction{
		TxId: t.ID().String(), Scope: renderScope(t.Scope), ClientId: t.ClientID, StreamCreatedIndex: t.CreatedIndex,
		Session: t.Session, Sequence: t.Sequence, IdempotencyKey: renderKey(t.Key),
		RequestHash: renderHash(t.RequestHash), Actor: t.Actor, CommittedAt: timeOf(t.CommittedAt), Index: t.Index,
		BlockHeight: t.BlockHeight, BlockPosition: t.Position,
	}
	for i := range t.Operations {
		transaction.Operations = append(transaction.Operations, renderOperation(&t.Operations[i]))
	}
	return transaction
}

func renderOperation(op *machine.Operation) *seqledgerv1.Operation {
	key, relation, subject := string(op.Key), string(op.Relation), string(op.Subject)
	switch op.Kind {
	case machine.OpSetEntity:
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_SetEntity{SetEntity: &seqledgerv1.SetEntity{
			Key: key, Value: op.Value, Condition: renderCondition(&op.Condition), ExpiresAt: timeOf(op.ExpiresAt),
		}}}
	case machine.OpDeleteEntity:
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_DeleteEntity{
			DeleteEntity: &seqledgerv1.DeleteEntity{Key: key, Condition: renderCondition(&op.Condition)},
		}}
	case machine.OpCreateRelationship:
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_CreateRelationship{
			CreateRelationship: &seqledgerv1.CreateRelationship{Resource: key, Relation: relation, Subject: subject},
		}}
	case machine.OpDeleteRelationship:
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_DeleteRelationship{
			DeleteRelationship: &seqledgerv1.DeleteRelationship{Resource: key, Relation: relation, Subject: subject},
		}}
	case machine.OpAppend:
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_Append{
			Append: &seqledgerv1.Append{Payload: op.Value},
		}}
	case machine.OpExpireEntity:
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_ExpireEntity{
			ExpireEntity: &seqledgerv1.ExpireEntity{Key: key},
		}}
	}
	return new(seqledgerv1.Operation)
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

func renderConfig(c machine.Config) *seqledgerv1.Config {
	return &seqledgerv1.Config{
		EvictionInterval: c.EvictionInterval,
		ClientTtl:        &durationpb.Duration{Seconds: c.ClientTTL / 1e9, Nanos: int32(c.ClientTTL % 1e9)},
		EvictionLimit:    c.EvictionLimit, ReceiptWindow: c.ReceiptWindow, MaxStreams: c.MaxStreams,
	}
}

func renderEntity(e *machine.Entity, id machine.TxID) *seqledgerv1.Entity {
	return &seqledgerv1.Entity{
		Key: e.Key, Value: e.Value, Version: e.Version, ExpiresAt: timeOf(e.ExpiresAt), TxId: id.String(),
	}
}
