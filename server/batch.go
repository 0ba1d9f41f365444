package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

// batch is a frame in progress: its valid writes are one submission, its invalid ones are already answered.
type batch struct {
	began   time.Time // when the frame was there
	size    int       // writes in the frame
	weight  int64     // what it takes of the stream's budget, until it is answered
	invalid []placed
	writes  []batchWrite // the valid ones

	submission *ledger.Submission // nil: see refused
	refused    *seqledgerv1.WriteError
	refusal    error // that refused is about
	// outcomes of the valid writes, after settle. For a refused batch they have the outcomes of writes that had been
	// committed before; the others have the Code 0.
	outcomes []machine.Outcome
	// leave reports that the writes are no longer in the engine. It is nil if they never were, or are not counted.
	leave func()

	one [1]batchWrite // the memory of writes in a frame of one
}

// batchWrite is what a batch keeps of a write until it is answered.
type batchWrite struct {
	stream   *authorizationKey
	sequence uint64
	charge   charge
	proofOf  *machine.Scope // its scope, if it asks for a proof; nil: it does not
}

// placed is the answer to an invalid write.
type placed struct {
	place int
	err   *seqledgerv1.WriteError
	about subject
}

// about names the write in a refusal.
func (w *batchWrite) about() subject { return subject{w.stream.scope, w.stream.clientID, w.sequence} }

// newBatch converts a frame and submits its permitted writes. See submit for hurry and here. The error is that of ctx.
func (s *Server) newBatch(
	ctx context.Context, f *wire.Frame, authorized *authorizationCache, p admission.Party, hurry <-chan struct{},
	here bool,
) (*batch, error) {
	b := &batch{size: len(f.Writes), began: time.Now()}
	c := converters.Get().(*converter) //nolint:forcetypeassert // The pool holds nothing else.
	defer c.release()
	// This is the last use of the frame: while its writes wait, their commands alone take memory.
	commands := c.convert(b, f, authorized)
	if len(commands) == 0 {
		return b, nil
	}
	err := error(ledger.ErrDraining)
	if !s.isDraining() {
		err = s.submit(ctx, b, commands, p, hurry, here)
	}
	if err == nil {
		return b, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	b.refuse(ctx, s, err)
	if isOutOfSpace(err) {
		b.outcomes, err = s.options.Ledger.Repeated(ctx, commands)
		if err != nil && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return b, nil
}

// submit submits the commands of a batch. For a stream, whose hurry is not nil, it waits while the credential exceeds
// its rate, until hurry is closed, or its share of the engine, or while the queue is full; for a single call it does
// not wait. With here, the goroutine of a stream may commit the batch itself.
func (s *Server) submit(
	ctx context.Context, b *batch, commands []machine.Command, p admission.Party, hurry <-chan struct{}, here bool,
) (err error) {
	var leave func()
	work := admission.Work{Writes: len(commands), Bytes: b.bytes()}
	if hurry == nil {
		if leave, err = s.admission.Write(ctx, p, work); err == nil {
			b.submission, err = s.options.Ledger.SubmitNow(ctx, commands)
		}
	} else {
		leave, err = s.admission.AwaitWrite(ctx, hurry, p, work)
		if err == nil && here {
			b.submission, err = s.options.Ledger.SubmitHere(ctx, commands)
		} else if err == nil {
			b.submission, err = s.options.Ledger.Submit(ctx, commands)
		}
	}
	if b.leave = leave; err != nil {
		b.left()
		b.submission = nil
	}
	return err
}

// converter is the memory of the commands of one frame until they are submitted. It is pooled, not kept by a stream,
// because most streams are idle most of the time.
type converter struct {
	encoder  wire.Encoder
	commands []machine.Command
}

var converters = sync.Pool{New: func() any { return new(converter) }}

// maxKeptCommands is how many commands a pooled converter has memory for.
const maxKeptCommands = 256

// release gives the memory back. The commands are no longer used.
func (c *converter) release() {
	c.encoder.Reset()
	clear(c.commands) // they hold strings of their requests
	if c.commands = c.commands[:0]; cap(c.commands) > maxKeptCommands {
		c.commands = nil
	}
	converters.Put(c)
}

// convert returns the commands of the writes that are valid and permitted. They are valid until release.
func (c *converter) convert(b *batch, f *wire.Frame, authorized *authorizationCache) []machine.Command {
	if b.writes = b.one[:0]; len(f.Writes) > 1 {
		b.writes = make([]batchWrite, 0, len(f.Writes))
	}
	actor := authorized.credential.Actor()
	for i, m := range f.Writes {
		var command machine.Command
		var stream *authorizationKey
		err := f.Bad[i]
		if err == nil {
			command, err = c.encoder.Encode(m, actor)
		}
		if err == nil {
			stream, err = authorized.write(m)
		}
		if err != nil {
			e, _ := writeError(err)
			b.invalid = append(b.invalid, placed{i, e, subjectOfWrite(m)})
			continue
		}
		kept := batchWrite{stream: stream, sequence: m.Sequence, charge: chargeOfWrite(m, actor)}
		if m.IncludeProof {
			scope := command.Write().Scope
			kept.proofOf = &scope
		}
		b.writes, c.commands = append(b.writes, kept), append(c.commands, command)
	}
	return c.commands
}

// refuse makes an error that of all its valid writes.
func (b *batch) refuse(ctx context.Context, s *Server, err error) {
	b.refused, b.refusal = s.writeErrorOf(ctx, err), err
}

// bytes returns the bytes of all operations of the batch.
func (b *batch) bytes() (n int) {
	for i := range b.writes {
		n += b.writes[i].charge.engine
	}
	return n
}

// storedBytes returns what this batch has stored.
func (b *batch) storedBytes() (n int) {
	for i := range b.outcomes {
		n += b.writes[i].charge.of(&b.outcomes[i])
	}
	return n
}

// stored adds what a batch has stored to a party's account.
func (s *Server) stored(p admission.Party, b *batch) {
	if s != nil && s.admission.Shares() {
		s.admission.Stored(p, b.storedBytes())
	}
}

// left reports that the writes are no longer in the engine. It may be called twice.
func (b *batch) left() {
	if b.leave != nil {
		b.leave()
		b.leave = nil
	}
}

// settled reports whether the outcomes are available.
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

// settle stores the outcomes of a settled batch. It ignores the end of ctx, because what was committed counts.
func (b *batch) settle(ctx context.Context, s *Server) {
	if b.submission == nil {
		return
	}
	outcomes, err := b.submission.Wait(context.WithoutCancel(ctx))
	b.left()
	if err != nil {
		b.refuse(ctx, s, err)
	}
	b.outcomes = outcomes
}

// writeErrorOf returns the WriteError of an error that concerns writes. An unexpected error becomes an unknown outcome,
// because it does not show that the write was not executed.
func (s *Server) writeErrorOf(ctx context.Context, err error) *seqledgerv1.WriteError {
	e, code := writeError(err)
	if e == nil {
		e, code = writeError(errors.Join(ledger.ErrOutcomeUnknown, err))
	}
	if code == connect.CodeInternal {
		logOnce(ctx, s.options.Logger, err)
		e.Message = withReference(ctx, e.Message)
	}
	return e
}

// maxResults is the number of results after which no further frame joins a response.
const maxResults = wire.MaxFrameWrites

// answers builds the responses of one stream, or the one of a call.
type answers struct {
	wire.Results

	method method // which it counts for
	tally  tally
	// tree is the tree of the last proof's block in this response, cached because the writes of a frame are in few
	// blocks.
	tree       *machine.BlockTree
	treeScope  machine.Scope
	treeHeight uint64
}

// tally counts what a stream has answered.
type tally struct{ committed, replayed, refused uint64 }

// reset begins the next response.
func (a *answers) reset() {
	a.Reset()
	a.tree = nil
}

// add appends the results of a settled batch, in the order of its writes. Committed bytes are added to the party's
// account.
func (a *answers) add(ctx context.Context, s *Server, p admission.Party, b *batch) {
	if b.refused == nil {
		s.stored(p, b)
	}
	invalid, valid := b.invalid, 0
	for i := range b.size {
		switch {
		case len(invalid) > 0 && invalid[0].place == i:
			a.refused(s, invalid[0].err, invalid[0].about)
			a.AddError(invalid[0].err)
			invalid = invalid[1:]
		case b.refused != nil && (b.outcomes == nil || b.outcomes[valid].Code == 0):
			a.refused(s, b.refused, b.writes[valid].about())
			a.AddError(b.refused)
			valid++
		default:
			a.addOutcome(ctx, s, &b.outcomes[valid], &b.writes[valid])
			valid++
		}
	}
}

// refused counts a refusal.
func (a *answers) refused(s *Server, e *seqledgerv1.WriteError, about subject) {
	s.refused(a.method, e, about)
	a.tally.refused++
}

// addOutcome appends the result of a write.
func (a *answers) addOutcome(ctx context.Context, s *Server, out *machine.Outcome, w *batchWrite) {
	if e := refusal(out, w.sequence); e != nil {
		a.refused(s, e, w.about())
		a.AddError(e)
		return
	}
	m := a.AddReceipt(&out.Receipt)
	if w.proofOf != nil {
		if err := a.addProof(ctx, s, m, *w.proofOf); err != nil {
			e := s.writeErrorOf(ctx, err)
			a.refused(s, e, w.about())
			a.RefuseLast(e)
			return
		}
	}
	s.metrics.success(a.method, out.Code)
	if out.Code == machine.Replayed {
		a.tally.replayed++
	} else {
		a.tally.committed++
	}
}

// addProof adds the proof of a committed write. See Server.addProof.
func (a *answers) addProof(ctx context.Context, s *Server, m *seqledgerv1.Receipt, scope machine.Scope) (err error) {
	if a.treeScope != scope || a.treeHeight != m.BlockHeight {
		a.tree, a.treeScope, a.treeHeight = nil, scope, m.BlockHeight
	}
	a.tree, err = s.addProof(ctx, m, scope, a.tree)
	return err
}
