package server

import (
	"context"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// A WriteBatch is one frame of a WriteStream as a unary call. Its results are those of the frame's writes. What a
// single Write is refused for before it reaches the engine, such as a full queue, is the error of the call, so that
// clients treat both alike.

// mountWriteBatch registers the handler.
func (s *Server) mountWriteBatch(mux *http.ServeMux) {
	procedure := seqledgerv1connect.LedgerServiceWriteBatchProcedure
	mux.Handle(procedure, s.unaryRoad(procedure, writing,
		connect.NewUnaryHandler(procedure, s.writeBatch, s.handlerOptions(writing)...)))
}

// writeBatch commits the writes of one call.
func (s *Server) writeBatch(
	ctx context.Context, r *connect.Request[wire.Frame],
) (_ *connect.Response[seqledgerv1.WriteBatchResponse], err error) {
	f := r.Msg
	if err := s.decode(ctx, f); err != nil {
		return nil, err
	}
	if f.Invalid != nil {
		return nil, f.Invalid
	}
	if len(f.Writes) == 0 {
		return nil, &machine.FieldError{Field: "writes", Problem: "must have at least one element"}
	}
	first := subjectOfWrite(f.Writes[0])
	defer func() { err = aboutCommand(err, first) }()
	if err := s.authorize(ctx, seqledgerv1connect.LedgerServiceWriteBatchProcedure, nil); err != nil {
		return nil, err
	}
	// Many small operations take more memory decoded than encoded.
	if err := callOf(ctx).body.Grow(int64(f.Operations) * decodedOperation); err != nil {
		return nil, err
	}
	party := s.party(ctx)
	// Before the writes are submitted: a refusal must mean that they are not.
	if callOf(ctx).memory, err = s.admission.Answer(ctx, party, maxBatchAnswer(f)); err != nil {
		return nil, err
	}
	b, err := s.newBatch(ctx, f, newAuthorizationCache(s.caller(ctx)), party, nil, false)
	callOf(ctx).releaseBody()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ledger.ErrOutcomeUnknown, err)
	}
	if err := b.await(ctx); err != nil {
		s.abandon(party, b)
		return nil, fmt.Errorf("%w: %w", ledger.ErrOutcomeUnknown, err)
	}
	b.settle(ctx, s)
	if b.refusal != nil && !b.anyRepeated() {
		return nil, b.refusal
	}
	answers := answers{method: methodWriteBatch}
	answers.add(ctx, s, party, b)
	return connect.NewResponse(&seqledgerv1.WriteBatchResponse{Results: answers.Response().Results}), nil
}

// The most that a result can have, in bytes: a receipt or an error with its texts, an error's key, a version for each
// operation, and a proof with its header.
const (
	maxResultBytes  = 512
	maxVersionBytes = 16
	maxProofBytes   = 1_536
)

// maxBatchAnswer returns how many bytes the answer to a batch can have.
func maxBatchAnswer(f *wire.Frame) int {
	size := f.Operations * maxVersionBytes
	for _, w := range f.Writes {
		if size += maxResultBytes + machine.MaxKeyBytes; w.IncludeProof {
			size += maxProofBytes
		}
	}
	return size
}

// anyRepeated reports whether a refused batch has the outcome of a write that was committed before.
func (b *batch) anyRepeated() bool {
	for i := range b.outcomes {
		if b.outcomes[i].Code != 0 {
			return true
		}
	}
	return false
}
