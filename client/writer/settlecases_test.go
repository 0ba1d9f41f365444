package writer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// settleCase is what a Writer makes of what a server answers. The TypeScript client's tests go through the same ones
// (client/typescript/test/rules.test.ts).
type settleCase struct {
	Name   string        `json:"name"`
	Rounds []settleRound `json:"rounds"` // of sending
	// Last is what the second session says is committed.
	Last     uint64   `json:"last"`
	Want     []string `json:"want"`     // what becomes of writes 1, 2, 3, …
	Sessions int      `json:"sessions"` // that were opened
	Ended    bool     `json:"ended"`    // the Writer, with writes that are not settled
	// CallsOnly is for clients that send in calls: on a stream, the results that are missing may still come.
	CallsOnly bool `json:"calls_only"`
}

// settleRound are the answers to one round; none when it is lost.
type settleRound struct {
	lost    bool
	answers []settleAnswer
}

// settleAnswer is a receipt, a refusal, or neither.
type settleAnswer struct {
	Receipt     uint64 `json:"receipt"` // its sequence
	Replayed    bool   `json:"replayed"`
	OtherLedger bool   `json:"other_ledger"`
	WithoutTxID bool   `json:"without_tx_id"`
	Refusal     string `json:"refusal"` // the name of a code, or its number
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *settleRound) UnmarshalJSON(b []byte) error {
	if string(b) == `"lost"` {
		r.lost = true
		return nil
	}
	return json.Unmarshal(b, &r.answers)
}

func (a settleAnswer) result(t *testing.T) *seqledgerv1.WriteResult {
	const name = "WRITE_ERROR_CODE_"
	switch {
	case a.Refusal != "":
		c, known := seqledgerv1.WriteErrorCode_value[name+a.Refusal]
		if !known {
			n, err := strconv.ParseInt(a.Refusal, 10, 32)
			check.Is(t, err, nil, "the table has the code %q", a.Refusal)
			c = int32(n)
		}
		return refusal(&seqledgerv1.WriteError{Code: code(c), Message: "refused"})
	case a.Receipt != 0:
		id := "01234567-89ab-8cde-b000-00000000000a"
		switch {
		case a.OtherLedger:
			id = "01234567-89ab-8cde-bc00-00000000000a"
		case a.WithoutTxID:
			id = ""
		}
		return &seqledgerv1.WriteResult{Result: &seqledgerv1.WriteResult_Receipt{Receipt: &seqledgerv1.Receipt{
			TxId: id, Sequence: a.Receipt, Session: 1, Replayed: a.Replayed,
		}}}
	}
	return new(seqledgerv1.WriteResult)
}

// settleServer answers as a case says.
type settleServer struct {
	seqledgerv1connect.UnimplementedLedgerServiceHandler
	seqledgerv1connect.UnimplementedAdminServiceHandler

	t *testing.T
	c *settleCase

	mu     sync.Mutex
	opens  int
	rounds int
	sent   []*seqledgerv1.WriteRequest
}

// OpenSession implements the handler.
func (s *settleServer) OpenSession(_ context.Context, r *connect.Request[seqledgerv1.OpenSessionRequest]) (
	*connect.Response[seqledgerv1.OpenSessionResponse], error,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opens++
	state := &seqledgerv1.ClientState{Session: uint64(s.opens), ReceiptWindow: 64}
	if s.opens > 1 {
		state.LastCommittedSequence = s.c.Last
	}
	return connect.NewResponse(&seqledgerv1.OpenSessionResponse{
		State: state, PreviousSession: r.Msg.GetExpectedSession(),
	}), nil
}

// GetStatus implements the handler.
func (*settleServer) GetStatus(context.Context, *connect.Request[seqledgerv1.GetStatusRequest]) (
	*connect.Response[seqledgerv1.GetStatusResponse], error,
) {
	return connect.NewResponse(&seqledgerv1.GetStatusResponse{
		Status: &seqledgerv1.Status{LedgerId: "0123456789abcdec"},
	}), nil
}

// next returns the next round once it has all its writes, which may come in several messages.
func (s *settleServer) next(writes []*seqledgerv1.WriteRequest, waiting int) (round *settleRound, complete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, writes...)
	if s.rounds == len(s.c.Rounds) {
		s.t.Errorf("a round too many, with %v", writes)
		return &settleRound{lost: true}, true
	}
	round = &s.c.Rounds[s.rounds]
	if wanted := max(len(round.answers), 1); waiting < wanted || round.lost && waiting < len(s.c.Want) {
		return nil, false
	}
	s.rounds++
	return round, true
}

// WriteStream implements the handler.
func (s *settleServer) WriteStream(_ context.Context,
	stream *connect.BidiStream[seqledgerv1.WriteStreamRequest, seqledgerv1.WriteStreamResponse],
) error {
	if err := stream.Send(nil); err != nil {
		return err
	}
	for waiting := 0; ; {
		m, err := stream.Receive()
		if err != nil {
			return nil
		}
		if len(m.Writes) == 0 {
			continue
		}
		waiting += len(m.Writes)
		round, complete := s.next(m.Writes, waiting)
		if !complete {
			continue
		}
		if round.lost {
			return connect.NewError(connect.CodeUnavailable, errors.New("cut"))
		}
		response := new(seqledgerv1.WriteStreamResponse)
		for _, a := range round.answers {
			response.Results = append(response.Results, a.result(s.t))
		}
		waiting -= len(round.answers)
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

// settled words the outcome of a write as the table does. Why a Writer left a write open is told by its own error.
func settled(ctx context.Context, w *writer.Writer, p *writer.Pending) string {
	receipt, err := p.Wait(ctx)
	kind := "unknown"
	switch {
	case err == nil && writer.ReceiptGone(receipt):
		return "committed, receipt gone"
	case err == nil:
		return "committed"
	case errors.Is(err, failure.ErrNotExecuted):
		kind = "not executed"
	case !errors.Is(err, failure.ErrOutcomeUnknown):
		return err.Error()
	}
	switch {
	case errors.Is(err, writer.ErrStopped):
		return kind + ": stopped"
	case errors.Is(err, failure.ErrProtocol):
		return kind + ": protocol"
	}
	if failure.CodeOf(err) == 0 {
		err = w.Err()
	}
	return kind + ": " + strings.TrimPrefix(failure.CodeOf(err).String(), "WRITE_ERROR_CODE_")
}

// serveCase returns a client of a server that answers as a case says.
func serveCase(t *testing.T, s interface {
	seqledgerv1connect.LedgerServiceHandler
	seqledgerv1connect.AdminServiceHandler
}) *client.Client {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(seqledgerv1connect.NewLedgerServiceHandler(s))
	mux.Handle(seqledgerv1connect.NewAdminServiceHandler(s))
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return dial(t, &fakeServer{address: server.Listener.Addr().String()})
}

func TestSettleCases(t *testing.T) {
	t.Parallel()
	b := must.Get(os.ReadFile("../testdata/settle.json"))(t)
	var cases []settleCase
	if err := json.Unmarshal(b, &cases); err != nil || len(cases) < 20 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if c.CallsOnly {
				t.Skip("for clients that send in calls")
			}
			s := &settleServer{t: t, c: &c}
			c.check(t, s, newWriter(t, serveCase(t, s), "w"))
		})
	}
}

// check writes, and compares what becomes of the writes with the table.
func (c *settleCase) check(t *testing.T, s *settleServer, w *writer.Writer) {
	t.Helper()
	var operations []*seqledgerv1.Operation
	for i := range c.Want {
		operations = append(operations, payload(fmt.Sprint(i)))
	}
	pendings := burst(t, w, operations...)
	for i, p := range pendings {
		check.Equal(t, settled(t.Context(), w, p), c.Want[i], "write %d: %s", i+1)
	}
	_, ended := errors.AsType[*writer.UnsettledError](w.Err())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opens != c.Sessions || s.rounds != len(c.Rounds) || ended != c.Ended {
		t.Errorf("%d sessions, %d rounds, ended %v (%v); want %d, %d, %v", s.opens, s.rounds, ended, w.Err(),
			c.Sessions, len(c.Rounds), c.Ended)
	}
	for _, sent := range s.sent { // every copy of a write has the same key
		if p := pendings[sent.Sequence-1]; sent.IdempotencyKey != p.Key() {
			t.Errorf("write %d was sent under %q, and is %q", sent.Sequence, sent.IdempotencyKey, p.Key())
		}
	}
}
