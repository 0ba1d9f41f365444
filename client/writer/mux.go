package writer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/internal/rpc"
	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	// frameWrites, frameOperations and frameBytes bound one WriteStreamRequest. A larger write
	// has a separate frame. The server refuses a message of more than 16,384 operations.
	frameWrites     = 1000
	frameOperations = 10_000
	frameBytes      = 1 << 20
	// reasonTimeout bounds the wait for a stream's error once nothing can be sent on the stream any more.
	reasonTimeout = time.Second
	// frameMemory is how long a server's smaller frame limit stays in use.
	frameMemory = 10 * time.Minute
)

// mux joins all Writers of a Client on one WriteStream.
//
// One mutex guards the mux, its Writers and their unsettled writes. It is held for short, purely local steps, once for
// each frame rather than once for each write. With one lock there is no lock order to get wrong.
type mux struct {
	client *rpc.Client
	// wake holds at most one token: there is something for the sender to do.
	wake chan struct{}
	// sending is held from collecting a frame until it is sent, so that frames are sent in the
	// order of inFlight. It is locked before mu.
	sending sync.Mutex
	inline  message.Frame // of sendInline

	mu      sync.Mutex
	writers map[*Writer]struct{}
	// syncers has one for each journal that a Writer uses.
	syncers []*syncer
	// ready are the Writers with something to send, each at most once.
	ready ring[*Writer]
	// inFlight holds the unanswered writes of the current stream in the order in which they
	// were sent. Each Writer's limits bound its share.
	inFlight ring[*Pending]
	// settled collects the writes whose waiters are woken after mu is released, so that they do
	// not block on mu at once. later collects calls of foreign code: the logger.
	settled []*Pending
	later   []func()
	running bool
	closed  bool
	// retire is why the server cannot take writes now, or nil. If it is set, nothing more is
	// sent on this stream, and the stream ends once everything on it is answered.
	retire     *failure.Error
	retryAfter time.Duration
	// frames counts the frames that were sent. frameLimit is the frame size in bytes that the
	// server accepts, as far as known; it applies until limitEnds. 0 means frameBytes.
	frames     uint64
	frameLimit int
	limitEnds  time.Time
	// current is the stream that is open, and broken ends it; nil between streams.
	current rpc.Stream
	broken  context.CancelFunc
	// lastBatch is the number of writes in the last answer. About as many callers will submit again at once.
	lastBatch int
	// progress is true if a write was decided since the last backoff.
	progress bool
	// lastErr is why the last stream broke, for messages.
	lastErr error
}

// muxOf returns the mux of a Client, or ErrClosed.
func muxOf(c *rpc.Client) (*mux, error) {
	writers, err := c.Writers(func() rpc.Writers {
		return newMux(c)
	})
	if err != nil {
		return nil, err
	}
	return writers.(*mux), nil //nolint:forcetypeassert // Only this function makes them.
}

func newMux(c *rpc.Client) *mux {
	return &mux{client: c, wake: make(chan struct{}, 1), writers: make(map[*Writer]struct{})}
}

// Close implements rpc.Writers. The error joins those of the Writers.
func (h *mux) Close() error {
	var errs []error
	for _, w := range h.close() {
		errs = append(errs, w.end())
	}
	return errors.Join(errs...)
}

// Shutdown implements rpc.Writers.
func (h *mux) Shutdown(ctx context.Context) error {
	writers := h.close()
	errs := make([]error, len(writers))
	var group sync.WaitGroup
	for i, w := range writers {
		// Ends with its writes or ctx; the Wait below joins it.
		group.Go(func() { errs[i] = w.Close(ctx) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// unlock releases mu, then wakes the waiters of the settled writes and runs the functions in later.
func (h *mux) unlock() {
	settled, later := h.settled, h.later
	h.settled, h.later = nil, nil
	h.mu.Unlock()
	for _, p := range settled {
		close(p.done)
	}
	for _, do := range later {
		do()
	}
}

// wakeSender tells the sender that there is work. One token is enough: the sender takes it before it collects.
func (h *mux) wakeSender() { signal(h.wake) }

// signal puts a token into a channel that has room for one. It never blocks, because callers may hold mu.
func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// makeReady queues w for the sender. mu is held.
func (h *mux) makeReady(w *Writer) {
	h.enlist(w)
	h.wakeSender()
}

// enlist queues w without waking the sender. mu is held.
func (h *mux) enlist(w *Writer) {
	if !w.queued {
		w.queued = true
		h.ready.push(w)
	}
}

// close refuses new Writers and returns the existing ones.
func (h *mux) close() []*Writer {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	writers := make([]*Writer, 0, len(h.writers))
	for w := range h.writers {
		writers = append(writers, w)
	}
	return writers
}

// explain adds the last connection error to err, because a deadline alone does not say what to repair.
func (h *mux) explain(err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.explainLocked(err)
}

// explainLocked is explain with mu held.
func (h *mux) explainLocked(err error) error {
	if h.lastErr == nil {
		return err
	}
	// Not wrapped: the error that broke the stream is not the answer to this call.
	return fmt.Errorf("%w (the write stream broke last with: %s)", err, h.lastErr.Error())
}

// run keeps a stream open while there is something to send, until ctx ends.
func (h *mux) run(ctx context.Context) {
	var failures int
	var denied patience
	for h.awaitWork(ctx) {
		server := h.client.Endpoint()
		err := h.serve(ctx, server, failures)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errLeaderKnown) {
			continue
		}
		e, _ := errors.AsType[*failure.Error](err)
		h.mu.Lock()
		h.lastErr = err
		if h.progress {
			failures, denied = 0, patience{}
		}
		if over := denied.isOver(e); over || e != nil && e.IsFinal() && !e.RefusesMessage() {
			h.abandon(e)
		}
		if h.retire != nil {
			e = h.retire
		}
		wait := h.client.Backoff(failures, h.retryAfter)
		h.progress, h.retire, h.retryAfter = false, nil, 0
		h.unlock()
		h.client.Options.Logger.WarnContext(ctx, "the write stream has ended",
			"server", server.Host(), "reason", err, "opened again in", wait)
		switch {
		case e == nil:
			h.client.MoveOn(server, "")
		case e.ConnectCode != connect.CodeResourceExhausted && !e.RefusesMessage():
			h.client.MoveOn(server, e.LeaderAddress)
		}
		failures++
		if rpc.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// patience decides when the ledger's refusal of a token is final.
type patience struct{ since time.Time }

// isOver records the answer to an attempt, and reports whether all answers within rpc.TokenPatience were refusals.
func (p *patience) isOver(e *failure.Error) bool {
	switch {
	case e == nil || !e.IsChallenge():
		p.since = time.Time{}
	case p.since.IsZero():
		p.since = time.Now()
	default:
		return time.Since(p.since) >= rpc.TokenPatience
	}
	return false
}

// awaitWork returns true once a Writer is ready, false when ctx ends.
func (h *mux) awaitWork(ctx context.Context) bool {
	for {
		h.mu.Lock()
		work := h.ready.len() > 0
		h.mu.Unlock()
		if work {
			return ctx.Err() == nil
		}
		select {
		case <-h.wake:
		case <-ctx.Done():
			return false
		}
	}
}

// abandon ends the Writers that have open writes. Because the server refuses the whole stream,
// waiting would not settle them. mu is held.
func (h *mux) abandon(cause error) {
	for w := range h.writers {
		if w.queue.len() > 0 {
			w.terminate(cause)
		}
	}
}

// serve opens a stream and sends on it until it breaks or retires. failures is how many streams broke before it
// without an answer. When it returns nothing is in flight.
func (h *mux) serve(ctx context.Context, server *rpc.Endpoint, failures int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := server.OpenStream(ctx)
	if err != nil {
		return err
	}
	if h.client.Endpoint() != server {
		cancel()
		_ = stream.CloseRequest()
		_ = stream.CloseResponse()
		return errLeaderKnown
	}
	h.client.Counters.Streams.Add(1)
	h.mu.Lock()
	h.current, h.broken = stream, cancel
	h.mu.Unlock()
	failed := make(chan error, 1)
	// Ends when the stream does, at the latest by the cancel below; serve waits for it on failed.
	go func() {
		err := h.receive(stream)
		cancel() // without a receiver a full window would block the sender
		failed <- err
	}()
	silent := make(chan bool, 1)
	go func() { silent <- h.watch(ctx, cancel, server, failures) }() // ends with ctx, by the cancel below
	err = h.send(ctx, stream)
	if err != nil && !errors.Is(err, errRetired) {
		// The reason may still be on its way to the receiver, which ends the wait.
		_ = rpc.Sleep(ctx, reasonTimeout)
	}
	cancel()
	// Close before waiting: while the request body is open the transport reads from it and does
	// not notice that the context has ended.
	_ = stream.CloseRequest()
	received := <-failed
	if <-silent {
		received = rpc.ErrorOfSilence()
	}
	_ = stream.CloseResponse()
	// Wait for a caller in sendInline: it must not read its writes while they change.
	h.sending.Lock()
	defer h.sending.Unlock()
	h.mu.Lock()
	h.current, h.lastBatch = nil, 0
	if e, ok := errors.AsType[*failure.Error](received); ok && e.RefusesMessage() {
		h.frameRefused(ctx, e)
	}
	for h.inFlight.len() > 0 {
		h.inFlight.pop().connectionLost()
	}
	h.unlock()
	if errors.Is(err, errRetired) {
		return err
	}
	// The sender only sees that the stream has ended; the receiver has the reason.
	return received
}

// watch ends a stream whose writes wait for a silent server, if the Client has other servers, and reports whether it
// did. It returns with ctx.
func (h *mux) watch(ctx context.Context, end func(), server *rpc.Endpoint, failures int) bool {
	if !h.client.MayLeave() {
		return false
	}
	for waiting := uint64(0); ; {
		if rpc.Sleep(ctx, rpc.SilenceAfter/2) != nil { // a frame that is seen twice has waited about SilenceAfter
			return false
		}
		now := h.waitsFor()
		if now != 0 && now == waiting && server.IsSilent(ctx, failures) && h.waitsFor() == now {
			end()
			return true
		}
		waiting = now
	}
}

// waitsFor returns the number of the oldest frame that has no answer, 0 if there is none.
func (h *mux) waitsFor() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inFlight.len() == 0 {
		return 0
	}
	return h.inFlight.at(0).frame
}

// frameRefused handles the end of a stream because of a message that the server does not
// accept. The server has answered everything before that message, so it begins with the first
// unanswered write. If the message has several writes, they are sent again in smaller messages;
// a single write is refused. Such a write is doubtful, because the error is about a stream and
// not about the write: the Writer opens a session before it reports the refusal. mu is held.
func (h *mux) frameRefused(ctx context.Context, e *failure.Error) {
	if h.inFlight.len() == 0 {
		return
	}
	first := h.inFlight.at(0)
	writes, size := 0, 0
	for writes < h.inFlight.len() && h.inFlight.at(writes).frame == first.frame {
		size += h.inFlight.at(writes).size
		writes++
	}
	if writes > 1 {
		h.frameLimit, h.limitEnds = size/2, time.Now().Add(frameMemory)
		h.later = append(h.later, func() {
			h.client.Options.Logger.WarnContext(ctx,
				"the server does not take messages of this size; smaller ones are sent",
				"writes", writes, "bytes", size, "reason", e)
		})
		return
	}
	h.inFlight.pop()
	if !first.settled {
		first.verdict, first.refusal, first.doubtful = verdictRefused, e, true
		first.writer.answered(first, time.Now())
	}
}

// limit returns the maximum size of a frame in bytes. mu is held.
func (h *mux) limit() int {
	if h.frameLimit > 0 && time.Now().Before(h.limitEnds) {
		return h.frameLimit
	}
	h.frameLimit = 0
	return frameBytes
}

// send sends frames until the stream breaks, retires, or ctx ends.
func (h *mux) send(ctx context.Context, stream rpc.Stream) error {
	next := new(message.Frame)
	for {
		sent, retired, err := h.sendNext(next, stream)
		if err != nil {
			return err
		}
		if sent {
			continue
		}
		if retired {
			return errRetired
		}
		select {
		case <-h.wake:
			// Yield, because more callers are usually about to submit. Letting them run first fills the frame,
			// and costs nothing if there are none.
			runtime.Gosched()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sendNext sends the waiting writes, if any. retired is the result of collect.
func (h *mux) sendNext(next *message.Frame, stream rpc.Stream) (sent, retired bool, err error) {
	h.sending.Lock()
	defer h.sending.Unlock()
	h.mu.Lock()
	retired = h.collect(next)
	h.mu.Unlock()
	if len(next.Writes) == 0 {
		return false, retired, nil
	}
	return true, retired, stream.Send(next)
}

// inlineBytes fits into the empty send buffer of any connection.
const inlineBytes = 4 << 10

// canSendInline reports whether a write should be sent by its caller's own goroutine, which is
// faster than waking the sender. That requires that nothing else is under way, so that the send
// cannot block, and that no other caller is likely to share the frame. mu is held.
func (h *mux) canSendInline(size int) bool {
	_, upgraded := h.current.(rpc.UpgradedStream)
	return upgraded && h.inFlight.len() == 0 && h.ready.len() == 0 && h.lastBatch <= 1 && size <= inlineBytes
}

// sendInline sends a single write, unless others have been queued since.
func (h *mux) sendInline() {
	if !h.sending.TryLock() {
		h.wakeSender()
		return
	}
	defer h.sending.Unlock()
	h.mu.Lock()
	stream, broken := h.current, h.broken
	if stream == nil || h.inFlight.len() > 0 || h.ready.len() != 1 || h.ready.at(0).bytes > inlineBytes {
		h.mu.Unlock()
		h.wakeSender() // others are queued by now, which is the sender's work
		return
	}
	h.collect(&h.inline)
	h.mu.Unlock()
	if len(h.inline.Writes) > 0 && stream.Send(&h.inline) != nil {
		broken()
	}
}

// collect fills next with waiting writes, fairly between Writers. It returns true when the
// stream retires and nothing is in flight any more. mu is held.
func (h *mux) collect(next *message.Frame) bool {
	// Clear the reused frame, so that it keeps no answered write alive.
	clear(next.Writes)
	next.Writes = next.Writes[:0]
	if h.retire != nil {
		return h.inFlight.len() == 0
	}
	bytes, operations, limit := 0, 0, h.limit()
	h.frames++
	for h.ready.len() > 0 {
		w := h.ready.at(0)
		for !w.halted && w.cursor < w.queue.len() {
			p := w.queue.at(w.cursor)
			if p.verdict == verdictCommitted {
				w.cursor++
				continue
			}
			if !p.durable {
				break // its syncer makes w ready again
			}
			if w.verifiedThrough != 0 && p.Sequence() > w.verifiedThrough {
				break // settleFront makes w ready again
			}
			if len(next.Writes) == frameWrites ||
				len(next.Writes) > 0 && (bytes+p.size > limit || operations+p.count > frameOperations) {
				// Move w to the back, otherwise a busy Writer could starve the others.
				h.ready.push(h.ready.pop())
				h.wakeSender()
				return false
			}
			w.cursor++
			p.markSent(h.frames)
			next.Writes = append(next.Writes, message.EncodedWrite{
				Stream: w.stream, Session: p.session, Sequence: p.sequence, Key: p.key, Operations: p.operations,
			})
			bytes += p.size
			operations += p.count
		}
		w.queued = false
		h.ready.pop()
	}
	return false
}

// receive delivers results to their Writers until the stream ends.
func (h *mux) receive(stream rpc.Stream) error {
	for {
		response, err := stream.Receive()
		if err != nil {
			return failure.FromConnect(err, 0)
		}
		if err := h.deliver(response.GetResults()); err != nil {
			return err
		}
	}
}

// deliver matches results with what was sent, in order.
func (h *mux) deliver(results []*seqledgerv1.WriteResult) error {
	h.mu.Lock()
	defer h.unlock()
	h.lastBatch = len(results)
	now := time.Now()
	h.settled = slices.Grow(h.settled, len(results))
	for _, result := range results {
		if h.inFlight.len() == 0 {
			return rpc.ProtocolError("more results than writes")
		}
		if h.inFlight.at(0).settled {
			// Its Writer has ended and the caller has its answer.
			h.inFlight.pop()
			continue
		}
		if err := h.inFlight.at(0).answer(result); err != nil {
			// The write stays in flight, so that it is settled like any other write whose answer was lost.
			return err
		}
		p := h.inFlight.pop()
		if p.verdict == verdictRetry {
			h.retire = p.refusal
			h.retryAfter = max(h.retryAfter, p.refusal.RetryAfter)
		} else {
			h.progress = true
		}
		p.writer.answered(p, now)
	}
	if h.retire != nil && h.inFlight.len() == 0 {
		h.wakeSender()
	}
	return nil
}

// errLeaderKnown ends a stream on which nothing was sent, because the server has named the leader.
var errLeaderKnown = errors.New("the leader is another server")

var errRetired = errors.New("the server asked to try again later")
