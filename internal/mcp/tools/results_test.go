package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// A key whose request cannot be compared with this one asks for no new key, with which the action could happen twice.
func TestReserveOfTheIncomparable(t *testing.T) {
	t.Parallel()
	for incomparable, want := range map[bool]string{true: unknownNext, false: nextAfter[mismatch]} {
		us := over(t, &api{reserve: func(*seqledgerv1.ReserveRequest) (*seqledgerv1.ReserveResponse, error) {
			return &seqledgerv1.ReserveResponse{Outcome: mismatch, Incomparable: incomparable}, nil
		}}, 1)
		out := must.Get(us.reserve(t.Context(), &reserveInput{record: record{Key: "k"}, Request: 1}))(t)
		check.Equal(t, out.Next, want, "incomparable %v: %+v", incomparable)
	}
}

const mismatch = seqledgerv1.RecordOutcome_RECORD_OUTCOME_MISMATCH

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
	out := must.Get(us.reserve(t.Context(), &reserveInput{
		record: record{Key: "k"}, Request: map[string]any{"b": 1, "a": 2}, AttemptID: id, LeaseSeconds: 3,
		TTLSeconds: 4, WaitSeconds: 5, OnLeaseExpired: "takeover",
	}))(t)
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
			check.Contains(t, strings.ReplaceAll(got[i], "  ", " "), word, "sent %q", got[i])
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
		shown := must.Get(json.Marshal(showRecord(&seqledgerv1.IdempotencyRecord{Response: response,
			Checkpoint: checkpoint})))(t)
		var read struct {
			Response         string `json:"response"`
			ResponseBase64   []byte `json:"response_base64"`
			Checkpoint       string `json:"checkpoint"`
			CheckpointBase64 []byte `json:"checkpoint_base64"`
		}
		must.Do(t, json.Unmarshal(shown, &read))
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
	out := must.Get(us.clientState(t.Context(), &clientStateInput{ClientID: "c", IncludeReceipts: true}))(t)
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
	check.Is(t, check.Err(us.clientState(t.Context(), &clientStateInput{ClientID: "c"})), failure.ErrUnauthenticated,
		"a refused token")
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
