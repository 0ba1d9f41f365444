package ledger

import (
	"context"
	"slices"
	"sync"

	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Submission is a group of commands on its way into the log.
type Submission struct {
	engine   engine.Submission
	done     chan struct{} // nil: nothing had to be proposed
	admitted chan bool     // for one that waits for room: whether it is in the queue now
	single   bool          // one command, used again; see Ledger.single
}

// owner returns the submission that the engine knows.
func owner(s *engine.Submission) *Submission {
	return s.Owner.(*Submission) //nolint:forcetypeassert // See newSubmission.
}

func newSubmission(single bool) *Submission {
	s := &Submission{single: single}
	s.engine.Owner = s
	return s
}

// single returns an empty submission for one command, for decide, which gives it back. It is used again, because each
// takes five pieces of memory otherwise. The pool is the ledger's own: a channel that was made in a bubble of
// testing/synctest must not come to a ledger outside of it.
func (l *Ledger) single() *Submission {
	if s, ok := l.singles.Get().(*Submission); ok {
		return s
	}
	s := newSubmission(true)
	s.done = make(chan struct{}, 1)
	return s
}

// freeSingle gives a single submission to the next call. It must be answered, or not be in the queue: nothing else may
// know it any more.
func (l *Ledger) freeSingle(s *Submission) {
	s.engine.Reset(longBuffer)
	l.singles.Put(s)
}

// answered wakes the caller, once all commands are decided.
func (s *Submission) answered() {
	if s.single {
		s.done <- struct{}{} // capacity 1; the submission now belongs to the caller
		return
	}
	s.engine.Frames = nil // a caller that keeps the submission needs no payloads
	close(s.done)
}

// writeBuffer is what looking at writes and framing them takes, kept for the next ones.
type writeBuffer struct {
	memory []byte // nothing of what it holds is needed by the next one
	retry  engine.Buffer
}

var writeBuffers = sync.Pool{New: func() any { return new(writeBuffer) }}

func getWriteBuffer() *writeBuffer {
	return writeBuffers.Get().(*writeBuffer) //nolint:forcetypeassert // The pool holds nothing else.
}

// longBuffer is the size in bytes above which a buffer is not kept, so that one large write does not hold memory.
const longBuffer = 64 << 10

func (b *writeBuffer) free() {
	if b.memory = b.memory[:0]; cap(b.memory) > longBuffer {
		b.memory = nil
	}
	writeBuffers.Put(b)
}

// take returns frames that were made in the buffer, in memory of their own. What is
// long keeps the memory that it has, and the buffer begins anew.
func (b *writeBuffer) take(frames []byte) []byte {
	if len(frames) > longBuffer {
		b.memory = nil
		return frames
	}
	b.memory = frames[:0]
	return slices.Clone(frames)
}

func (s *Submission) addWrite(c *machine.Command) {
	w := c.Write()
	s.engine.Add(engine.Origin{Scope: w.Scope, Actor: w.Actor}, c.Encoded(), engine.CommandWork(c))
}

func (s *Submission) addKeyedWrite(w *machine.KeyedWrite) {
	s.engine.Add(engine.Origin{Scope: w.ID.Scope, Actor: w.Actor}, machine.AppendKeyedWrite(nil, w),
		engine.Work(w.Operations))
}

// Wait returns one outcome for each command once all are decided. When ctx
// ends first, the error wraps ErrOutcomeUnknown and the cause.
func (s *Submission) Wait(ctx context.Context) ([]machine.Outcome, error) {
	if s.done != nil && !s.await(ctx) {
		return nil, unknown(context.Cause(ctx))
	}
	return s.engine.Outcomes, s.engine.Err
}

// await waits until a submission is answered, or ctx ends, and reports whether it is answered. Until then
// it belongs to the loops.
func (s *Submission) await(ctx context.Context) bool {
	if ctx.Done() == nil { // nothing can end it: a plain receive is cheaper
		<-s.done
		return true
	}
	select {
	case <-s.done: // first, because a caller that leads is answered before it waits
		return true
	default:
	}
	select {
	case <-s.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// Done is closed when the submission is decided; nil when it was decided at
// once.
func (s *Submission) Done() <-chan struct{} { return s.done }
