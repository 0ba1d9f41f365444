package server

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/semaphore"

	"github.com/seqledger/seqledger/internal/upgrade"
	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

// A WriteStream is two goroutines. The reader decodes a frame, converts it and submits it, which waits while the
// ledger's queue is full. The handler's own goroutine, the sender, takes the frames in their order, waits for their
// outcomes and sends the results. So reading the next frame does not wait for the disk, and nothing is reordered.
//
// Where one write comes at a time, waking the sender and being woken by the ledger's loops would take longer than what
// they do. There the reader commits the write, and sends its result, itself; see commitsNext.
//
// A client's unanswered frames and writes are bounded. Payloads do not count, because after Submit only the ledger's
// queue has them, which is bounded itself. A client that does not read its results therefore stops only its own stream.

const (
	maxStreamFrames = 256
	maxStreamWrites = 4_096
	// operationsPerWrite is how many operation results count as one write: a write whose result is not yet read takes
	// some 350 bytes, and 8 for each operation.
	operationsPerWrite = 32
	maxFrameWeight     = wire.MaxFrameWrites + wire.MaxFrameOperations/operationsPerWrite
	// decodedOperation is about how many bytes a decoded and converted operation takes, independent of its size on the
	// wire.
	decodedOperation = 256
)

// writeStream is one WriteStream.
type writeStream struct {
	server  *Server
	conn    connect.StreamingHandlerConn
	batches chan *batch         // in the order of their frames
	budget  *semaphore.Weighted // for writes in flight
	// unanswered is how many batches have no results yet.
	unanswered atomic.Int64
	sending    sync.Mutex // guards answers, and is held while they are sent
	answers    answers
	// authorized and lone belong to the reader.
	authorized *authorizationCache
	lone       int // how many of the last frames had one write and found nothing unanswered
	party      admission.Party
	// hurry is closed when the stream is about to end: what was read is submitted without a wait for the credential's
	// rate.
	hurry chan struct{}
	ended context.Context //nolint:containedctx // It also ends with the caller's credential.

	// readErr is why the reader ended; nil after a half-close. It is set before batches is closed and read after.
	readErr error
}

type bidiStream = connect.BidiStream[wire.Frame, seqledgerv1.WriteStreamResponse]

// writeStream commits many writes and answers in their order.
func (s *Server) writeStream(ctx context.Context, stream *bidiStream) error {
	logger := s.options.Logger
	logger.DebugContext(ctx, "write stream opened", "upgraded", upgrade.IsUpgraded(ctx))
	ctx, cancel := context.WithCancel(ctx)
	ended, release := s.caller(ctx).Ended()
	defer release()
	st := &writeStream{
		server: s, conn: stream.Conn(), batches: make(chan *batch, maxStreamFrames),
		budget: semaphore.NewWeighted(maxStreamWrites), authorized: newAuthorizationCache(s.caller(ctx)),
		party: s.party(ctx), hurry: make(chan struct{}), ended: ended,
	}
	st.answers.method = methodWriteStream
	if upgrade.IsUpgraded(ctx) {
		s.metrics.upgraded.Inc()
		defer s.metrics.upgraded.Dec()
	}
	controls := admission.StreamControlsOf(ctx)
	// Ends with the client's half-close, a failed read, or the interrupt below; the loop over batches below waits for
	// it.
	go st.read(ctx, controls)
	defer func() {
		cancel()
		controls.Interrupt()
		for b := range st.batches { // until the reader closes it
			s.abandon(st.party, b)
		}
		n := st.answers.tally
		logger.DebugContext(ctx, "write stream closed",
			"committed", n.committed, "replayed", n.replayed, "refused", n.refused)
	}()
	// Send the headers, because the client may wait for them before it sends anything.
	if err := stream.Send(nil); err != nil {
		return err
	}
	return st.send(ctx, controls)
}

// read reads frames until the client half-closes, the connection fails or the sender interrupts it.
func (st *writeStream) read(ctx context.Context, controls *admission.StreamControls) {
	// Deferred before the recovery, so that readErr is set when the sender sees the end.
	defer close(st.batches)
	defer func() {
		if p := recover(); p != nil { // no other code recovers it in this goroutine
			st.readErr = st.server.panicked(ctx, st.conn.Spec().Procedure, p)
		}
	}()
	for {
		// Reserve budget before reading a frame, so that a frame is not in memory while it waits for the client to read
		// results.
		if st.readErr = st.budget.Acquire(ctx, maxFrameWeight); st.readErr != nil {
			return
		}
		var f wire.Frame
		if err := st.conn.Receive(&f); err != nil {
			if !errors.Is(err, io.EOF) {
				st.readErr = err
			}
			return
		}
		controls.Whole()
		if st.readErr = st.server.decode(ctx, &f); st.readErr != nil {
			return
		}
		if f.Invalid != nil {
			st.readErr = f.Invalid
			return
		}
		// End the stream instead of refusing each write: the client may return with a valid credential, or its
		// credential may have other rights now.
		if err := st.authorized.credential.Check(); err != nil {
			st.readErr = err
			return
		}
		weight := weightOf(&f)
		st.budget.Release(maxFrameWeight - weight)
		if len(f.Writes) == 0 {
			continue // a keepalive
		}
		// Many small operations take more memory decoded than encoded.
		if st.readErr = controls.Grow(int64(f.Operations) * decodedOperation); st.readErr != nil {
			return
		}
		here := st.commitsNext(&f)
		b, err := st.server.newBatch(ctx, &f, st.authorized, st.party, st.hurry, here)
		controls.Release()
		if err == nil {
			b.weight = weight
			err = st.accept(ctx, controls, b, here)
		}
		if err != nil {
			st.readErr = err
			return
		}
	}
}

const (
	// loneFrames is how many lone frames must have come before the reader commits one.
	loneFrames = 8
	// seenFrames: the reader cannot see a frame that comes while it commits one, so it leaves each of so many to the
	// sender, as it does with all once frames overlap.
	seenFrames = 16
)

// commitsNext reports whether the reader should commit a frame itself.
func (st *writeStream) commitsNext(f *wire.Frame) bool {
	if len(f.Writes) > 1 || st.unanswered.Load() > 0 {
		st.lone = 0
		return false
	}
	st.lone++
	return st.lone > loneFrames && st.lone%seenFrames > 0
}

// accept answers a batch which the reader may have committed, or passes it to the sender.
func (st *writeStream) accept(ctx context.Context, controls *admission.StreamControls, b *batch, here bool) error {
	st.unanswered.Add(1)
	if here && b.settled() {
		_, err := st.reply(ctx, controls, b) // there is no other one
		return err
	}
	if err := st.pass(ctx, b); err != nil {
		st.server.abandon(st.party, b)
		return err
	}
	return nil
}

// pass passes a batch to the sender. The error is that of ctx.
func (st *writeStream) pass(ctx context.Context, b *batch) error {
	select {
	case st.batches <- b:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hurryUp ends the reader's waits for the credential's rate.
func (st *writeStream) hurryUp() {
	select {
	case <-st.hurry:
	default:
		close(st.hurry)
	}
}

// abandon handles a batch whose results are no longer needed. Its writes count until they are decided.
func (s *Server) abandon(p admission.Party, b *batch) {
	if b == nil || b.submission == nil || b.leave == nil {
		return
	}
	finish := func() {
		// It does not wait, because the submission is done.
		if outcomes, err := b.submission.Wait(context.Background()); err == nil {
			b.outcomes = outcomes
			s.stored(p, b)
		}
		b.left() // last, because Drain waits for it
	}
	if b.settled() {
		finish()
		return
	}
	// Ends with the decision, which does not wait for the client; the Drain and Close of the ledger wait for it, too.
	go func() {
		<-b.submission.Done()
		finish()
	}()
}

// weightOf is the part of its stream's budget that a frame takes.
func weightOf(f *wire.Frame) int64 { return int64(len(f.Writes) + f.Operations/operationsPerWrite) }

// send answers every batch, then returns why there are no more: nil for a half-close, DRAINING if the server drains, or
// the end of the credential.
func (st *writeStream) send(ctx context.Context, controls *admission.StreamControls) error {
	draining, ended := st.server.draining.Done(), st.ended.Done()
	var interrupted error // why reading was cut short
	var next *batch       // taken from batches and not yet answered
	defer func() { st.server.abandon(st.party, next) }()
	for {
		if next == nil {
			select {
			case b, more := <-st.batches:
				if !more {
					return st.end(interrupted)
				}
				next = b
			case <-draining:
				// Writes that have arrived are still read, and refused.
				draining, interrupted = nil, ledger.ErrDraining
				st.hurryUp()
				controls.Interrupt()
				continue
			case <-ended:
				ended, interrupted = nil, context.Cause(st.ended)
				st.hurryUp()
				controls.Interrupt()
				continue
			}
		}
		if err := next.await(ctx); err != nil {
			return err
		}
		var err error
		if next, err = st.reply(ctx, controls, next); err != nil {
			return err
		}
	}
}

// reply sends the results of a decided batch, and of those that are decided after it. It returns the first undecided
// one.
func (st *writeStream) reply(
	ctx context.Context, controls *admission.StreamControls, b *batch,
) (next *batch, err error) {
	st.sending.Lock()
	defer st.sending.Unlock()
	st.answers.reset()
	st.answer(ctx, b)
	weight := b.weight
	next = st.coalesce(ctx, &weight)
	err = controls.Send(func() error { return st.conn.Send(st.answers.Response()) })
	// Only after the send, so that a client that does not read its results stops its own stream.
	st.budget.Release(weight)
	return next, err
}

// answer adds the results of a decided batch.
func (st *writeStream) answer(ctx context.Context, b *batch) {
	b.settle(ctx, st.server)
	st.answers.add(ctx, st.server, st.party, b)
	st.server.metrics.latency[methodWriteStream].Observe(time.Since(b.began).Seconds())
	// Before the send, because the client's next frame may be here before it returns.
	st.unanswered.Add(-1)
}

// await returns once the batch is decided or the stream has ended.
func (b *batch) await(ctx context.Context) error {
	if b.settled() {
		return nil
	}
	select {
	case <-b.submission.Done():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// coalesce adds the results of the batches that are already decided, and returns the first undecided one. It adds up
// their weights. It never waits.
func (st *writeStream) coalesce(ctx context.Context, weight *int64) *batch {
	for st.answers.Count() < maxResults {
		select {
		case b, more := <-st.batches:
			if !more {
				return nil // the next receive finds the end again
			}
			if !b.settled() {
				return b
			}
			st.answer(ctx, b)
			*weight += b.weight
		default:
			return nil
		}
	}
	return nil
}

// end returns the stream's error once everything accepted is answered.
func (st *writeStream) end(interrupted error) error {
	// The read failed because it was interrupted, so the reason for that is the one that helps the client.
	if interrupted != nil && st.readErr != nil {
		return interrupted
	}
	return st.readErr
}
