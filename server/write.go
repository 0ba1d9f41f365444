package server

import (
	"context"
	"fmt"
	"math"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// write commits one write. When ctx ends first the answer is OUTCOME_UNKNOWN.
func (s *Server) write(ctx context.Context, m *seqledgerv1.WriteRequest) (*seqledgerv1.WriteResponse, error) {
	var w machine.Write
	if err := newConverter(s.caller(ctx).Actor(), m).write(&w, m); err != nil {
		return nil, err
	}
	if s.isDraining() {
		return nil, ledger.ErrDraining
	}
	// The last use of the request, so that it takes no memory while the disk is
	// waited for: a thousand operations take a quarter of a megabyte.
	includeProof := m.IncludeProof
	out, err := s.options.Ledger.Write(ctx, &w)
	if err != nil {
		return nil, err
	}
	if err := outcomeError(&out); err != nil {
		return nil, err
	}
	receipt := renderReceipt(&out.Receipt)
	if includeProof {
		if err := s.addProof(ctx, receipt); err != nil {
			return nil, err
		}
	}
	s.metrics.success(methodWrite, out.Code)
	return &seqledgerv1.WriteResponse{Receipt: receipt}, nil
}

// addProof reads the proof of a committed write. The write stands whatever
// happens here, so a failure must not look like a refusal.
func (s *Server) addProof(ctx context.Context, receipt *seqledgerv1.Receipt) error {
	proof, err := s.proof(ctx, receipt.Index)
	if err != nil {
		return fmt.Errorf("%w: the proof could not be read: %w", ledger.ErrOutcomeUnknown, err)
	}
	receipt.BlockHeader, receipt.Proof = renderHeader(&proof.Header), renderProof(&proof)
	return nil
}

func (s *Server) proof(ctx context.Context, index uint64) (proof machine.Proof, err error) {
	err = s.options.Ledger.View(ctx, func(v machine.View) (err error) {
		proof, err = v.Proof(index)
		return err
	})
	return proof, err
}

// openSession takes a stream over.
func (s *Server) openSession(
	ctx context.Context, m *seqledgerv1.OpenSessionRequest,
) (*seqledgerv1.OpenSessionResponse, error) {
	if len(m.AttemptId) != 16 {
		return nil, &machine.FieldError{
			Field: "attempt_id", Problem: fmt.Sprintf("must have 16 bytes, has %d", len(m.AttemptId)),
		}
	}
	if m.Scope == nil {
		return nil, &machine.FieldError{Field: "scope", Problem: "is required"}
	}
	o := machine.OpenSession{
		Scope: scopeOf(m.Scope), ClientID: m.ClientId, Actor: s.caller(ctx).Actor(), AttemptID: [16]byte(m.AttemptId),
		ExpectedSession: m.ExpectedSession,
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if s.isDraining() {
		return nil, ledger.ErrDraining
	}
	out, err := s.options.Ledger.OpenSession(ctx, &o)
	if err != nil {
		return nil, err
	}
	if err := outcomeError(&out); err != nil {
		return nil, err
	}
	stream := machine.NamedStream{Scope: o.Scope, ClientID: o.ClientID, StreamState: out.Stream}
	newest, err := s.newestReceipt(ctx, &stream)
	if err != nil {
		return nil, fmt.Errorf("%w: the session is open, its state could not be read: %w", ledger.ErrOutcomeUnknown, err)
	}
	s.metrics.success(methodOpenSession, out.Code)
	return &seqledgerv1.OpenSessionResponse{
		State: renderState(out.Stream, newest, out.Config), PreviousSession: out.PreviousSession,
	}, nil
}

// newestReceipt returns the receipt of the last committed write of a stream,
// as it was; nil when there is none, or when the stream has gone on since.
func (s *Server) newestReceipt(ctx context.Context, stream *machine.NamedStream) (*machine.Receipt, error) {
	if stream.Last == 0 {
		return nil, nil //nolint:nilnil // No receipt is a good answer.
	}
	var receipts []machine.Receipt
	err := s.options.Ledger.View(ctx, func(v machine.View) (err error) {
		receipts, err = v.Receipts(stream.Scope, stream.ClientID, 1)
		return err
	})
	if err != nil || len(receipts) == 0 || receipts[0].Sequence != stream.Last {
		return nil, err
	}
	return &receipts[0], nil
}

// renderState describes a stream that is there.
func renderState(
	stream machine.StreamState, newest *machine.Receipt, config machine.Config,
) *seqledgerv1.ClientState {
	state := &seqledgerv1.ClientState{
		Status:                seqledgerv1.ClientStatus_CLIENT_STATUS_ACTIVE,
		LastCommittedSequence: stream.Last, Session: stream.Session, CreatedIndex: stream.CreatedIndex,
		LastSeen: timeOf(stream.LastSeen), ReceiptWindow: uint32(config.ReceiptWindow),
		// A TTL may be as long as time itself.
		ExpiresAt: timeOf(stream.LastSeen + min(config.ClientTTL, math.MaxInt64-stream.LastSeen)),
	}
	if newest != nil {
		state.LastIdempotencyKey = renderKey(newest.Key)
		state.LastRequestHash = renderHash(newest.RequestHash)
	}
	return state
}
