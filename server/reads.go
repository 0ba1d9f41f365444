package server

import (
	"context"

	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Nothing is applied during a view of the state, so reads copy what they need in short views
// and render it afterwards. Longer reads are split into pieces (ledger.Ledger.Pieces). What
// each answer is consistent with:
//
//   - GetClientState and a page of ListEntities or ListRelationships are of one
//     moment: one view finds the keys, versions and places of everything, and what
//     these lead to (receipts, long values) is in blocks, which never change.
//   - Blocks, transactions, headers and proofs never change; a page of ListBlocks ends
//     where the chain ended when it began.
//   - A page of ListClients has each stream as it stood at some moment of the call.

// clientState is what one view shows of a stream.
type clientState struct {
	config         machine.Config
	stream         machine.StreamState
	found, expired bool
	newest         []uint64 // index of the newest receipt, if there is one
	receipts       []uint64 // indexes of those that are asked for
}

// getClientState returns where a client should resume.
func (s *Server) getClientState(
	ctx context.Context, m *seqledgerv1.GetClientStateRequest,
) (*seqledgerv1.GetClientStateResponse, error) {
	scope, err := wire.RequireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	if err := machine.ValidateClientID(m.ClientId); err != nil {
		return nil, err
	}
	if m.ReceiptsBelow > 0 && !m.IncludeReceipts {
		return nil, &machine.FieldError{Field: "receipts_below", Problem: "needs include_receipts"}
	}
	var c clientState
	err = s.options.Ledger.View(ctx, func(v machine.View) (err error) {
		c.config = v.Config()
		if c.stream, c.found, err = v.Stream(scope, m.ClientId); err != nil {
			return err
		}
		c.expired = v.SessionExpired(c.stream, c.found, m.Session)
		if c.newest, err = v.ReceiptIndexes(scope, m.ClientId, 0, 1); err != nil || !m.IncludeReceipts {
			return err
		}
		c.receipts, err = v.ReceiptIndexes(scope, m.ClientId, m.ReceiptsBelow, maxReceipts)
		return err
	})
	if err != nil {
		return nil, err
	}
	state, err := s.renderClientState(ctx, &c)
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.GetClientStateResponse{State: state}, nil
}

// renderClientState reads the receipts and renders everything.
func (s *Server) renderClientState(ctx context.Context, c *clientState) (*seqledgerv1.ClientState, error) {
	newest, _, err := s.readReceipts(ctx, c.newest)
	if err != nil {
		return nil, err
	}
	state := &seqledgerv1.ClientState{
		Status: seqledgerv1.ClientStatus_CLIENT_STATUS_UNKNOWN, ReceiptWindow: uint32(c.config.ReceiptWindow),
	}
	if c.found {
		// The newest receipt has the last key and hash.
		var last *machine.Receipt
		if len(newest) > 0 {
			last = &newest[0]
		}
		state = wire.RenderState(c.stream, last, c.config)
	}
	if c.expired {
		state.Status = seqledgerv1.ClientStatus_CLIENT_STATUS_EXPIRED
	}
	receipts, all, err := s.readReceipts(ctx, c.receipts)
	if err != nil {
		return nil, err
	}
	for i := range receipts {
		state.Receipts = append(state.Receipts, wire.RenderReceipt(&receipts[i]))
	}
	if !all {
		state.NextReceiptsBelow = receipts[len(receipts)-1].Sequence
	}
	return state, nil
}

// maxReceipts is the largest possible receipt window.
const maxReceipts = 1_024

// The maximum size of a receipt in an answer: its own fields with the longest actor, and a
// result for each operation.
const (
	receiptBytes = 1_024
	resultBytes  = 16
)

// readReceipts reads the receipts at these indexes, or as many of the first of them as
// fit in an answer.
func (s *Server) readReceipts(ctx context.Context, indexes []uint64) (receipts []machine.Receipt, all bool, err error) {
	size := 0
	more := func() bool { return len(receipts) < len(indexes) && size < wire.MaxPageBytes }
	if !more() {
		return nil, true, nil
	}
	err = s.options.Ledger.Pieces(ctx, func(v machine.View) (bool, error) {
		r, err := v.ReceiptAt(indexes[len(receipts)])
		receipts = append(receipts, r)
		size += receiptBytes + resultBytes*len(r.Versions)
		return more(), err
	})
	return receipts, len(receipts) == len(indexes), err
}

// getEntity reads one entity.
func (s *Server) getEntity(
	ctx context.Context, m *seqledgerv1.GetEntityRequest,
) (*seqledgerv1.GetEntityResponse, error) {
	scope, err := wire.RequireScope(m.Scope)
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
		return nil, notFound(err, "entity %q of %s", wire.Clip(m.Key), scope)
	}
	return &seqledgerv1.GetEntityResponse{Entity: wire.RenderEntity(&entity, id)}, nil
}
