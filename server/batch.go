package server

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// batch is a frame under way: its valid writes are one submission, its invalid
// ones have their answer already.
type batch struct {
	size    int   // writes in the frame
	room    int64 // that it takes of the stream's, until it is answered
	invalid []placed
	proofs  []bool // which of the valid ones asked for a proof; nil: none

	submission *ledger.Submission // nil: see refused
	refused    *seqledgerv1.WriteError
	outcomes   []machine.Outcome // of the valid writes, after settle
}

// placed is the answer to an invalid write.
type placed struct {
	place int
	err   *seqledgerv1.WriteError
}

// newBatch converts a frame and submits what is permitted of it. It waits while
// the queue is full. The error is that of ctx.
func (s *Server) newBatch(ctx context.Context, f *frame, permits *permits) (*batch, error) {
	b := &batch{size: len(f.writes)}
	writes := b.convert(f, permits)
	if len(writes) == 0 {
		return b, nil
	}
	err := error(ledger.ErrDraining)
	if !s.isDraining() {
		b.submission, err = s.options.Ledger.Submit(ctx, writes)
	}
	if err == nil {
		return b, nil
	}
	b.submission = nil
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	b.refused = s.writeErrorOf(ctx, err)
	return b, nil
}

// convert returns the writes that are valid and permitted.
func (b *batch) convert(f *frame, permits *permits) []*machine.Write {
	c := newConverter(permits.credential.Actor(), f.writes...)
	memory := make([]machine.Write, len(f.writes))
	writes := make([]*machine.Write, 0, len(f.writes))
	for i, m := range f.writes {
		err := f.bad[i]
		if err == nil {
			err = c.write(&memory[i], m)
		}
		if err == nil {
			err = permits.write(m)
		}
		if err != nil {
			e, _ := writeError(err)
			b.invalid = append(b.invalid, placed{i, e})
			continue
		}
		if m.IncludeProof && b.proofs == nil {
			b.proofs = make([]bool, len(f.writes))
		}
		if m.IncludeProof {
			b.proofs[len(writes)] = true
		}
		writes = append(writes, &memory[i])
	}
	return writes
}

// settled tells whether settle would return at once.
func (b *batch) settled() bool {
	if b.submission == nil || b.submission.Done() == nil {
		return true
	}
	select {
	case <-b.submission.Done():
		return true
	default:
		return false
	}
}

// settle waits for the outcomes. The error is that of ctx.
func (b *batch) settle(ctx context.Context, s *Server) error {
	if b.submission == nil {
		return nil
	}
	outcomes, err := b.submission.Wait(ctx)
	if err != nil && ctx.Err() != nil && !b.settled() {
		return context.Cause(ctx)
	}
	if err != nil {
		b.refused = s.writeErrorOf(ctx, err)
	}
	b.outcomes = outcomes
	return nil
}

// writeErrorOf returns the WriteError of an error that concerns writes. One
// that nothing is known about is an unknown outcome: anything else would be a
// promise.
func (s *Server) writeErrorOf(ctx context.Context, err error) *seqledgerv1.WriteError {
	e, code := writeError(err)
	if e == nil {
		e, code = writeError(errors.Join(ledger.ErrOutcomeUnknown, err))
	}
	if code == connect.CodeInternal {
		blame(ctx, s.options.Logger, err)
		e.Message = withReference(ctx, e.Message)
	}
	return e
}
