package server

import (
	"context"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Reads copy what they need out of a view and encode it afterwards, because
// nothing is applied while a view is open.

// requireScope checks the scope of a read.
func requireScope(m *seqledgerv1.Scope) (machine.Scope, error) {
	if m == nil {
		return machine.Scope{}, &machine.FieldError{Field: "scope", Problem: "is required"}
	}
	scope := scopeOf(m)
	return scope, scope.Validate("scope")
}

// getClientState tells a client that lost its place where to resume.
func (s *Server) getClientState(
	ctx context.Context, m *seqledgerv1.GetClientStateRequest,
) (*seqledgerv1.GetClientStateResponse, error) {
	scope, err := requireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	if err := machine.ValidateClientID(m.ClientId); err != nil {
		return nil, err
	}
	limit := 1 // the newest has the last key and hash
	if m.IncludeReceipts {
		limit = maxReceipts
	}
	var stream machine.StreamState
	var config machine.Config
	var found, expired bool
	var receipts []machine.Receipt
	err = s.options.Ledger.View(ctx, func(v machine.View) (err error) {
		config = v.Config()
		if stream, found, err = v.Stream(scope, m.ClientId); err != nil {
			return err
		}
		expired = v.SessionExpired(stream, found, m.Session)
		receipts, err = v.Receipts(scope, m.ClientId, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	state := &seqledgerv1.ClientState{
		Status: seqledgerv1.ClientStatus_CLIENT_STATUS_UNKNOWN, ReceiptWindow: uint32(config.ReceiptWindow),
	}
	if found {
		var newest *machine.Receipt
		if len(receipts) > 0 {
			newest = &receipts[0]
		}
		state = renderState(stream, newest, config)
	}
	if expired {
		state.Status = seqledgerv1.ClientStatus_CLIENT_STATUS_EXPIRED
	}
	if m.IncludeReceipts {
		for i := range receipts {
			state.Receipts = append(state.Receipts, renderReceipt(&receipts[i]))
		}
	}
	return &seqledgerv1.GetClientStateResponse{State: state}, nil
}

// maxReceipts is the largest window there can be.
const maxReceipts = 1_024

// getEntity reads one entity.
func (s *Server) getEntity(
	ctx context.Context, m *seqledgerv1.GetEntityRequest,
) (*seqledgerv1.GetEntityResponse, error) {
	scope, err := requireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	if err := machine.ValidateKey(m.Key, "key"); err != nil {
		return nil, err
	}
	var entity machine.Entity
	var id machine.TxID
	err = s.options.Ledger.View(ctx, func(v machine.View) (err error) {
		entity, err = v.Entity(scope, m.Key)
		id = v.TxIDAt(entity.Version)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.GetEntityResponse{Entity: renderEntity(&entity, id)}, nil
}

// getTransaction reads one committed write.
func (s *Server) getTransaction(
	ctx context.Context, m *seqledgerv1.GetTransactionRequest,
) (*seqledgerv1.GetTransactionResponse, error) {
	id, err := machine.ParseTxID(m.TxId)
	if err != nil {
		return nil, err
	}
	var transaction machine.Transaction
	var proof machine.Proof
	err = s.options.Ledger.View(ctx, func(v machine.View) (err error) {
		if transaction, err = v.Transaction(id); err != nil {
			return err
		}
		// The same answer as for one that is not there, and before the proof is
		// made, which takes longer than looking for it.
		if s.caller(ctx).Read(transaction.Scope) != nil {
			return machine.ErrNotFound
		}
		if !m.IncludeProof {
			return nil
		}
		proof, err = v.Proof(transaction.Index)
		return err
	})
	if err != nil {
		return nil, err
	}
	answer := &seqledgerv1.GetTransactionResponse{Transaction: renderTransaction(&transaction)}
	if m.IncludeProof {
		answer.BlockHeader, answer.Proof = renderHeader(&proof.Header), renderProof(&proof)
	}
	return answer, nil
}

// getBlock reads one block of a scope.
func (s *Server) getBlock(ctx context.Context, m *seqledgerv1.GetBlockRequest) (*seqledgerv1.GetBlockResponse, error) {
	scope, err := requireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	if m.Height == 0 {
		return nil, &machine.FieldError{Field: "height", Problem: "must be at least 1"}
	}
	var block machine.Block
	err = s.options.Ledger.View(ctx, func(v machine.View) (err error) {
		block, err = v.Block(scope, m.Height)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.GetBlockResponse{Block: renderBlock(&block)}, nil
}
