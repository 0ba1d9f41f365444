package writer

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	defaultMaxPendingBytes = 8 << 20
	maxOperations          = 1000
	// The ledger accepts 4 MiB of operations; the rest is for the protobuf encoding, which the ledger does not count.
	maxWriteBytes = 4<<20 + 64<<10
)

// Options configures a [Writer]. Scope and ClientID are required.
type Options struct {
	// Scope is the scope of the stream.
	Scope *seqledgerv1.Scope
	// ClientID names the stream. Only one process can use it, because opening a session fences the previous one.
	ClientID string
	// ExpectedSession makes Open fail unless it is still the stream's session; 0 accepts any. With it, a process that
	// has stored its last session detects that another one has written since.
	ExpectedSession uint64
	// AttemptID names the first OpenSession: 16 bytes, or empty for random ones. A process that stores it durably
	// before the call gets the same session again if it crashes before the answer, instead of fencing itself. Because a
	// repeat fences nothing, the process must delete the stored id, durably, before it sends the first write. Otherwise
	// a restart would share the session with copies of earlier writes under the same numbers.
	AttemptID []byte
	// NoReopen ends the Writer with [failure.ErrExpired] when its stream is evicted while nothing is unanswered,
	// instead of starting the stream anew. Set it if the application relies on continuous numbers.
	NoReopen bool
	// Journal stores unsettled writes durably, so that they survive a crash of this process;
	// nil keeps them only in memory. With a Journal, ExpectedSession and AttemptID must be
	// empty, because the journal has them. The package documentation has the rules.
	Journal *journal.File
	// MaxPending bounds the unanswered writes; 0 means the receipt window. The bound is never
	// larger than that window, because a repeat of the oldest must still find its receipt.
	MaxPending int
	// MaxPendingBytes bounds their encoded size in bytes; 0 means 8 MiB. One
	// larger write is accepted when nothing else is pending.
	MaxPendingBytes int

	// journal is Journal, or a test's substitute.
	journal journalFile
}

// validate checks the options that OpenSession does not check.
func (o *Options) validate() error {
	if o.MaxPending < 0 || o.MaxPendingBytes < 0 {
		return errors.New("writer: Options: a bound must not be negative")
	}
	if n := len(o.AttemptID); n != 0 && n != 16 {
		return fmt.Errorf("writer: Options: AttemptID has %d bytes, want 16", n)
	}
	if o.Journal != nil {
		o.journal = o.Journal
	}
	if o.journal != nil && (o.ExpectedSession != 0 || len(o.AttemptID) != 0) {
		return errors.New("writer: Options: ExpectedSession and AttemptID must be empty with a Journal")
	}
	return nil
}

// writerState is what a Writer does with the next Submit.
type writerState uint8

const (
	stateRunning  writerState = iota // takes writes
	stateSettling                    // opens a session first; Submit waits
	stateStopped                     // a write was refused; waits for Resume
	stateDead                        // over; failure says why
)

// Writer numbers the writes of one stream and settles each of them, whatever happens to the
// connection. The package documentation gives its rules. It is safe for concurrent use;
// concurrent Submits are numbered in the order in which they are accepted.
type Writer struct {
	mux *mux
	// scope, clientID, options and stream never change.
	scope    *seqledgerv1.Scope
	clientID string
	options  Options
	stream   []byte // scope and client id, encoded
	// sessionWork wakes the session loop when a session must be opened. It holds at most one token.
	sessionWork chan struct{}
	cancel      context.CancelFunc
	// loopDone is closed when the session loop has ended; done is closed when the Writer has.
	loopDone, done chan struct{}

	// Everything below is guarded by mux.mu.

	state   writerState
	closing bool
	session uint64
	attempt []byte
	ttl     time.Duration
	limit   int
	// next is the number of the next write.
	next uint64
	// queue holds the unsettled writes in the order of their numbers; those
	// before cursor have been taken by the sender in this round.
	queue    ring[*Pending]
	cursor   int
	inflight int // taken and not answered
	bytes    int
	// queued: on the mux's ready list.
	queued bool
	// halted: nothing more is sent until everything in flight is answered and
	// resolve has decided what the answers mean together.
	halted bool
	// fatal ends the Writer as soon as nothing is in flight.
	fatal error
	// shared: another client's writes were found in this stream under our session, so one
	// write's commit proves nothing about another write.
	shared bool
	// ledger is the ledger id in the receipts since the stream was started, 0 before the first
	// one. A ledger that gets a new id ends all sessions.
	ledger uint64
	// log is nil without a journal. recovered holds the journal's writes at the start.
	log       *streamLog
	recovered []*Pending
	// verifiedThrough is the last committed number when a journal was recovered. Later writes are held back until
	// everything up to it has its receipt; 0 holds nothing back. Only the receipts show that these commits are the
	// journal's. Otherwise the journal may be an old copy.
	verifiedThrough uint64
	// refused: the refusal at the front is final. The session loop removes the write and all
	// later ones from the journal before the outcome is reported.
	refused bool
	// waiting holds the calls that wait for room or for a session, in order of arrival. passed
	// counts the writes that have passed the first one.
	waiting list.List // of *turn
	passed  int
	// refreshed is when last_seen was last known to be refreshed; asked is when the session
	// loop last found a refresh due.
	refreshed, asked time.Time

	stopped *StoppedError
	failure *UnsettledError
}

// Open opens a session and returns a Writer that continues after the stream's last committed sequence. Older sessions
// are fenced: no copy of their writes can commit any more. Only a new attempt does that; an AttemptID that was used
// before returns the same session and fences nothing. ctx bounds only the opening.
//
// With a Journal, Open recovers the writes in it; see [Writer.Recovered]. An [*UnsettledError] reports that this is not
// possible: the stream was evicted or fenced, or the ledger is another one, or the journal was set back and the ledger
// has other numbers. In that case nothing was sent again. When the application has settled the listed writes itself,
// [journal.File.Forget] lets the next Open begin without them. A journal without a session for the stream takes the
// stream over as it is: it cannot tell that it was lost.
func Open(ctx context.Context, c *client.Client, options Options) (*Writer, error) {
	if err := options.validate(); err != nil {
		return nil, err
	}
	// Check before anything is sent: a closed Client must not fence the stream's owner for a Writer that cannot run.
	mux, err := muxOf(c.Core())
	if err != nil {
		return nil, err
	}
	if options.MaxPendingBytes == 0 {
		options.MaxPendingBytes = defaultMaxPendingBytes
	}
	w := &Writer{
		mux: mux, options: options,
		// Clone the scope, because every write is encoded with it.
		scope: proto.CloneOf(options.Scope), clientID: options.ClientID,
		sessionWork: make(chan struct{}, 1), loopDone: make(chan struct{}), done: make(chan struct{}),
	}
	w.options.AttemptID = slices.Clone(options.AttemptID)
	if w.stream, err = message.EncodeStream(w.scope, w.clientID); err != nil {
		return nil, fmt.Errorf("writer: Options: Scope or ClientID: %w", err)
	}
	if err := w.open(ctx); err != nil {
		return nil, err
	}
	loopCtx, cancel := context.WithCancel(mux.client.Context())
	w.cancel = cancel
	mux.mu.Lock()
	defer mux.mu.Unlock()
	if mux.closed {
		cancel()
		if w.log != nil {
			w.log.journal.Release(w.log.name)
		}
		return nil, failure.ErrClosed
	}
	if w.log != nil {
		w.log.syncer = mux.syncerOf(w.log.journal)
	}
	mux.writers[w] = struct{}{}
	if !mux.running {
		mux.running = true
		// Ended by the Client's context; Client.Close waits for it.
		mux.client.Go(func() { mux.run(mux.client.Context()) })
	}
	// Ended by cancel, which Writer.Close calls; Writer.Close waits on loopDone.
	go w.runSessionLoop(loopCtx)
	if w.queue.len() > 0 {
		mux.makeReady(w)
	}
	return w, nil
}

// Resume restarts a Writer that stopped at a refused write. The next write takes the refused write's number. Resume
// waits while the Writer opens a session, and does nothing if the Writer is running.
func (w *Writer) Resume(ctx context.Context) error {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	var t *turn
	// In every case below the next waiter must check for itself.
	defer func() { w.leave(t, false) }()
	for w.state == stateSettling {
		var err error
		if t, err = w.await(ctx, t, -1, nil); err != nil {
			return err
		}
	}
	if w.state == stateStopped && !w.closing {
		// Because nothing is in flight and no copy is under way, the number is free. The journal has
		// recorded that before the refusal was reported.
		w.state, w.stopped = stateRunning, nil
	}
	return w.unavailable()
}

// Flush waits until every write submitted before it is settled. It returns the error of the last of them, which
// reflects a refusal of any of them, or the reason why the Writer takes no more writes.
func (w *Writer) Flush(ctx context.Context) error {
	tail, err := w.tail()
	if tail == nil {
		return err
	}
	_, err = tail.Wait(ctx)
	return err
}

// tail returns the last unsettled write, if there is one.
func (w *Writer) tail() (*Pending, error) {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	if w.queue.len() == 0 {
		return nil, w.unavailable()
	}
	return w.queue.at(w.queue.len() - 1), nil
}

// Done returns a channel that is closed when the Writer has ended, by Close or because of the
// ledger's answer. Err returns the reason.
func (w *Writer) Done() <-chan struct{} { return w.done }

// Err returns nil while the Writer takes writes, otherwise the error that Submit would return: a [*StoppedError] until
// Resume, [failure.ErrClosed] while it is being closed, an [*UnsettledError] once it has ended.
func (w *Writer) Err() error {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	return w.unavailable()
}

// Close takes no more writes, waits until those submitted are settled or ctx ends, and ends the Writer. The error is an
// [*UnsettledError] when writes remain unsettled, from now or from an earlier end. The stream's session stays open for
// the next Writer to fence.
func (w *Writer) Close(ctx context.Context) error {
	w.mux.mu.Lock()
	w.closing = true
	w.wakeNext()
	w.mux.mu.Unlock()
	if tail, _ := w.tail(); tail != nil {
		select {
		case <-tail.done:
		case <-ctx.Done():
		}
	}
	return w.end()
}

// end ends the Writer at once.
func (w *Writer) end() error {
	w.mux.mu.Lock()
	w.terminate(failure.ErrClosed)
	delete(w.mux.writers, w)
	open := w.failure
	w.mux.unlock()
	w.cancel()
	// The session loop waits only for things that end with its context.
	<-w.loopDone
	if len(open.Writes) == 0 {
		return nil
	}
	return open
}

// logger returns the Client's logger with this Writer's client id.
func (w *Writer) logger() *slog.Logger {
	return w.mux.client.Options.Logger.With("client_id", w.clientID)
}

// State is the state of a Writer at one moment.
type State struct {
	// Session is the current session.
	Session uint64
	// NextSequence is the number that the next write will get.
	NextSequence uint64
	// Pending counts the unsettled writes.
	Pending int
}

// State returns the current state of the Writer.
func (w *Writer) State() State {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	return State{Session: w.session, NextSequence: w.next, Pending: w.queue.len()}
}
