package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/idempotency"
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
	c, err := client.New(client.Options{
		Server: "127.0.0.1", HTTPClient: &http.Client{Transport: a}, MaxAttempts: attempts,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &tools{Options{
		Client: c, Scope: &seqledgerv1.Scope{Organization: "own", Vault: "v"}, Namespace: "home", Timeout: time.Minute,
	}}
}

// refused returns the error of a call that the ledger refused.
func refused(t testing.TB, code connect.Code, refusal seqledgerv1.WriteErrorCode, field string) error {
	t.Helper()
	err := connect.NewError(code, errors.New("why"))
	detail, detailErr := connect.NewErrorDetail(&seqledgerv1.WriteError{Code: refusal, Message: "why", Field: field})
	if detailErr != nil {
		t.Fatal(detailErr)
	}
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
		if next := nextIn[seqledgerv1.RecordState(number)]; (next == "") != (number == 0) {
			t.Errorf("a record that is %s has the advice %q", name, next)
		}
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
	if advise(nil) != nil {
		t.Error("no error has no advice")
	}
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
	if _, err := new(tools).scope(""); err == nil || !strings.Contains(err.Error(), "scope is missing") {
		t.Errorf("no scope at all: %v", err)
	}
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
		text, err := json.Marshal(&o)
		if err != nil {
			t.Fatal(err)
		}
		var read operation
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatal(err)
		}
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
	out, err := us.writeOnce(t.Context(), &writeInput{
		record: record{Scope: "acme/main", Namespace: "n", Principal: "p", Key: "k"}, TTLSeconds: 9,
		Operations: []operation{{Append: &text}, {Delete: &entity{Key: "e"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
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

// TestReserveAsksForWhatWasGiven checks that a reserve passes on its arguments, and that it generates and returns an
// attempt if none is given.
func TestReserveAsksForWhatWasGiven(t *testing.T) {
	t.Parallel()
	var sent *seqledgerv1.ReserveRequest
	a := &api{reserve: func(r *seqledgerv1.ReserveRequest) (*seqledgerv1.ReserveResponse, error) {
		sent = r
		return &seqledgerv1.ReserveResponse{
			Outcome: seqledgerv1.RecordOutcome_RECORD_OUTCOME_ACQUIRED, Token: 1<<53 + 1, Attempt: 2,
			Checkpoint: []byte("half"), RetryAfter: durationpb.New(1500 * time.Millisecond),
		}, nil
	}}
	us := over(t, a, 1)
	id := strings.Repeat("ab", 16)
	before := time.Now()
	out, err := us.reserve(t.Context(), &reserveInput{
		record: record{Key: "k"}, Request: map[string]any{"b": 1, "a": 2}, AttemptID: id, LeaseSeconds: 3,
		TTLSeconds: 4, WaitSeconds: 5, OnLeaseExpired: "takeover",
	})
	if err != nil {
		t.Fatal(err)
	}
	if out.Token != "9007199254740993" || out.Outcome != "ACQUIRED" || out.Checkpoint != "half" ||
		out.RetryAfterSeconds != 1.5 || out.AttemptID != id {
		t.Errorf("shown: %+v", out)
	}
	until := sent.GetValidUntil().AsTime()
	if sent.GetLease().GetSeconds() != 3 || sent.GetTtl().GetSeconds() != 4 || sent.GetWait().GetSeconds() != 5 ||
		sent.GetOnLeaseExpired() != seqledgerv1.LeaseExpiry_LEASE_EXPIRY_TAKEOVER ||
		sent.GetRecord().GetNamespace() != "home" || until.Before(before) || until.After(time.Now().Add(validity)) {
		t.Errorf("sent: %v", sent)
	}
	digest := bytes.Clone(sent.GetFingerprint().GetDigest())
	first, err := us.reserve(t.Context(), &reserveInput{record: record{Key: "k"},
		Request: json.RawMessage(`{"a":2,"b":1}`)})
	if err != nil || !bytes.Equal(digest, sent.GetFingerprint().GetDigest()) {
		t.Errorf("the same request in another order has another fingerprint: %x, %v", sent.GetFingerprint(), err)
	}
	if sent.GetOnLeaseExpired() == seqledgerv1.LeaseExpiry_LEASE_EXPIRY_TAKEOVER || sent.GetLease() != nil {
		t.Errorf("what was left out is sent: %v", sent)
	}
	second, err := us.reserve(t.Context(), &reserveInput{record: record{Key: "k"}, Request: map[string]any{"a": 3}})
	if err != nil || len(first.AttemptID) != 32 || first.AttemptID == second.AttemptID ||
		bytes.Equal(digest, sent.GetFingerprint().GetDigest()) {
		t.Errorf("two attempts: %q, %q, %v", first.AttemptID, second.AttemptID, err)
	}
	sent = nil
	for name, in := range map[string]*reserveInput{
		"policy": {record: record{Key: "k"}, OnLeaseExpired: "again"}, "attempt": {AttemptID: "x"},
		"scope": {record: record{Scope: "a/"}}, "request": {Request: func() {}},
	} {
		if _, err := us.reserve(t.Context(), in); err == nil || sent != nil {
			t.Errorf("%s: sent %v, and the agent is told %v", name, sent, err)
		}
	}
}

// TestFinishing checks that complete, reject, heartbeat and resolve pass on the owner's arguments, and show the
// resulting record.
func TestFinishing(t *testing.T) {
	t.Parallel()
	expires := timestamppb.New(time.Unix(60, 0))
	stands := &seqledgerv1.IdempotencyRecord{State: seqledgerv1.RecordState_RECORD_STATE_REJECTED, Token: 9}
	var got []string
	note := func(what string, m proto.Message) { got = append(got, fmt.Sprint(what, " ", m)) }
	a := &api{
		complete: func(r *seqledgerv1.CompleteRequest) (*seqledgerv1.CompleteResponse, error) {
			note("complete", r)
			return &seqledgerv1.CompleteResponse{Outcome: seqledgerv1.RecordOutcome_RECORD_OUTCOME_OK,
				ExpiresAt: expires}, nil
		},
		reject: func(r *seqledgerv1.RejectRequest) (*seqledgerv1.RejectResponse, error) {
			note("reject", r)
			return &seqledgerv1.RejectResponse{Record: stands,
				Outcome: seqledgerv1.RecordOutcome_RECORD_OUTCOME_ALREADY_COMPLETED}, nil
		},
		beat: func(r *seqledgerv1.HeartbeatRequest) (*seqledgerv1.HeartbeatResponse, error) {
			note("heartbeat", r)
			return &seqledgerv1.HeartbeatResponse{Outcome: seqledgerv1.RecordOutcome_RECORD_OUTCOME_LEASE_LOST}, nil
		},
		resolve: func(r *seqledgerv1.ResolveRecordRequest) (*seqledgerv1.ResolveRecordResponse, error) {
			note("resolve", r)
			return nil, refused(t, connect.CodePermissionDenied,
				seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED, "")
		},
	}
	us := over(t, a, 1)
	own := owner{record: record{Key: "k"}, Token: "7", AttemptID: strings.Repeat("01", 16)}
	done, err := us.complete(t.Context(), &finishInput{owner: own, Response: "sent", TTLSeconds: 8})
	if err != nil || done.Outcome != "OK" || done.Next == "" || done.ExpiresAt != "1970-01-01T00:01:00Z" {
		t.Errorf("complete: %+v, %v", done, err)
	}
	other, err := us.reject(t.Context(), &finishInput{owner: own, Response: "declined"})
	if err != nil || other.Outcome != "ALREADY_COMPLETED" || other.Record.State != "REJECTED" ||
		other.Record.Token != "9" {
		t.Errorf("reject: %+v, %v", other, err)
	}
	lost, err := us.heartbeat(t.Context(), &heartbeatInput{owner: own, LeaseSeconds: 5})
	if err != nil || lost.Outcome != "LEASE_LOST" || !strings.Contains(lost.Next, "stop the action") {
		t.Errorf("heartbeat: %+v, %v", lost, err)
	}
	if _, err = us.resolve(t.Context(), &resolveInput{record: record{Key: "k"}, State: "rejected",
		Response: "r"}); err == nil || !strings.Contains(err.Error(), "Do not repeat") {
		t.Errorf("resolve: %v", err)
	}
	for i, words := range [][]string{
		{"complete", "token:7", "sent", "seconds:8"}, {"reject", "token:7", "declined"},
		{"heartbeat", "token:7", "seconds:5"}, {"resolve", "RECORD_STATE_REJECTED", `"r"`},
	} {
		for _, word := range words {
			if !strings.Contains(strings.ReplaceAll(got[i], "  ", " "), word) {
				t.Errorf("sent %q, want %q in it", got[i], word)
			}
		}
	}
	calls := len(got)
	bad := own
	bad.Token = "x"
	_, e1 := us.complete(t.Context(), &finishInput{owner: bad})
	_, e2 := us.reject(t.Context(), &finishInput{owner: bad})
	_, e3 := us.heartbeat(t.Context(), &heartbeatInput{owner: bad})
	_, e4 := us.resolve(t.Context(), &resolveInput{record: record{Key: "k"}, State: "COMMITTED"})
	_, e5 := us.resolve(t.Context(), &resolveInput{record: record{Scope: "/"}, State: "committed"})
	_, e6 := us.lookUp(t.Context(), &record{Scope: "/"})
	_, e7 := us.clientState(t.Context(), &clientStateInput{Scope: "/"})
	if slices.Contains([]error{e1, e2, e3, e4, e5, e6, e7}, nil) || len(got) != calls {
		t.Errorf("%d calls were made of arguments that are wrong", len(got)-calls)
	}
}

// TestLookUp checks that an absent record is an answer, and that any other failure is not.
func TestLookUp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		record *seqledgerv1.IdempotencyRecord
		err    error
		want   string
	}{
		"absent": {err: connect.NewError(connect.CodeNotFound, errors.New("no record")), want: "Call reserve before"},
		"committed": {record: &seqledgerv1.IdempotencyRecord{State: seqledgerv1.RecordState_RECORD_STATE_COMMITTED,
			Response: []byte("ok"), ResponseSize: 2}, want: "use record.response"},
		"pending": {record: &seqledgerv1.IdempotencyRecord{State: seqledgerv1.RecordState_RECORD_STATE_PENDING},
			want: "do not do the action"},
		"denied": {err: connect.NewError(connect.CodeUnauthenticated, errors.New("no token"))},
	} {
		a := &api{record: func(*seqledgerv1.GetRecordRequest) (*seqledgerv1.IdempotencyRecord, error) {
			return test.record, test.err
		}}
		out, err := over(t, a, 1).lookUp(t.Context(), &record{Key: "k"})
		switch {
		case test.want == "" && err == nil:
			t.Errorf("%s: an error is shown as %+v", name, out)
		case test.want != "" && (err != nil || out.Found != (test.record != nil) ||
			!strings.Contains(out.Next, test.want)):
			t.Errorf("%s: %+v, %v", name, out, err)
		}
	}
}

// TestResultsThatAreNoText checks results that are not UTF-8: JSON cannot carry such bytes, and the agent must not get
// a different result.
func TestResultsThatAreNoText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		response := rapid.SliceOf(rapid.Byte()).Draw(t, "response")
		checkpoint := rapid.SliceOf(rapid.Byte()).Draw(t, "checkpoint")
		shown, err := json.Marshal(showRecord(&seqledgerv1.IdempotencyRecord{Response: response,
			Checkpoint: checkpoint}))
		if err != nil {
			t.Fatal(err)
		}
		var read struct {
			Response         string `json:"response"`
			ResponseBase64   []byte `json:"response_base64"`
			Checkpoint       string `json:"checkpoint"`
			CheckpointBase64 []byte `json:"checkpoint_base64"`
		}
		if err := json.Unmarshal(shown, &read); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(append([]byte(read.Response), read.ResponseBase64...), response) {
			t.Errorf("%x is shown as %s", response, shown)
		}
		if !bytes.Equal(append([]byte(read.Checkpoint), read.CheckpointBase64...), checkpoint) {
			t.Errorf("%x is shown as %s", checkpoint, shown)
		}
	})
	if showRecord(nil) != nil {
		t.Error("no record is shown as one")
	}
}

// TestClientState checks that the state of a stream is shown, with no more receipts than an agent can use.
func TestClientState(t *testing.T) {
	t.Parallel()
	var sent *seqledgerv1.GetClientStateRequest
	state := &seqledgerv1.ClientState{
		Status: seqledgerv1.ClientStatus_CLIENT_STATUS_ACTIVE, LastCommittedSequence: 30, Session: 1<<53 + 1,
		LastIdempotencyKey: "last", LastSeen: timestamppb.New(time.Unix(1, 0)),
		ExpiresAt: timestamppb.New(time.Unix(2, 0)),
	}
	for sequence := uint64(30); sequence > 0; sequence-- {
		state.Receipts = append(state.Receipts, &seqledgerv1.Receipt{Sequence: sequence})
	}
	a := &api{state: func(r *seqledgerv1.GetClientStateRequest) (*seqledgerv1.ClientState, error) {
		sent = r
		return state, nil
	}}
	us := over(t, a, 1)
	out, err := us.clientState(t.Context(), &clientStateInput{ClientID: "c", IncludeReceipts: true})
	if err != nil {
		t.Fatal(err)
	}
	if sent.GetClientId() != "c" || !sent.GetIncludeReceipts() || sent.GetScope().GetOrganization() != "own" {
		t.Errorf("sent: %v", sent)
	}
	if out.Status != "ACTIVE" || out.LastCommittedSequence != "30" || out.Session != "9007199254740993" ||
		out.LastSeen != "1970-01-01T00:00:01Z" || len(out.Receipts) != maxReceipts || out.Receipts[0].Sequence != "30" {
		t.Errorf("shown: %+v", out)
	}
	a.state = func(*seqledgerv1.GetClientStateRequest) (*seqledgerv1.ClientState, error) {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("no token"))
	}
	if _, err := us.clientState(t.Context(), &clientStateInput{ClientID: "c"}); !errors.Is(err,
		failure.ErrUnauthenticated) {
		t.Errorf("a refused token: %v", err)
	}
}

// TestACallEndsWithItsHTTPRequest checks that a call ends with its HTTP request, which the MCP library does not do, and
// after its timeout.
func TestACallEndsWithItsHTTPRequest(t *testing.T) {
	t.Parallel()
	us := &tools{Options{Timeout: time.Hour}}
	request, end := context.WithCancel(t.Context())
	ctx, cancel := us.within(context.WithValue(t.Context(), requestKey{}, request), 0)
	defer cancel()
	end()
	<-ctx.Done()
	ctx, cancel = us.within(t.Context(), idempotency.MaxWait)
	deadline, ok := ctx.Deadline()
	if left := time.Until(deadline); !ok || left > time.Hour+idempotency.MaxWait || left < time.Hour {
		t.Errorf("a call that waits has %v left", left)
	}
	cancel()
	if ctx.Err() == nil {
		t.Error("a call that is over goes on")
	}
}
