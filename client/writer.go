package client

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/journal"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	defaultMaxPendingBytes = 8 << 20
	maxOperations          = 1000
	// The ledger takes 4 MiB of operations; the rest is room for the protobuf
	// encoding, whose size is not what the ledger counts.
	maxWriteBytes = 4<<20 + 64<<10
)

// WriterOptions configures a [Writer]. Scope and ClientID are required.
type WriterOptions struct {
	// Scope is where the stream writes.
	Scope *seqledgerv1.Scope
	// ClientID names the stream. One process at a time: opening a session
	// fences whoever had one.
	ClientID string
	// ExpectedSession opens only if it is still the stream's session; 0 takes
	// whatever there is. It is how a process that knows the session it had
	// finds out that nobody wrote in between.
	ExpectedSession uint64
	// AttemptID names the first OpenSession: 16 bytes, or empty for random
	// ones. Who keeps it durably before the call gets the same session again
	// when a crash swallowed the answer, instead of being fenced by himself.
	// A repeat fences nobody, therefore the kept id must be dropped, durably,
	// before the first write is sent: otherwise a restart shares the session
	// with copies of the writes from before, under the same numbers.
	AttemptID []byte
	// SaveSession keeps what a program that gives AttemptID and ExpectedSession
	// itself must know after a crash, of the sessions that the Writer opens by itself
	// later. It is called with the attempt before the call, and with the session and
	// a nil attempt before the first write is sent under it; what it was called with
	// last is what to open with. It returns once that is durable, and its error ends
	// the Writer. Nil for none; with a Journal it must be nil.
	SaveSession func(attempt []byte, session uint64) error
	// NoReopen ends the Writer with [ErrExpired] when its stream is evicted
	// while nothing is unanswered, rather than start the stream anew: for who
	// relies on the numbers to go on.
	NoReopen bool
	// Journal keeps unsettled writes through a crash of this process; nil keeps
	// them in memory alone. Then ExpectedSession and AttemptID must be empty,
	// because the journal knows them. The package documentation has the rules.
	Journal *journal.File
	// MaxPending bounds the unanswered writes; 0 means the receipt window. It
	// is never more than that window, because a repeat of the oldest must
	// still find its receipt.
	MaxPending int
	// MaxPendingBytes bounds their encoded size in bytes; 0 means 8 MiB. One
	// larger write is accepted when nothing else is pending.
	MaxPendingBytes int

	// journal is Journal, or what a test has in its place.
	journal journalFile
}

// validate checks what OpenSession would not.
func (o *WriterOptions) validate() error {
	if o.MaxPending < 0 || o.MaxPendingBytes < 0 {
		return errors.New("client: WriterOptions: a bound must not be negative")
	}
	if n := len(o.AttemptID); n != 0 && n != 16 {
		return fmt.Errorf("client: WriterOptions: AttemptID has %d bytes, want 16", n)
	}
	if o.Journal != nil {
		o.journal = o.Journal
	}
	if o.journal != nil && (o.ExpectedSession != 0 || len(o.AttemptID) != 0 || o.SaveSession != nil) {
		return errors.New("client: WriterOptions: " +
			"with a Journal, ExpectedSession, AttemptID and SaveSession are its own")
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

// Writer numbers the writes of one stream and carries each to its outcome,
// whatever happens to the connection. The package documentation gives its
// rules. It is safe for concurrent use; concurrent Submits are numbered in the
// order in which they are accepted.
type Writer struct {
	client *Client
	mux    *mux
	// scope, clientID, options and stream never change.
	scope    *seqledgerv1.Scope
	clientID string
	options  WriterOptions
	stream   []byte // scope and client id, encoded
	// sessionWork wakes the session loop when a session must be opened. It holds at
	// most one token.
	sessionWork chan struct{}
	cancel      context.CancelFunc
	// loopDone is closed when the session loop has ended, done when the Writer has.
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
	// shared: somebody else's writes were found in this stream under our
	// session, so that one write's commit says nothing about another's.
	shared bool
	// ledger is the ledger id in the receipts of this life of the stream, 0
	// before the first one. A ledger that gets a new id ends all sessions.
	ledger uint64
	// kept is nil without a journal. recovered is what it held at the start.
	kept      *streamLog
	recovered []*Pending
	// verifiedThrough holds back what is numbered beyond it, until everything up to it
	// has its receipt; 0 holds nothing back. The ledger had committed so far
	// when a journal was recovered. Only the receipts show that these commits
	// are the journal's, and not those of a Writer whose journal it is an old
	// copy of.
	verifiedThrough uint64
	// refused: nothing can undo the refusal at the front, and the session loop takes
	// it and all behind it out of the journal before anybody hears of it.
	refused bool
	// waiting are the calls that wait for room, or for a session, in the order in which
	// they came; passed counts the writes that went ahead of the first since it is that.
	waiting list.List // of *turn
	passed  int
	// refreshed is when last_seen was refreshed for all that is known here;
	// asked is when the session loop last found that due.
	refreshed, asked time.Time

	stopped *StoppedError
	failure *UnsettledError
}

// NewWriter opens a session and returns a Writer that continues after the
// stream's last committed sequence. Whoever held an older session is fenced,
// and no copy of its writes can commit any more. Only a new attempt does that:
// with an AttemptID that was used before the answer is the same session, and
// nobody is fenced. ctx bounds the opening alone.
//
// With a Journal it takes over what that holds; see [Writer.Recovered]. An
// [*UnsettledError] says that this is not possible: the stream was evicted or
// fenced, or the ledger is another one. Nothing was sent again then. When the
// application has taken care of the listed writes, [journal.File.Forget] lets
// the next NewWriter begin without them.
func (c *Client) NewWriter(ctx context.Context, options WriterOptions) (*Writer, error) {
	if err := options.validate(); err != nil {
		return nil, err
	}
	// Before anything is sent: a Client that was closed must not fence the
	// stream's owner for a Writer that cannot live.
	if c.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if options.MaxPendingBytes == 0 {
		options.MaxPendingBytes = defaultMaxPendingBytes
	}
	w := &Writer{
		client: c, mux: c.mux, options: options,
		// Cloned because every write is encoded with it from then on.
		scope: proto.CloneOf(options.Scope), clientID: options.ClientID,
		sessionWork: make(chan struct{}, 1), loopDone: make(chan struct{}), done: make(chan struct{}),
	}
	w.options.AttemptID = slices.Clone(options.AttemptID)
	var err error
	if w.stream, err = encodeStream(w.scope, w.clientID); err != nil {
		return nil, err
	}
	if err := w.open(ctx); err != nil {
		return nil, err
	}
	loopCtx, cancel := context.WithCancel(c.ctx)
	w.cancel = cancel
	c.mux.mu.Lock()
	defer c.mux.mu.Unlock()
	if c.mux.closed {
		cancel()
		w.abandon()
		return nil, ErrClosed
	}
	if w.kept != nil {
		w.kept.syncer = c.syncerOf(w.kept.journal)
	}
	c.mux.writers[w] = struct{}{}
	if !c.mux.running {
		c.mux.running = true
		// Ended by the Client's context; Client.Close waits for it.
		c.background.Go(func() { c.mux.run(c.ctx) })
	}
	// Ended by cancel, which Writer.Close calls; Writer.Close waits on kept.
	go w.runSessionLoop(loopCtx)
	if w.queue.len() > 0 {
		c.mux.makeReady(w)
	}
	return w, nil
}

// Resume lets a Writer that stopped at a refused write go on. The next write
// takes the refused one's number. It waits while the Writer opens a session and
// does nothing when the Writer is running.
func (w *Writer) Resume(ctx context.Context) error {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	var t *turn
	// Whatever happens below, the next waiter has to look for itself.
	defer func() { w.leave(t, false) }()
	for w.state == stateSettling {
		var err error
		if t, err = w.await(ctx, t, -1, nil); err != nil {
			return err
		}
	}
	if w.state == stateStopped && !w.closing {
		// Nothing is in flight and no copy is under way, so the number is free.
		// A journal has said so since before the refusal was reported.
		w.state, w.stopped = stateRunning, nil
	}
	return w.unavailable()
}

// Flush waits until every write submitted before it is settled. The error is
// that of the last of them, so a refusal of any shows, or why the Writer takes
// no more writes.
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

// Done returns a channel that is closed when the Writer has ended: by Close, or because
// the ledger has refused to let it go on. Err says why.
func (w *Writer) Done() <-chan struct{} { return w.done }

// Err is nil while the Writer takes writes, otherwise what Submit would return: a
// [*StoppedError] until Resume, [ErrClosed] while it is being closed, an
// [*UnsettledError] once it has ended.
func (w *Writer) Err() error {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	return w.unavailable()
}

// Close takes no more writes, waits until those submitted are settled or ctx
// ends, and ends the Writer. The error is an [*UnsettledError] when writes
// remain unsettled, from now or from an earlier end. The stream's session stays
// open for the next Writer to fence.
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
	w.terminate(ErrClosed)
	delete(w.mux.writers, w)
	failure := w.failure
	w.mux.unlock()
	w.cancel()
	// The session loop waits for nothing that does not end with its context.
	<-w.loopDone
	if len(failure.Writes) == 0 {
		return nil
	}
	return failure
}

// abandon gives up what a Writer has that did not begin.
func (w *Writer) abandon() {
	if w.kept != nil {
		w.kept.journal.Release(w.kept.name)
	}
}

// logger is the Client's, for what concerns this Writer.
func (w *Writer) logger() *slog.Logger { return w.client.options.Logger.With("client_id", w.clientID) }

// WriterState is a moment in the life of a Writer.
type WriterState struct {
	// Session that numbers the writes now.
	Session uint64
	// NextSequence is the number that the next write will get.
	NextSequence uint64
	// Pending counts the unsettled writes.
	Pending int
}

// State returns where the Writer stands.
func (w *Writer) State() WriterState {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	return WriterState{Session: w.session, NextSequence: w.next, Pending: w.queue.len()}
}
