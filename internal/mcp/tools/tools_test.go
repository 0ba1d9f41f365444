package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// api is a ledger in memory whose answers a test sets. A nil function means that the test does not expect the call.
type api struct {
	seqledgerv1connect.UnimplementedLedgerServiceHandler
	seqledgerv1connect.UnimplementedIdempotencyServiceHandler

	write    func(*seqledgerv1.WriteRequest) (*seqledgerv1.Receipt, error)
	state    func(*seqledgerv1.GetClientStateRequest) (*seqledgerv1.ClientState, error)
	reserve  func(*seqledgerv1.ReserveRequest) (*seqledgerv1.ReserveResponse, error)
	complete func(*seqledgerv1.CompleteRequest) (*seqledgerv1.CompleteResponse, error)
	reject   func(*seqledgerv1.RejectRequest) (*seqledgerv1.RejectResponse, error)
	beat     func(*seqledgerv1.HeartbeatRequest) (*seqledgerv1.HeartbeatResponse, error)
	record   func(*seqledgerv1.GetRecordRequest) (*seqledgerv1.IdempotencyRecord, error)
	resolve  func(*seqledgerv1.ResolveRecordRequest) (*seqledgerv1.ResolveRecordResponse, error)
	// lose is how many of the next answers are lost after the handler has run.
	lose atomic.Int32
}

func answer[T any](m *T, err error) (*connect.Response[T], error) {
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(m), nil
}

func (a *api) Write(
	_ context.Context, r *connect.Request[seqledgerv1.WriteRequest],
) (*connect.Response[seqledgerv1.WriteResponse], error) {
	receipt, err := a.write(r.Msg)
	return answer(&seqledgerv1.WriteResponse{Receipt: receipt}, err)
}

func (a *api) GetClientState(
	_ context.Context, r *connect.Request[seqledgerv1.GetClientStateRequest],
) (*connect.Response[seqledgerv1.GetClientStateResponse], error) {
	state, err := a.state(r.Msg)
	return answer(&seqledgerv1.GetClientStateResponse{State: state}, err)
}

func (a *api) Reserve(
	_ context.Context, r *connect.Request[seqledgerv1.ReserveRequest],
) (*connect.Response[seqledgerv1.ReserveResponse], error) {
	return answer(a.reserve(r.Msg))
}

func (a *api) Complete(
	_ context.Context, r *connect.Request[seqledgerv1.CompleteRequest],
) (*connect.Response[seqledgerv1.CompleteResponse], error) {
	return answer(a.complete(r.Msg))
}

func (a *api) Reject(
	_ context.Context, r *connect.Request[seqledgerv1.RejectRequest],
) (*connect.Response[seqledgerv1.RejectResponse], error) {
	return answer(a.reject(r.Msg))
}

func (a *api) Heartbeat(
	_ context.Context, r *connect.Request[seqledgerv1.HeartbeatRequest],
) (*connect.Response[seqledgerv1.HeartbeatResponse], error) {
	return answer(a.beat(r.Msg))
}

func (a *api) GetRecord(
	_ context.Context, r *connect.Request[seqledgerv1.GetRecordRequest],
) (*connect.Response[seqledgerv1.GetRecordResponse], error) {
	record, err := a.record(r.Msg)
	return answer(&seqledgerv1.GetRecordResponse{Record: record}, err)
}

func (a *api) ResolveRecord(
	_ context.Context, r *connect.Request[seqledgerv1.ResolveRecordRequest],
) (*connect.Response[seqledgerv1.ResolveRecordResponse], error) {
	return answer(a.resolve(r.Msg))
}

// RoundTrip implements http.RoundTripper: it runs the handler in the caller's goroutine.
func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	mux := http.NewServeMux()
	mux.Handle(seqledgerv1connect.NewLedgerServiceHandler(a))
	mux.Handle(seqledgerv1connect.NewIdempotencyServiceHandler(a))
	recorder := httptest.NewRecorder()
	mux.ServeHTTP(recorder, r)
	if a.lose.Load() > 0 {
		a.lose.Add(-1)
		return nil, io.ErrUnexpectedEOF
	}
	return recorder.Result(), nil
}

// over returns tools that call a.
func over(t *testing.T, a *api, attempts int) *tools {
	t.Helper()
	c := must.Get(client.New(client.Options{
		Server: "127.0.0.1", HTTPClient: &http.Client{Transport: a}, MaxAttempts: attempts,
	}))(t)
	t.Cleanup(func() {
		check.Is(t, c.Close(), nil)
	})
	return &tools{Options{
		Client: c, Scope: &seqledgerv1.Scope{Organization: "own", Vault: "v"}, Namespace: "home", Timeout: time.Minute,
	}}
}

// refused returns the error of a call that the ledger refused.
func refused(t testing.TB, code connect.Code, refusal seqledgerv1.WriteErrorCode, field string) error {
	t.Helper()
	err := connect.NewError(code, errors.New("why"))
	detail := must.Get(connect.NewErrorDetail(&seqledgerv1.WriteError{Code: refusal, Message: "why", Field: field}))(t)
	err.AddDetail(detail)
	return err
}

// TestEveryAnswerSaysWhatToDo checks that every outcome and state has advice: an agent without advice would guess.
func TestEveryAnswerSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for number, name := range seqledgerv1.RecordOutcome_name {
		short, next := outcome(seqledgerv1.RecordOutcome(number))
		if short != strings.TrimPrefix(name, "RECORD_OUTCOME_") || (next == "") != (number == 0) {
			t.Errorf("%s is shown as %q with the advice %q", name, short, next)
		}
	}
	for number, name := range seqledgerv1.RecordState_name {
		check.Equal(t, (nextIn[seqledgerv1.RecordState(number)] == ""), number == 0,
			"a record that is %s has the advice %q", name)
	}
	// These two outcomes, in which the action may have happened, must never say that it may be done.
	for _, text := range []string{
		nextAfter[seqledgerv1.RecordOutcome_RECORD_OUTCOME_INDETERMINATE],
		nextIn[seqledgerv1.RecordState_RECORD_STATE_INDETERMINATE],
	} {
		if !strings.Contains(text, "do not do it") || !strings.Contains(text, "resolve") {
			t.Errorf("an unknown outcome has the advice %q", text)
		}
	}
}

// TestAdviceOnErrors checks that the advice on a failure claims no more than the client knows.
func TestAdviceOnErrors(t *testing.T) {
	t.Parallel()
	check.Is(t, advise(nil), nil, "no error has no advice")
	of := func(code seqledgerv1.WriteErrorCode) *failure.Error {
		return failure.FromStream(&seqledgerv1.WriteError{Code: code, Field: "ttl"})
	}
	open := func(cause error) error { return failure.OutcomeUnknown(0, "k", cause) }
	unauthenticated := failure.FromConnect(connect.NewWireError(connect.CodeUnauthenticated, nil), 0)
	notFound := failure.FromConnect(connect.NewWireError(connect.CodeNotFound, nil), 0)
	lost := failure.FromConnect(connect.NewError(connect.CodeUnavailable, io.ErrUnexpectedEOF), 0)
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"not found":     {notFound, "no such thing"},
		"token refused": {unauthenticated, "Nothing was done. A person"},
		"nothing sent":  {&failure.NotExecutedError{Cause: io.EOF}, "Nothing was written. Repeat"},
		"lost":          {lost, "not known"},
		"not the API's": {io.ErrUnexpectedEOF, "not known"},
		"condition":     {of(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS), "the key is free"},
		"malformed":     {of(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT), "Correct ttl"},
		"key reused":    {of(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_IDEMPOTENCY_KEY_REUSED), "stands for another"},
		"denied":        {of(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED), "Do not repeat"},
		"too many keys": {of(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_KEYS), "records must expire"},
		"queue full":    {of(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL), "in a moment"},
		"draining":      {of(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING), "in a moment"},
		"elsewhere":     {of(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER), "in a moment"},
		"unknown":       {of(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN), "not known"},
		"newer server":  {of(999), "not known"},
		// A copy that was sent before may have been executed, whatever the answer to a later one.
		"open, then denied": {open(of(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED)), "not known"},
		"open, then failed": {open(of(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS)), "not known"},
		"open, then token":  {open(unauthenticated), "not known"},
		"open, then absent": {open(notFound), "not known"},
	} {
		got := advise(test.err)
		if !strings.Contains(got.Error(), test.want) || !errors.Is(got, test.err) {
			t.Errorf("%s: want %q in %q", name, test.want, got)
		}
		if test.want == "not known" && strings.Contains(got.Error(), "Nothing was") {
			t.Errorf("%s: an open outcome is told to be none: %q", name, got)
		}
	}
}

// TestAnAnswerThatIsLost checks that the tool retries the write, and that the first copy may still be committed if the
// retry is refused because of the credential.
func TestAnAnswerThatIsLost(t *testing.T) {
	t.Parallel()
	calls := 0
	a := &api{}
	a.write = func(*seqledgerv1.WriteRequest) (*seqledgerv1.Receipt, error) {
		if calls++; calls > 1 {
			return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("the key was removed"))
		}
		return &seqledgerv1.Receipt{TxId: "t"}, nil
	}
	a.lose.Store(1)
	text := "x"
	_, err := over(t, a, 5).writeOnce(t.Context(), &writeInput{
		record: record{Key: "k"}, Operations: []operation{{Append: &text}},
	})
	if calls != 2 || err == nil || !strings.Contains(err.Error(), "not known") ||
		strings.Contains(err.Error(), "Nothing was") {
		t.Errorf("after %d calls the agent is told %v", calls, err)
	}
}

// TestScopes checks that a name is an organization, or an organization with a vault, and that nothing else reaches the
// ledger.
func TestScopes(t *testing.T) {
	t.Parallel()
	own := &tools{Options{Scope: &seqledgerv1.Scope{Organization: "own"}}}
	for name, want := range map[string]*seqledgerv1.Scope{
		"": {Organization: "own"}, "acme": {Organization: "acme"}, "acme/main": {Organization: "acme", Vault: "main"},
		"/": nil, "/main": nil, "acme/": nil, "acme/main/": nil, "acme/main/x": nil, "//": nil,
	} {
		got, err := own.scope(name)
		if !proto.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q is read as %v, %v", name, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "nothing was done") {
			t.Errorf("%q: the error does not say that nothing was done: %v", name, err)
		}
	}
	check.ErrorContains(t, check.Err(new(tools).scope("")), "scope is missing", "no scope at all")
}

// TestOwnership checks that a call passes on what reserve returned, or does nothing.
func TestOwnership(t *testing.T) {
	t.Parallel()
	us := &tools{Options{Scope: &seqledgerv1.Scope{Organization: "own"}, Namespace: "home"}}
	id := strings.Repeat("0f", 16)
	for _, test := range []struct {
		token, id, want string
	}{
		{"7", id, ""}, {"18446744073709551615", strings.ToUpper(id), ""},
		{"0", id, "token"}, {"", id, "token"}, {"-1", id, "token"}, {"7.0", id, "token"}, {" 7", id, "token"},
		{"18446744073709551616", id, "token"},
		{"7", "", "attempt_id"}, {"7", id[:30], "attempt_id"}, {"7", id + "00", "attempt_id"},
		{"7", id[:31] + "g", "attempt_id"},
	} {
		got, err := us.ownership(&owner{record: record{Key: "k"}, Token: test.token, AttemptID: test.id})
		switch {
		case test.want == "" && (err != nil || number(got.GetToken()) != test.token || len(got.GetAttemptId()) != 16 ||
			got.GetRecord().GetNamespace() != "home"):
			t.Errorf("%+v: %v, %v", test, got, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) ||
			!strings.Contains(err.Error(), "nothing was done")):
			t.Errorf("%+v: want an error about %s, got %v", test, test.want, err)
		}
	}
	if _, err := us.ownership(&owner{record: record{Scope: "/"}, Token: "7", AttemptID: id}); err == nil {
		t.Error("a scope that is none was taken")
	}
}

// drawEntity draws an entity with some of the four conditions.
func drawEntity(t *rapid.T, withValue bool) (e *entity, conditions int) {
	e = &entity{Key: rapid.StringN(1, 8, -1).Draw(t, "key")}
	if withValue {
		e.Value = rapid.String().Draw(t, "value")
	}
	set := func(name string) bool {
		chosen := rapid.IntRange(0, 3).Draw(t, name) == 0
		if chosen {
			conditions++
		}
		return chosen
	}
	e.IfAbsent, e.IfPresent = set("absent"), set("present")
	if set("if value") {
		v := rapid.String().Draw(t, "its value")
		e.IfValue = &v
	}
	if set("if version") {
		v := rapid.Uint64().Draw(t, "its version")
		e.IfVersion = &v
	}
	return e, conditions
}

// wantCondition computes the condition of an entity in the API's form, independently of the tools.
func wantCondition(e *entity) *seqledgerv1.Condition {
	switch {
	case e.IfAbsent:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_NotExists{NotExists: true}}
	case e.IfPresent:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_MustExist{MustExist: true}}
	case e.IfValue != nil:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: []byte(*e.IfValue)}}
	case e.IfVersion != nil:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_Version{Version: *e.IfVersion}}
	}
	return nil
}

// TestOperationsOfAnAgent checks that every operation, with every condition, becomes the API message with the same
// meaning, and that two kinds, no kind, or two conditions are refused. It parses the JSON that an agent sends.
func TestOperationsOfAnAgent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var o operation
		var want seqledgerv1.Operation
		kinds, wrong := 0, false
		draw := func(name string) bool {
			chosen := rapid.IntRange(0, 3).Draw(t, name) == 0
			if chosen {
				kinds++
			}
			return chosen
		}
		if draw("append") {
			text := rapid.String().Draw(t, "text")
			o.Append = &text
			want.Operation = &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{Payload: []byte(text)}}
		}
		if draw("set") {
			e, n := drawEntity(t, true)
			o.Set, wrong = e, wrong || n > 1
			want.Operation = &seqledgerv1.Operation_SetEntity{SetEntity: &seqledgerv1.SetEntity{
				Key: e.Key, Value: []byte(e.Value), Condition: wantCondition(e)}}
		}
		if draw("delete") {
			e, n := drawEntity(t, rapid.IntRange(0, 4).Draw(t, "with a value") == 0)
			o.Delete, wrong = e, wrong || n > 1 || e.Value != ""
			want.Operation = &seqledgerv1.Operation_DeleteEntity{DeleteEntity: &seqledgerv1.DeleteEntity{
				Key: e.Key, Condition: wantCondition(e)}}
		}
		if draw("relate") {
			o.Relate = &relationship{"r", "of", rapid.StringN(1, 4, -1).Draw(t, "subject")}
			want.Operation = &seqledgerv1.Operation_CreateRelationship{
				CreateRelationship: &seqledgerv1.CreateRelationship{
					Resource: "r", Relation: "of", Subject: o.Relate.Subject}}
		}
		if draw("unrelate") {
			o.Unrelate = &relationship{"r", "of", rapid.StringN(1, 4, -1).Draw(t, "no subject")}
			want.Operation = &seqledgerv1.Operation_DeleteRelationship{
				DeleteRelationship: &seqledgerv1.DeleteRelationship{
					Resource: "r", Relation: "of", Subject: o.Unrelate.Subject}}
		}
		text := must.Get(json.Marshal(&o))(t)
		var read operation
		must.Do(t, json.Unmarshal(text, &read))
		got, err := read.message()
		if good := kinds == 1 && !wrong; good != (err == nil) {
			t.Fatalf("%s with %d kinds is read as %v, %v", text, kinds, got, err)
		}
		if err == nil && !proto.Equal(got, &want) {
			t.Fatalf("%s is read as %v, want %v", text, got, &want)
		}
	})
}

// TestWriteOnce checks that a write sends the key and the operations unchanged, and shows every number as text, because
// a JSON number has 53 bits.
func TestWriteOnce(t *testing.T) {
	t.Parallel()
	var sent *seqledgerv1.WriteRequest
	a := &api{write: func(r *seqledgerv1.WriteRequest) (*seqledgerv1.Receipt, error) {
		sent = r
		return &seqledgerv1.Receipt{
			TxId: "tx", Index: 1<<64 - 1, BlockHeight: 1<<53 + 1, Actor: "agent", Replayed: true,
			CommittedAt: timestamppb.New(time.Unix(1, 5)),
			Results:     []*seqledgerv1.OperationResult{{Version: 1<<53 + 3}, {}},
		}, nil
	}}
	us := over(t, a, 1)
	text := "paid"
	out := must.Get(us.writeOnce(t.Context(), &writeInput{
		record: record{Scope: "acme/main", Namespace: "n", Principal: "p", Key: "k"}, TTLSeconds: 9,
		Operations: []operation{{Append: &text}, {Delete: &entity{Key: "e"}}},
	}))(t)
	if sent.GetScope().GetVault() != "main" || sent.GetNamespace() != "n" || sent.GetPrincipal() != "p" ||
		sent.GetIdempotencyKey() != "k" || sent.GetSequence() != 0 || sent.GetTtl().GetSeconds() != 9 ||
		len(sent.GetOperations()) != 2 {
		t.Errorf("sent: %v", sent)
	}
	want := receiptOutput{TxID: "tx", Replayed: true, Index: "18446744073709551615", BlockHeight: "9007199254740993",
		CommittedAt: "1970-01-01T00:00:01.000000005Z", Actor: "agent", Versions: []string{"9007199254740995", "0"}}
	if fmt.Sprint(*out) != fmt.Sprint(want) {
		t.Errorf("shown: %+v\nwant:  %+v", *out, want)
	}
	for name, in := range map[string]*writeInput{
		"no scope":          {record: record{Scope: "/"}},
		"no such operation": {Operations: []operation{{}}},
		"two at once":       {Operations: []operation{{Append: &text, Delete: &entity{Key: "e"}}}},
	} {
		sent = nil
		if _, err := us.writeOnce(t.Context(), in); err == nil || sent != nil ||
			!strings.Contains(err.Error(), "nothing was") {
			t.Errorf("%s: sent %v, and the agent is told %v", name, sent, err)
		}
	}
}
