package outbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/internal/pgserver"
	"github.com/seqledger/seqledger/client/internal/rpc"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// The most that one call carries. The number of rows is bounded by the receipt window, too.
const (
	maxBatch      = 1000
	maxBatchBytes = 1 << 20
)

// turn is how long a stream has its place while another one waits for it.
const turn = 50 * time.Millisecond

// stream is a stream that this relay owns or tries to own. busy is true while a goroutine works on it.
type stream struct {
	relay *Relay
	name  string
	busy  atomic.Bool

	head   head
	open   bool // head.session was opened by this relay, and nothing says that it has ended
	window int  // the receipt window
	ttl    time.Duration
	used   time.Time // when the ledger last heard of the session
	rows   []row     // numbered and not settled, in order
	// numbered is when rows got numbers last.
	numbered time.Time
	single   int // how many rows are sent in calls of their own

	refusals []refusal // of the transaction that is under way
}

// head is where a stream stands.
type head struct {
	organization, vault, clientID, ledgerID string
	session                                 uint64
	attempt                                 []byte
	// next is the number of the next row that gets one; 0 says that an operator takes the ledger's, by Resume.
	next      uint64
	committed uint64 // the last number, as of the opening of the session
}

// row is a row that has a number.
type row struct {
	id       int64
	sequence uint64
	key      string
	request  []byte
}

var (
	// errLost: another relay owns the stream.
	errLost = errors.New("another relay works on the stream")
	// errStopped: the stream has been stopped.
	errStopped = errors.New("the stream is stopped")
)

// stopError stops a stream until an operator resumes it, or a relay at its start.
type stopError struct{ reason string }

func (e *stopError) Error() string { return e.reason }

func stopf(format string, args ...any) error { return &stopError{fmt.Sprintf(format, args...)} }

// work writes the stream's rows until there are no more, ctx ends, or the stream is lost or stopped.
func (s *stream) work(ctx context.Context) {
	defer s.busy.Store(false)
	begun := time.Now()
	for failures := 0; ctx.Err() == nil; {
		more, err := s.step(ctx)
		stop, isStop := errors.AsType[*stopError](err)
		switch {
		case err == nil && !more:
			return
		case err == nil && s.relay.waiting.Load() > 0 && time.Since(begun) > turn:
			return // the next poll continues with this stream
		case err == nil:
			failures = 0
			continue
		case isStop:
			if err = s.stop(ctx, stop.reason); err == nil {
				err = errStopped
			}
		}
		if errors.Is(err, errLost) || errors.Is(err, errStopped) {
			s.relay.forget(s)
			return
		}
		// Whatever was under way is in the table.
		s.open = false
		_ = pgserver.Leave(s.relay.db, err)
		if ctx.Err() == nil {
			s.relay.log.WarnContext(ctx, "a stream of the outbox waits after a failure", "stream", s.name, "error", err)
		}
		_ = rpc.Sleep(ctx, rpc.Backoff(failures, 0))
		failures++
	}
}

// step writes one batch of rows, and reports whether there may be more.
func (s *stream) step(ctx context.Context) (more bool, err error) {
	// An unused session ends with the stream, after client_ttl.
	if s.open && len(s.rows) == 0 && time.Since(s.used) > s.ttl/3 {
		s.open = false
	}
	if !s.open {
		if err := s.openSession(ctx); err != nil {
			return false, err
		}
	}
	if len(s.rows) == 0 {
		if err := s.advance(ctx, nil); err != nil {
			return false, err
		}
	}
	if len(s.rows) == 0 {
		return false, nil
	}
	batch := s.batch()
	s.at(stepSending)
	results := s.relay.ledger.WriteBatch(ctx, s.requests(batch))
	s.at(stepAnswered)
	settled, failed := s.judge(batch, results)
	if len(settled) > 0 {
		s.used = time.Now()
	}
	if failed == nil {
		s.gather(ctx, len(batch))
		return true, s.advance(ctx, settled)
	}
	// Rows after the first one without a receipt are sent again.
	if err := s.settle(ctx, settled); err != nil {
		return false, err
	}
	return true, s.failed(ctx, batch[len(settled)], len(batch), failed)
}

// A batch of fewer than fewRows rows waits for a fifth of Options.Poll, because each call and transaction of the relay
// costs the application's transactions in the same database.
const (
	fewRows    = 32
	pollGather = 5
)

// gather delays the numbering of the rows after a small batch.
func (s *stream) gather(ctx context.Context, sent int) {
	if sent < fewRows {
		_ = rpc.Sleep(ctx, time.Until(s.numbered.Add(s.relay.options.Poll/pollGather)))
	}
}

// batch returns the rows of the next call: as many as the window and a message allow.
func (s *stream) batch() []row {
	most, bytes := min(len(s.rows), s.window, maxBatch), 0
	if s.single > 0 {
		s.single--
		most = 1
	}
	for i, r := range s.rows[:most] {
		if bytes += len(r.request); bytes > maxBatchBytes && i > 0 {
			return s.rows[:i]
		}
	}
	return s.rows[:most]
}

// requests returns the writes of rows.
func (s *stream) requests(rows []row) []*seqledgerv1.WriteRequest {
	requests := make([]*seqledgerv1.WriteRequest, len(rows))
	for i, r := range rows {
		requests[i] = decodeRequest(r.request)
		requests[i].Scope = &seqledgerv1.Scope{Organization: s.head.organization, Vault: s.head.vault}
		requests[i].ClientId, requests[i].Session = s.head.clientID, s.head.session
		requests[i].Sequence, requests[i].IdempotencyKey = r.sequence, r.key
	}
	return requests
}

// settlement is a committed row. A nil receipt is of a row whose receipt the ledger no longer keeps.
type settlement struct {
	row     row
	receipt *seqledgerv1.Receipt
}

// judge returns the committed rows before the first one that is not known to be committed, and the error of that row.
func (s *stream) judge(rows []row, results []client.BatchResult) (settled []settlement, failed error) {
	for i, result := range results {
		switch {
		case result.Err == nil && result.Receipt.GetSequence() != rows[i].sequence:
			// The number is free, but the key is known: by a write that this table did not number.
			return settled, stopf("row %d was sent as number %d, and the ledger has its key under number %d",
				rows[i].id, rows[i].sequence, result.Receipt.GetSequence())
		case result.Err == nil:
			settled = append(settled, settlement{rows[i], result.Receipt})
		case errors.Is(result.Err, failure.ErrAlreadyCommitted):
			// The session was opened on the condition that no other program writes to the stream, so the
			// number's write is the row's.
			settled = append(settled, settlement{row: rows[i]})
		default:
			return settled, result.Err
		}
	}
	return settled, nil
}

// codeOf returns the code with which the ledger answered, also where that is not final.
func codeOf(err error) (code seqledgerv1.WriteErrorCode, refusal *failure.Error) {
	if unknown, ok := errors.AsType[*failure.OutcomeUnknownError](err); ok && unknown.Refusal != nil {
		return unknown.Refusal.Code, unknown.Refusal
	}
	if refusal, ok := errors.AsType[*failure.Error](err); ok {
		return refusal.Code, refusal
	}
	return 0, nil
}

// failed handles the first row of a call that is not known to be committed.
func (s *stream) failed(ctx context.Context, r row, sent int, err error) error {
	s.relay.repeated.Add(1)
	code, refusal := codeOf(err)
	if refusal != nil && refusal.Is(failure.ErrConditionFailed) {
		return s.refuse(ctx, r, code, refusal)
	}
	switch code {
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT:
		if sent > 1 {
			s.single = sent // one of them is invalid, and the call says it of all
			return nil
		}
		return s.refuse(ctx, r, code, refusal)
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_EXHAUSTED,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_REUSED,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_IDEMPOTENCY_KEY_REUSED:
		return stopf("row %d: %s", r.id, refusal.Error())
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_REQUIRED,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_GAP:
		s.open = false // opening a session says what has happened
		return nil
	}
	if stop, ok := errors.AsType[*stopError](err); ok {
		return stop
	}
	s.note(ctx, err)
	return err
}

// refuse settles a refused row, once no copy of it or of a later row can be under way.
func (s *stream) refuse(
	ctx context.Context, r row, code seqledgerv1.WriteErrorCode, refusal *failure.Error,
) error {
	s.at(stepRefusalSeen)
	if err := s.openSession(ctx); err != nil {
		return err
	}
	s.at(stepRefusalFenced)
	if s.head.committed >= r.sequence {
		return nil // a copy of it has committed: it is sent again for the receipt
	}
	return s.settleRefused(ctx, r, codeName(code), refusal.Message)
}

// openSession takes the stream over: afterwards no earlier copy of any row can commit.
func (s *stream) openSession(ctx context.Context) error {
	s.open = false
	if err := s.claim(ctx); err != nil {
		return err
	}
	s.at(stepClaimed)
	if err := s.checkLedger(ctx); err != nil {
		return err
	}
	for {
		if s.head.attempt == nil {
			attempt := make([]byte, 16)
			_, _ = rand.Read(attempt) // never fails: it ends the program instead
			if err := s.saveAttempt(ctx, attempt); err != nil {
				return err
			}
			s.at(stepAttemptSaved)
		}
		answer, err := s.relay.ledger.OpenSession(ctx, &seqledgerv1.OpenSessionRequest{
			Scope:    &seqledgerv1.Scope{Organization: s.head.organization, Vault: s.head.vault},
			ClientId: s.head.clientID, AttemptId: s.head.attempt, ExpectedSession: s.head.session,
		})
		switch {
		case err == nil:
			s.at(stepSessionOpened)
			return s.opened(ctx, answer)
		case errors.Is(err, failure.ErrExpired) && len(s.rows) == 0 && s.head.session != 0:
			// The ledger has evicted the stream. No row is open, so it begins anew.
			if err := s.saveSession(ctx, 0, s.head.next); err != nil {
				return err
			}
		case errors.Is(err, failure.ErrExpired):
			return stopf("the ledger has evicted the stream while %d rows had no outcome", len(s.rows))
		case errors.Is(err, failure.ErrFenced):
			return stopf("another program has opened a session as %q, or the database was restored from a backup: %s",
				s.head.clientID, compare)
		default:
			s.note(ctx, err)
			return err
		}
	}
}

// checkLedger checks that the stream's numbers belong to this ledger.
func (s *stream) checkLedger(ctx context.Context) error {
	status, err := s.relay.ledger.Status(ctx)
	if err != nil {
		s.note(ctx, err)
		return fmt.Errorf("asking for the ledger's id: %w", err)
	}
	id := status.GetLedgerId()
	switch {
	case id == "":
		return errors.New("the server does not say its ledger's id")
	case s.head.ledgerID == "":
		s.head.ledgerID = id // durable with the attempt
	case s.head.ledgerID != id:
		return stopf("the ledger is %s, and rows were written to %s: was it restored from a backup?", id,
			s.head.ledgerID)
	}
	return nil
}

// compare tells the operator what to do when table and ledger differ.
const compare = "compare the open rows with the ledger, say with outbox settle which are committed, then outbox resume"

// opened compares the table with the stream's state in the ledger. A restored database has rows that are committed and
// not marked so: opened never continues numbers that the table did not give out.
func (s *stream) opened(ctx context.Context, answer *seqledgerv1.OpenSessionResponse) error {
	s.relay.sessions.Add(1)
	state := answer.GetState()
	last, next := state.GetLastCommittedSequence(), s.head.next
	switch {
	case next == 0: // an operator has compared, and no row has a number
		next = last + 1
	case s.head.session == 0 && (last > 0 || answer.GetPreviousSession() != 0):
		return stopf("the stream is new in this table, and the ledger has its numbers to %d: another program has "+
			"written as %q, or the database was restored from a backup: %s", last, s.head.clientID, compare)
	case s.head.session == 0:
		next = 1
	case len(s.rows) > 0 && (last+1 < s.rows[0].sequence || last >= next):
		return stopf("the ledger has committed the numbers to %d, and the rows without an outcome are %d to %d: %s",
			last, s.rows[0].sequence, next-1, compare)
	case len(s.rows) == 0 && last+1 != next:
		return stopf("the ledger has committed the numbers to %d, and the rows to %d: %s", last, next-1, compare)
	}
	if err := s.saveSession(ctx, state.GetSession(), next); err != nil {
		return err
	}
	s.at(stepSessionSaved)
	s.head.committed = last
	s.window = int(max(1, state.GetReceiptWindow()))
	s.ttl, s.used, s.open = ttlOf(state), time.Now(), true
	return nil
}

// ttlOf returns the time without a commit after which the ledger evicts the stream.
func ttlOf(state *seqledgerv1.ClientState) time.Duration {
	return state.GetExpiresAt().AsTime().Sub(state.GetLastSeen().AsTime())
}
