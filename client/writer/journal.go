package writer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/internal/rpc"
	"github.com/seqledger/seqledger/client/journal"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// journalFile is the part of [journal.File] that a Writer uses; tests substitute one that fails. It is not exported,
// because Append is called for each write under the multiplexer's mutex and must not block.
type journalFile interface {
	Claim(name journal.Name) (journal.State, error)
	Release(name journal.Name)
	Append(name journal.Name, record journal.Record) error
	Sync() error
	Freed() <-chan struct{}
}

// maxTagBytes bounds a tag.
const maxTagBytes = 256

// streamLog is a Writer's stream in a journal. The mux's mutex guards it.
type streamLog struct {
	journal journalFile
	name    journal.Name
	head    journal.Head
	syncer  *syncer
}

// sync returns once everything appended before is durable, or ctx has ended: a disk that does
// not answer must not block a caller beyond its deadline.
func (l *streamLog) sync(ctx context.Context) error {
	synced := make(chan error, 1)
	// Ends when the disk answers. Only this call waits, and no longer than ctx.
	go func() { synced <- l.journal.Sync() }()
	select {
	case err := <-synced:
		return err
	case <-ctx.Done():
		return fmt.Errorf("waiting for the journal's disk: %w", ctx.Err())
	}
}

// write appends p, which is sent once the syncer has made it durable.
func (l *streamLog) write(p *Pending) error {
	record := journal.Record{
		Kind: journal.KindWrite, ID: l.head.NextID, Sequence: p.Sequence(),
		Key: p.key, Tag: p.tag, Request: p.operations,
	}
	if p.tag != "" {
		// A receipt is smaller, because it has a few texts, and a version for each operation.
		record.Reserve = 1024 + 16*p.count
	}
	if err := l.journal.Append(l.name, record); err != nil {
		return err
	}
	p.entry = record.ID
	l.head.NextID++
	l.head.NextSequence++
	l.syncer.add(p)
	return nil
}

// settled records that p is committed, without waiting for the disk: a Writer that starts again
// asks the ledger. An error is ignored, because the next write gets it too.
func (l *streamLog) settled(p *Pending) {
	record := journal.Record{Kind: journal.KindSettled, ID: p.entry}
	if p.tag != "" {
		// A message that came off the wire can be encoded.
		record.Receipt, _ = proto.Marshal(p.receipt)
	}
	_ = l.journal.Append(l.name, record)
}

// drop records that p and all later writes were not executed.
func (l *streamLog) drop(p *Pending) error {
	if err := l.journal.Append(l.name, journal.Record{Kind: journal.KindDropped, ID: p.entry}); err != nil {
		return err
	}
	l.head.NextSequence = p.Sequence()
	return nil
}

// journalHead changes the stream's head in the journal and returns once that is durable. mu is
// not held. Without a journal it does nothing.
func (w *Writer) journalHead(ctx context.Context, change func(*journal.Head)) error {
	if w.log == nil {
		return nil
	}
	w.mux.mu.Lock()
	head := w.log.head
	change(&head)
	err := w.log.journal.Append(w.log.name, journal.Record{Kind: journal.KindHead, Head: head})
	if err == nil {
		w.log.head = head
	}
	w.mux.mu.Unlock()
	if err != nil {
		return err
	}
	return w.log.sync(ctx)
}

// journalAttempt records an OpenSession before it is sent. A Writer that crashes before the
// answer arrives then repeats the attempt instead of fencing itself.
func (w *Writer) journalAttempt(ctx context.Context, attempt []byte) error {
	return w.journalHead(ctx, func(h *journal.Head) { h.Attempt = attempt })
}

// journalSession records a session before the first write is sent under it. Afterwards the attempt must not be
// repeated: the repeat would return the same session and not fence copies of those writes.
func (w *Writer) journalSession(ctx context.Context, session, next uint64) error {
	return w.journalHead(ctx, func(h *journal.Head) { h.Session, h.Attempt, h.NextSequence = session, nil, next })
}

// checkLedger asks the server for its ledger id. If the journal has an id, both must be equal,
// because sequences and sessions of another ledger have no meaning here.
func (w *Writer) checkLedger(ctx context.Context) error {
	if w.log == nil {
		return nil
	}
	answer, err := rpc.Call(ctx, w.mux.client, once((*rpc.Endpoint).GetStatus), &seqledgerv1.GetStatusRequest{}, nil)
	if err != nil {
		return fmt.Errorf("asking for the ledger's id: %w", err)
	}
	text := answer.GetStatus().GetLedgerId()
	id, err := strconv.ParseUint(text, 16, 64)
	if err != nil || id == 0 {
		return rpc.ProtocolError("the server says that its ledger id is %q", text)
	}
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	switch w.log.head.Ledger {
	case id:
	case 0:
		w.log.head.Ledger = id // durable with the attempt
	default:
		return fmt.Errorf("%w: the server has %016x, the journal is of %016x", failure.ErrOtherLedger, id,
			w.log.head.Ledger)
	}
	return nil
}

// syncer makes the writes of all Writers of a mux durable in one journal. Each sync covers what
// was appended during the one before.
type syncer struct {
	mux     *mux
	journal journalFile
	// wake holds at most one token: there is something to sync.
	wake chan struct{}
	// batch, guarded by mux.mu, holds the writes that are appended and not known to be durable.
	// Each Writer's limits bound its share. spare is the other of two buffers.
	batch, spare []*Pending
	// users, guarded by mux.mu, counts the Writers that use the syncer. The last one ends it: a
	// failed journal is opened anew, and the Client must not keep the old one.
	users int
	end   context.CancelFunc
}

// syncerOf returns the syncer of a journal and starts it if there is none. mu is held.
func (h *mux) syncerOf(j journalFile) *syncer {
	i := slices.IndexFunc(h.syncers, func(s *syncer) bool { return s.journal == j })
	if i >= 0 {
		h.syncers[i].users++
		return h.syncers[i]
	}
	ctx, end := context.WithCancel(h.client.Context())
	s := &syncer{mux: h, journal: j, wake: make(chan struct{}, 1), users: 1, end: end}
	h.syncers = append(h.syncers, s)
	// Ended by its last Writer or the Client's context; Client.Close waits.
	h.client.Go(func() { s.run(ctx) })
	return s
}

// leaveJournal releases a Writer's syncer and its claim. The session loop calls it at its end,
// when nothing else appends.
func (w *Writer) leaveJournal() {
	if w.log == nil {
		return
	}
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	s := w.log.syncer
	s.users--
	if s.users == 0 {
		s.end()
		w.mux.syncers = slices.DeleteFunc(w.mux.syncers, func(other *syncer) bool { return other == s })
	}
	w.log.journal.Release(w.log.name)
}

// add puts p into the next batch. mu is held.
func (s *syncer) add(p *Pending) {
	s.batch = append(s.batch, p)
	signal(s.wake)
}

// run syncs until ctx ends.
func (s *syncer) run(ctx context.Context) {
	for {
		select {
		case <-s.wake:
			// Yield, because more writes are likely to follow at once; see mux.send.
			runtime.Gosched()
		case <-ctx.Done():
			return
		}
		s.mux.mu.Lock()
		batch := s.batch
		s.batch, s.spare = s.spare, nil
		s.mux.mu.Unlock()
		if len(batch) > 0 {
			s.synced(batch, s.journal.Sync())
		}
	}
}

// synced hands the durable writes to the sender.
func (s *syncer) synced(batch []*Pending, err error) {
	s.mux.mu.Lock()
	defer s.mux.unlock()
	for _, p := range batch {
		if p.settled {
			continue // its Writer has ended
		}
		if err != nil {
			p.writer.failJournal(err)
			continue
		}
		p.durable = true
		if !p.writer.halted {
			s.mux.makeReady(p.writer)
		}
	}
	clear(batch)
	s.spare = batch[:0]
}

// failJournal ends the Writer, because its next writes are not durable and could not be settled after a
// crash. mu is held.
func (w *Writer) failJournal(err error) {
	if w.fatal == nil {
		w.fatal = err
	}
	w.halted = true
	if w.inflight == 0 && w.state != stateDead {
		w.resolve()
	}
}

// tagged validates a tag.
func (w *Writer) tagged(tag string) error {
	switch {
	case w.log == nil:
		return errors.New("client: a tag needs Options.Journal")
	case tag == "" || len(tag) > maxTagBytes || !utf8.ValidString(tag):
		return fmt.Errorf("client: a tag is 1 to %d bytes of UTF-8, not %d", maxTagBytes, len(tag))
	}
	return nil
}
