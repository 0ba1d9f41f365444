package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

// write commits one write. When ctx ends first the answer is OUTCOME_UNKNOWN.
func (s *Server) write(ctx context.Context, m *seqledgerv1.WriteRequest) (*seqledgerv1.WriteResponse, error) {
	// The request is not used after the write, so that it takes no memory during the wait for the disk: a thousand
	// operations take a quarter of a megabyte.
	includeProof, scope, sequence := m.IncludeProof, wire.Scope(m.Scope), m.Sequence
	var out machine.Outcome
	var err error
	if wire.IsKeyed(m) {
		out, err = s.writeKeyed(ctx, m)
	} else {
		out, err = s.writeSequenced(ctx, m)
	}
	if err != nil {
		return nil, err
	}
	if err := outcomeError(&out, sequence); err != nil {
		return nil, err
	}
	receipt := wire.RenderReceipt(&out.Receipt)
	if includeProof {
		if _, err := s.addProof(ctx, receipt, scope, nil); err != nil {
			return nil, err
		}
	}
	s.metrics.success(methodWrite, out.Code)
	return &seqledgerv1.WriteResponse{Receipt: receipt}, nil
}

// writeSequenced commits a write of a stream.
func (s *Server) writeSequenced(ctx context.Context, m *seqledgerv1.WriteRequest) (machine.Outcome, error) {
	var encoder wire.Encoder
	actor := s.caller(ctx).Actor()
	encoder.Grow(m.SizeVT() + len(actor) + chargedOperation*len(m.Operations)) // about what it takes
	command, err := encoder.Encode(m, actor)
	if err != nil {
		return machine.Outcome{}, err
	}
	return s.commit(ctx, command, chargeOfWrite(m, actor))
}

// commit submits a write to the engine, within its caller's limits.
func (s *Server) commit(ctx context.Context, command machine.Command, c charge) (machine.Outcome, error) {
	out, err := s.decide(ctx, admission.Work{Writes: 1, Bytes: c.engine}, c.of,
		func(ctx context.Context) (machine.Outcome, error) {
			return s.options.Ledger.WriteEncoded(ctx, &command)
		})
	if isOutOfSpace(err) {
		again, failed := s.options.Ledger.Repeated(ctx, []machine.Command{command})
		if failed == nil && again[0].Code != 0 {
			return again[0], nil
		}
	}
	return out, err
}

// isOutOfSpace reports whether nothing more may be stored, which may last for days. A write that is already stored is
// still answered.
func isOutOfSpace(err error) bool {
	refused, ok := errors.AsType[*admission.Refusal](err)
	return ok && (refused.Bound == admission.StoredBytes || refused.Bound == admission.DiskReserve)
}

// decision is the outcome of a command.
type decision struct {
	outcome machine.Outcome
	err     error
}

// decide submits a command to the engine and waits for its outcome. The command counts for its credential until the
// engine has decided it; then the bytes that stored returns for the outcome count. Both hold whether or not the caller
// still waits.
func (s *Server) decide(
	ctx context.Context, work admission.Work, stored func(*machine.Outcome) int,
	command func(context.Context) (machine.Outcome, error),
) (machine.Outcome, error) {
	if s.isDraining() {
		return machine.Outcome{}, ledger.ErrDraining
	}
	party := s.party(ctx)
	leave, err := s.admission.Write(ctx, party, work)
	if err != nil {
		return machine.Outcome{}, err
	}
	if !s.admission.Shares() { // nothing is counted
		return command(ctx)
	}
	decided := make(chan decision, 1)
	// Ends with the decision, which does not depend on the caller. The credential's share of the engine bounds the
	// number of these goroutines, and Drain waits for them.
	go func() {
		var d decision
		defer func() {
			if p := recover(); p != nil { // no other goroutine recovers it
				d = decision{err: s.panicked(ctx, "decide", p)}
			}
			leave()
			decided <- d
		}()
		d.outcome, d.err = command(context.WithoutCancel(ctx))
		if d.err == nil {
			s.admission.Stored(party, stored(&d.outcome))
		}
	}()
	select {
	case d := <-decided:
		return d.outcome, d.err
	case <-ctx.Done():
		return machine.Outcome{}, fmt.Errorf("%w: %w", ledger.ErrOutcomeUnknown, context.Cause(ctx))
	}
}

// addProof adds the proof of a committed write to its receipt, and returns the tree of its block, which may be given if
// it is known. The write is committed in any case, so a failure must not look like a refusal.
func (s *Server) addProof(
	ctx context.Context, receipt *seqledgerv1.Receipt, scope machine.Scope, tree *machine.BlockTree,
) (_ *machine.BlockTree, err error) {
	if tree == nil {
		tree, err = s.blockTree(ctx, scope, receipt.BlockHeight)
	}
	var proof machine.Proof
	if err == nil {
		proof, err = tree.Proof(receipt.BlockPosition)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the proof could not be read: %w", ledger.ErrOutcomeUnknown, err)
	}
	receipt.BlockHeader, receipt.Proof = wire.RenderHeader(&proof.Header), wire.RenderProof(&proof)
	return tree, nil
}

func (s *Server) blockTree(ctx context.Context, scope machine.Scope, height uint64) (*machine.BlockTree, error) {
	chain, err := s.options.Ledger.Chain(ctx, scope)
	if err != nil {
		return nil, err
	}
	return s.options.Ledger.BlockTree(ctx, chain, height)
}

// openSession takes over a stream.
func (s *Server) openSession(
	ctx context.Context, m *seqledgerv1.OpenSessionRequest,
) (*seqledgerv1.OpenSessionResponse, error) {
	o, err := wire.OpenSession(m, s.caller(ctx).Actor())
	if err != nil {
		return nil, err
	}
	stored := func(out *machine.Outcome) int { return chargeOfSession(m, out) }
	out, err := s.decide(ctx, admission.Work{Writes: 1}, stored,
		func(ctx context.Context) (machine.Outcome, error) { return s.options.Ledger.OpenSession(ctx, o) })
	if err != nil {
		return nil, err
	}
	if err := outcomeError(&out, 0); err != nil {
		return nil, err
	}
	newest, err := s.newestReceipt(ctx, o.Scope, o.ClientID, out.Stream.Last)
	if err != nil {
		return nil, fmt.Errorf("%w: the session is open, its state could not be read: %w", ledger.ErrOutcomeUnknown,
			err)
	}
	s.metrics.success(methodOpenSession, out.Code)
	return &seqledgerv1.OpenSessionResponse{
		State: wire.RenderState(out.Stream, newest, out.Config), PreviousSession: out.PreviousSession,
	}, nil
}

// newestReceipt returns the receipt of a stream's last committed write, or nil if there is none or the stream has newer
// writes.
func (s *Server) newestReceipt(
	ctx context.Context, scope machine.Scope, clientID string, last uint64,
) (*machine.Receipt, error) {
	if last == 0 {
		return nil, nil //nolint:nilnil // A nil receipt is a valid answer.
	}
	var indexes []uint64
	err := s.options.Ledger.View(ctx, func(v machine.View) (err error) {
		indexes, err = v.ReceiptIndexes(scope, clientID, 0, 1)
		return err
	})
	if err != nil {
		return nil, err
	}
	receipts, _, err := s.readReceipts(ctx, indexes)
	if err != nil || len(receipts) == 0 || receipts[0].Sequence != last {
		return nil, err
	}
	return &receipts[0], nil
}
