package client

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	// frameWrites, frameOperations and frameBytes bound one WriteStreamRequest. A
	// single larger write still goes, in a frame of its own. The server refuses
	// a message of more than 16,384 operations.
	frameWrites     = 1000
	frameOperations = 10_000
	frameBytes      = 1 << 20
	// reasonTimeout is how long the end of a stream may take to arrive once nothing
	// can be sent on it any more.
	reasonTimeout = time.Second
	// frameMemory is for how long a smaller limit of a server is remembered.
	frameMemory = 10 * time.Minute
	// tokenPatience is for how long the ledger has to refuse the token before that is
	// final: it may be on its way to being renewed, and an operator who took a key out
	// by mistake on the way to putting it back.
	tokenPatience = time.Minute
)

// mux joins all Writers of a Client on one WriteStream.
//
// One mutex guards the mux, its Writers and their unsettled writes. It is held
// for short, purely local steps, once for a frame of writes rather than once
// for each, and one lock leaves no order of locks to get wrong.
type mux struct {
	endpoints *endpoints
	options   *Options
	counters  *counters
	// wake holds at most one token: there is something for the sender to do.
	wake chan struct{}
	// sending is held from when a frame is collected until it is sent, so that
	// frames leave in the order of inFlight. It is taken before mu.
	sending sync.Mutex
	inline  frame // of sendInline

	mu      sync.Mutex
	writers map[*Writer]struct{}
	// syncers has one for each journal that a Writer uses.
	syncers []*syncer
	// ready are the Writers with something to send, each at most once.
	ready ring[*Writer]
	// inFlight is what was sent on the current stream and is not answered, in
	// order. Each Writer's limits bound its part of it.
	inFlight ring[*Pending]
	// settled collects writes whose waiters are woken after mu is released, so
	// that those do not run straight into the lock that woke them; later, what calls
	// code that is not ours, the logger.
	settled []*Pending
	later   []func()
	running bool
	closed  bool
	// retire is why the server cannot take writes now, nil while it can. Then nothing
	// more is sent on this stream, and it ends once everything on it is answered.
	retire     *Error
	retryAfter time.Duration
	// frames counts the frames that were sent. frameLimit is their size in bytes that the
	// server has been found to take, until limitEnds; 0 is frameBytes.
	frames     uint64
	frameLimit int
	limitEnds  time.Time
	// current is the stream that is open, and broken ends it; nil between streams.
	current writeStream
	broken  context.CancelFunc
	// lastBatch is how many writes the last answer was about. About as many callers
	// will submit again at once.
	lastBatch int
	// progress: a write was decided since the last backoff.
	progress bool
	// lastErr is why the stream broke last, for people.
	lastErr error
}

// newMux returns a mux that opens streams to the servers.
func newMux(servers *endpoints, options *Options, counters *counters) *mux {
	return &mux{
		endpoints: servers, options: options, counters: counters,
		wake: make(chan struct{}, 1), writers: make(map[*Writer]struct{}),
	}
}

// unlock releases mu, and then wakes the waiters of the settled writes and does what
// was left for later.
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

// wakeSender makes the sender look for work.
func (h *mux) wakeSender() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// makeReady queues w for the sender. mu is held.
func (h *mux) makeReady(w *Writer) {
	h.enlist(w)
	h.wakeSender()
}

// enlist queues w without a word to the sender. mu is held.
func (h *mux) enlist(w *Writer) {
	if !w.queued {
		w.queued = true
		h.ready.push(w)
	}
}

// close refuses new Writers and returns those there are.
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

// explain adds the last connection error to err, because a deadline alone does
// not tell anyone what to repair.
func (h *mux) explain(err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.explainLocked(err)
}

// explainLocked is explain for who holds mu.
func (h *mux) explainLocked(err error) error {
	if h.lastErr == nil {
		return err
	}
	//nolint:errorlint // Not wrapped: what broke the stream is no answer to this call.
	return fmt.Errorf("%w (the write stream broke last with: %v)", err, h.lastErr)
}

// run keeps a stream open while there is something to send, until ctx ends.
func (h *mux) run(ctx context.Context) {
	var failures int
	var denied patience
	for h.awaitWork(ctx) {
		server := h.endpoints.use()
		err := h.serve(ctx, server)
		if ctx.Err() != nil {
			return
		}
		e, _ := errors.AsType[*Error](err)
		h.mu.Lock()
		h.lastErr = err
		if h.progress {
			failures, denied = 0, patience{}
		}
		if over := denied.isOver(e); over || e != nil && e.isFinal() && !e.refusesFrame() {
			h.abandon(e)
		}
		if h.retire != nil {
			e = h.retire
		}
		wait := backoff(failures/len(h.endpoints.all), h.retryAfter)
		h.progress, h.retire, h.retryAfter = false, nil, 0
		h.unlock()
		h.options.Logger.WarnContext(ctx, "the write stream has ended",
			"server", server.base.Host, "reason", err, "opened again in", wait)
		if e == nil || e.ConnectCode != connect.CodeResourceExhausted && !e.refusesFrame() {
			h.endpoints.moveOn(server, leaderOf(e))
		}
		failures++
		if sleep(ctx, wait) != nil {
			return
		}
	}
}

// leaderOf is where another server should be asked, empty for no word about that.
func leaderOf(e *Error) string {
	if e == nil {
		return ""
	}
	return e.LeaderAddress
}

// patience tells when the ledger's refusal of a token is final.
type patience struct{ since time.Time }

// isOver notes the answer to an attempt, and tells whether all were refusals for
// tokenPatience.
func (p *patience) isOver(e *Error) bool {
	switch {
	case e == nil || !e.challenged:
		p.since = time.Time{}
	case p.since.IsZero():
		p.since = time.Now()
	default:
		return time.Since(p.since) >= tokenPatience
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

// abandon ends the Writers that have open writes: the server turns the whole
// stream away, so waiting would not settle them. mu is held.
func (h *mux) abandon(cause error) {
	for w := range h.writers {
		if w.queue.len() > 0 {
			w.terminate(cause)
		}
	}
}

// serve opens a stream and sends on it until it breaks or retires. When it
// returns nothing is in flight.
func (h *mux) serve(ctx context.Context, server *endpoint) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := server.openStream(ctx)
	if err != nil {
		return err
	}
	h.counters.streams.Add(1)
	h.mu.Lock()
	h.current, h.broken = stream, cancel
	h.mu.Unlock()
	failed := make(chan error, 1)
	// Ends when the stream does, at the latest by the cancel below; serve waits
	// for it on failed.
	go func() {
		failed <- h.receive(stream)
		// A stream without a receiver must not go on: a full window would block
		// the sender for ever.
		cancel()
	}()
	err = h.send(ctx, stream)
	if err != nil && !errors.Is(err, errRetired) {
		// Why it cannot send any more may be on its way to the receiver, who ends
		// the wait.
		_ = sleep(ctx, reasonTimeout)
	}
	cancel()
	// Closed before waiting: while the request body is open the transport reads
	// from it and does not notice that the context has ended.
	_ = stream.CloseRequest()
	received := <-failed
	_ = stream.CloseResponse()
	// Whoever sends by himself is done with his writes, before they change.
	h.sending.Lock()
	defer h.sending.Unlock()
	h.mu.Lock()
	h.current, h.lastBatch = nil, 0
	if e, ok := errors.AsType[*Error](received); ok && e.refusesFrame() {
		h.frameRefused(ctx, e)
	}
	for h.inFlight.len() > 0 {
		h.inFlight.pop().connectionLost()
	}
	h.unlock()
	if errors.Is(err, errRetired) {
		return err
	}
	// A sender only learns that the stream has ended; why is the receiver's to
	// know.
	return received
}

// refusesFrame says that a stream was ended because of a message on it, most likely one
// that has more bytes than the server takes.
func (e *Error) refusesFrame() bool { return e.wire && e.ConnectCode == connect.CodeInvalidArgument }

// frameRefused finds out what a server does not take that has ended the stream with an
// error about a message. It has answered everything before that message, so the message
// begins with the first write that is not answered. If it has several, they are sent
// again in smaller ones; a single write is refused. It counts as one whose copies may
// be under way, so that nothing rests on the server's word about a whole stream: the
// Writer opens a session before it reports the refusal. mu is held.
func (h *mux) frameRefused(ctx context.Context, e *Error) {
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
			h.options.Logger.WarnContext(ctx, "the server does not take messages of this size; smaller ones are sent",
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

// limit is how many bytes a frame may have. mu is held.
func (h *mux) limit() int {
	if h.frameLimit > 0 && time.Now().Before(h.limitEnds) {
		return h.frameLimit
	}
	h.frameLimit = 0
	return frameBytes
}

// send sends frames until the stream breaks, retires, or ctx ends.
func (h *mux) send(ctx context.Context, stream writeStream) error {
	next := new(frame)
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
			// Whoever woke us is rarely alone: letting the others run first
			// fills the frame, and costs nothing when there are none.
			runtime.Gosched()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sendNext sends what waits, if anything does. retired is that of collect.
func (h *mux) sendNext(next *frame, stream writeStream) (sent, retired bool, err error) {
	h.sending.Lock()
	defer h.sending.Unlock()
	h.mu.Lock()
	retired = h.collect(next)
	h.mu.Unlock()
	if len(next.writes) == 0 {
		return false, retired, nil
	}
	return true, retired, stream.Send(next)
}

// inlineBytes is what fits into the empty buffer of any connection.
const inlineBytes = 4 << 10

// canSendInline tells whether a write that is about to be sent should go from its
// caller's own goroutine, which is sooner than waking up the sender: when nothing
// else is under way, so that it cannot block, and nobody is about to come who
// could share its frame. mu is held.
func (h *mux) canSendInline(size int) bool {
	_, dedicated := h.current.(dedicatedStream)
	return dedicated && h.inFlight.len() == 0 && h.ready.len() == 0 && h.lastBatch <= 1 && size <= inlineBytes
}

// sendInline sends a write that is alone, unless it is not any more.
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
		h.wakeSender() // others have come meanwhile, and with them the sender's work
		return
	}
	h.collect(&h.inline)
	h.mu.Unlock()
	if len(h.inline.writes) > 0 && stream.Send(&h.inline) != nil {
		broken()
	}
}

// collect fills next with what waits, fairly between Writers. It returns true
// when the stream retires and nothing is in flight any more. mu is held.
func (h *mux) collect(next *frame) bool {
	// Cleared so that the reused frame keeps no answered write alive.
	clear(next.writes)
	next.writes = next.writes[:0]
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
			if len(next.writes) == frameWrites ||
				len(next.writes) > 0 && (bytes+p.size > limit || operations+p.count > frameOperations) {
				// w goes to the back, otherwise a busy Writer could starve the
				// others.
				h.ready.push(h.ready.pop())
				h.wakeSender()
				return false
			}
			w.cursor++
			p.markSent(h.frames)
			next.writes = append(next.writes, encodedWrite{w.stream, p.session, p.sequence, p.key, p.operations})
			bytes += p.size
			operations += p.count
		}
		w.queued = false
		h.ready.pop()
	}
	return false
}

// receive gives results to their Writers until the stream ends.
func (h *mux) receive(stream writeStream) error {
	for {
		response, err := stream.Receive()
		if err != nil {
			return errorFromConnect(err)
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
			return protocolError("more results than writes")
		}
		if h.inFlight.at(0).settled {
			// Its Writer ended meanwhile and the caller has its answer.
			h.inFlight.pop()
			continue
		}
		if err := h.inFlight.at(0).answer(result); err != nil {
			// It stays in flight, so that it is settled like every other write
			// whose answer was lost.
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

var errRetired = errors.New("the server asked to try again later")

// protocolError describes an answer that cannot be right. The stream is given
// up then, because everything behind it may be matched wrongly.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}
