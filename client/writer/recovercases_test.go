package writer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// recoverCase is what processes with one journal, one after the other, make of it and of what a server answers. The
// TypeScript client's tests go through the same ones (client/typescript/test/recover.test.ts).
type recoverCase struct {
	Name    string        `json:"name"`
	Journal recoverState  `json:"journal"` // before the first life
	Lives   []recoverLife `json:"lives"`
	After   recoverState  `json:"after"` // the last one
}

// recoverState is a journal of one stream. Its settled writes come first, then the unsettled ones, up to Next.
type recoverState struct {
	Session uint64 `json:"session"`
	Attempt bool   `json:"attempt"` // an attempt_id may be under way
	Next    uint64 `json:"next"`    // sequence
	Settled int    `json:"settled"` // and not acknowledged
	Writes  int    `json:"writes"`  // unsettled
}

// recoverLife is one process.
type recoverLife struct {
	NoReopen bool            `json:"no_reopen"`
	Ledgers  []string        `json:"ledgers"` // that GetStatus names in turn, then the last: own (the default) or other
	Answers  []recoverAnswer `json:"answers"` // to OpenSession
	Stream   recoverAnswer   `json:"stream"`  // to GetClientState: its session and last; without either it is unknown
	Want     string          `json:"want"`    // of opening the Writer
	// Unsettled is how many writes an opening that fails hands over. Forget forgets the stream then.
	Unsettled int  `json:"unsettled"`
	Forget    bool `json:"forget"`
	// Of a Writer that is open: its next sequence, and what becomes of the recovered writes, as in settle.json.
	Next     uint64        `json:"next"`
	Rounds   []settleRound `json:"rounds"`
	Outcomes []string      `json:"outcomes"`
	Ended    bool          `json:"ended"`
}

// recoverAnswer is a call of OpenSession and the answer to it.
type recoverAnswer struct {
	Expect uint64 `json:"expect"` // the expected session of the call
	// Kept says that the call has the attempt_id of the journal. Without it the attempt is a new one, and all calls
	// of one life have the same.
	Kept     bool   `json:"kept"`
	Lost     bool   `json:"lost"`
	Refusal  string `json:"refusal"`
	Session  uint64 `json:"session"`
	Previous uint64 `json:"previous"`
	Last     uint64 `json:"last"`
}

const (
	ownLedger   = 0x0123456789abcdec
	otherLedger = 0x0123456789abcdef
)

// recoverServer answers one life of a case.
type recoverServer struct {
	settleServer

	life     *recoverLife
	kept     []byte // the journal's attempt, or nil
	attempt  []byte // of the life's calls
	asked    int    // calls of OpenSession
	statuses int    // calls of GetStatus
}

// OpenSession implements the handler.
func (s *recoverServer) OpenSession(_ context.Context, r *connect.Request[seqledgerv1.OpenSessionRequest]) (
	*connect.Response[seqledgerv1.OpenSessionResponse], error,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked == len(s.life.Answers) {
		s.t.Errorf("a call of OpenSession too many: %v", r.Msg)
		return nil, withDetail(connect.CodeInvalidArgument, &seqledgerv1.WriteError{Code: codeInvalid})
	}
	a := s.life.Answers[s.asked]
	s.asked++
	if s.attempt == nil {
		s.attempt = r.Msg.GetAttemptId()
	}
	if r.Msg.GetExpectedSession() != a.Expect || bytes.Equal(r.Msg.GetAttemptId(), s.kept) != a.Kept ||
		!bytes.Equal(r.Msg.GetAttemptId(), s.attempt) {
		s.t.Errorf("call %d expects session %d with attempt %x; want %+v, the journal's attempt is %x, the first %x",
			s.asked, r.Msg.GetExpectedSession(), r.Msg.GetAttemptId(), a, s.kept, s.attempt)
	}
	switch {
	case a.Lost:
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("lost"))
	case a.Refusal != "":
		e := settleAnswer{Refusal: a.Refusal}.result(s.t).GetError()
		c := connect.CodeFailedPrecondition
		if e.GetCode() == codeInvalid {
			c = connect.CodeInvalidArgument
		}
		return nil, withDetail(c, e)
	}
	return connect.NewResponse(&seqledgerv1.OpenSessionResponse{
		State: &seqledgerv1.ClientState{
			Session: a.Session, LastCommittedSequence: a.Last, ReceiptWindow: 64,
		},
		PreviousSession: a.Previous,
	}), nil
}

// GetClientState implements the handler.
func (s *recoverServer) GetClientState(context.Context, *connect.Request[seqledgerv1.GetClientStateRequest]) (
	*connect.Response[seqledgerv1.GetClientStateResponse], error,
) {
	state := &seqledgerv1.ClientState{Session: s.life.Stream.Session, LastCommittedSequence: s.life.Stream.Last}
	return connect.NewResponse(&seqledgerv1.GetClientStateResponse{State: state}), nil
}

// GetStatus implements the handler.
func (s *recoverServer) GetStatus(context.Context, *connect.Request[seqledgerv1.GetStatusRequest]) (
	*connect.Response[seqledgerv1.GetStatusResponse], error,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := uint64(ownLedger)
	if ledgers := s.life.Ledgers; len(ledgers) > 0 && ledgers[min(s.statuses, len(ledgers)-1)] == "other" {
		id = otherLedger
	}
	s.statuses++
	return connect.NewResponse(&seqledgerv1.GetStatusResponse{
		Status: &seqledgerv1.Status{LedgerId: fmt.Sprintf("%016x", id)},
	}), nil
}

func TestRecoverCases(t *testing.T) {
	t.Parallel()
	b := must.Get(os.ReadFile("../testdata/recover.json"))(t)
	var cases []recoverCase
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&cases); err != nil || len(cases) < 20 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			j := openJournal(t, filepath.Join(t.TempDir(), "journal"), journal.Options{})
			c.Journal.fill(t, j)
			for i := range c.Lives {
				c.Lives[i].live(t, j)
			}
			check.Equal(t, stateOf(j), c.After, "the journal has %+v")
		})
	}
}

// fill writes the state into a journal.
func (s *recoverState) fill(t *testing.T, j *journal.File) {
	t.Helper()
	must.Get(j.Claim(till))(t)
	head := journal.Head{Ledger: ownLedger, Session: s.Session, NextSequence: s.Next}
	if s.Session == 0 {
		head.Ledger = 0
	}
	if s.Attempt {
		head.Attempt = []byte("the journal's own")[:16]
	}
	head.NextSequence -= uint64(s.Settled + s.Writes)
	records := []journal.Record{{Kind: journal.KindHead, Head: head}}
	receipts := []journal.Record{}
	for i := range s.Settled + s.Writes {
		sequence := head.NextSequence + uint64(i)
		request := must.Get(proto.Marshal(&seqledgerv1.WriteRequest{
			Operations: []*seqledgerv1.Operation{payload(fmt.Sprint(sequence))},
		}))(t)
		records = append(records, journal.Record{
			Kind: journal.KindWrite, ID: uint64(i), Sequence: sequence, Key: fmt.Sprint("key ", sequence),
			Tag: fmt.Sprint("tag ", sequence), Request: request, Reserve: 1040,
		})
		if i < s.Settled {
			receipt := must.Get(proto.Marshal(settleAnswer{Receipt: sequence}.result(t).GetReceipt()))(t)
			receipts = append(receipts, journal.Record{Kind: journal.KindSettled, ID: uint64(i), Receipt: receipt})
		}
	}
	for _, r := range append(records, receipts...) {
		must.Do(t, j.Append(till, r))
	}
	j.Release(till)
}

// stateOf reads what fill writes.
func stateOf(j *journal.File) (s recoverState) {
	for _, state := range j.Streams() {
		s.Session, s.Next, s.Attempt = state.Head.Session, state.Head.NextSequence, len(state.Head.Attempt) > 0
		for _, e := range state.Entries {
			if e.Settled {
				s.Settled++
			} else {
				s.Writes++
			}
		}
	}
	return s
}

// live opens a Writer with the journal, against a server of its own, and compares what becomes of it.
func (l *recoverLife) live(t *testing.T, j *journal.File) {
	t.Helper()
	s := &recoverServer{life: l}
	s.t, s.c = t, &settleCase{Rounds: l.Rounds, Want: l.Outcomes}
	for _, state := range j.Streams() {
		s.kept = state.Head.Attempt
	}
	w, err := writer.Open(t.Context(), serveCase(t, s), writer.Options{
		Scope: org, ClientID: "till", Journal: j, NoReopen: l.NoReopen,
	})
	unsettled, ended := errors.AsType[*writer.UnsettledError](err)
	switch got := opening(err); {
	case got != l.Want:
		t.Errorf("opening is %q (%v), want %q", got, err, l.Want)
	case ended && len(unsettled.Writes) != l.Unsettled || !ended && l.Unsettled > 0:
		t.Errorf("%v hands over %d writes, want %d", err, len(unsettled.Writes), l.Unsettled)
	}
	if err == nil {
		l.settle(t, w)
	}
	if l.Forget {
		must.Do(t, j.Forget(till))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked != len(l.Answers) || s.rounds != len(l.Rounds) {
		t.Errorf("%d calls of OpenSession and %d rounds, want %d and %d", s.asked, s.rounds, len(l.Answers),
			len(l.Rounds))
	}
}

// opening words what became of opening a Writer as the table does.
func opening(err error) string {
	_, ended := errors.AsType[*writer.UnsettledError](err)
	switch {
	case err == nil:
		return "opened"
	case !ended && failure.CodeOf(err) == codeInvalid:
		return "refused"
	case ended && errors.Is(err, failure.ErrExpired):
		return "expired"
	case ended && errors.Is(err, failure.ErrFenced):
		return "fenced"
	case ended && errors.Is(err, failure.ErrOtherLedger):
		return "other ledger"
	case ended && errors.Is(err, failure.ErrProtocol):
		return "protocol"
	}
	return err.Error()
}

// settle compares what becomes of the recovered writes, and ends the Writer.
func (l *recoverLife) settle(t *testing.T, w *writer.Writer) {
	t.Helper()
	check.Equal(t, w.State().NextSequence, l.Next, "the next sequence is %d")
	var outcomes []string
	for _, p := range w.Recovered() {
		outcomes = append(outcomes, settled(t.Context(), w, p))
	}
	if fmt.Sprint(outcomes) != fmt.Sprint(l.Outcomes) {
		t.Errorf("the recovered writes are %q, want %q", outcomes, l.Outcomes)
	}
	if _, ended := errors.AsType[*writer.UnsettledError](w.Err()); ended != l.Ended {
		t.Errorf("the Writer has ended: %v (%v), want %v", ended, w.Err(), l.Ended)
	}
	_ = w.Close(t.Context()) // says why it has ended
}
