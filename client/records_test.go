package client_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// fakeRecords is an IdempotencyService that loses the first answer of each method.
type fakeRecords struct {
	seqledgerv1connect.UnimplementedIdempotencyServiceHandler

	mu       sync.Mutex
	requests map[string][]proto.Message // by procedure
}

// lose records a request, and loses the answer to the first of each procedure.
func (s *fakeRecords) lose() connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			s.mu.Lock()
			name := r.Spec().Procedure
			message, _ := r.Any().(proto.Message)
			s.requests[name] = append(s.requests[name], proto.Clone(message))
			first := len(s.requests[name]) == 1
			s.mu.Unlock()
			answer, err := next(ctx, r)
			if first {
				panic(http.ErrAbortHandler)
			}
			return answer, err
		}
	}
}

func answered[R any](r *R) (*connect.Response[R], error) { return connect.NewResponse(r), nil }

const okOutcome = seqledgerv1.RecordOutcome_RECORD_OUTCOME_OK

func (s *fakeRecords) Reserve(
	context.Context, *connect.Request[seqledgerv1.ReserveRequest],
) (*connect.Response[seqledgerv1.ReserveResponse], error) {
	return answered(&seqledgerv1.ReserveResponse{Outcome: seqledgerv1.RecordOutcome_RECORD_OUTCOME_ACQUIRED, Token: 7})
}

func (s *fakeRecords) Complete(
	context.Context, *connect.Request[seqledgerv1.CompleteRequest],
) (*connect.Response[seqledgerv1.CompleteResponse], error) {
	return answered(&seqledgerv1.CompleteResponse{Outcome: okOutcome})
}

func (s *fakeRecords) Reject(
	context.Context, *connect.Request[seqledgerv1.RejectRequest],
) (*connect.Response[seqledgerv1.RejectResponse], error) {
	return answered(&seqledgerv1.RejectResponse{Outcome: okOutcome})
}

func (s *fakeRecords) Release(
	context.Context, *connect.Request[seqledgerv1.ReleaseRequest],
) (*connect.Response[seqledgerv1.ReleaseResponse], error) {
	return answered(&seqledgerv1.ReleaseResponse{Outcome: okOutcome})
}

func (s *fakeRecords) Heartbeat(
	context.Context, *connect.Request[seqledgerv1.HeartbeatRequest],
) (*connect.Response[seqledgerv1.HeartbeatResponse], error) {
	return answered(&seqledgerv1.HeartbeatResponse{Outcome: okOutcome})
}

func (s *fakeRecords) Checkpoint(
	context.Context, *connect.Request[seqledgerv1.CheckpointRequest],
) (*connect.Response[seqledgerv1.CheckpointResponse], error) {
	return answered(&seqledgerv1.CheckpointResponse{Outcome: okOutcome})
}

func (s *fakeRecords) GetRecord(
	context.Context, *connect.Request[seqledgerv1.GetRecordRequest],
) (*connect.Response[seqledgerv1.GetRecordResponse], error) {
	return nil, connect.NewError(connect.CodeNotFound, errors.New("no record"))
}

func (s *fakeRecords) ListRecords(
	_ context.Context, r *connect.Request[seqledgerv1.ListRecordsRequest],
) (*connect.Response[seqledgerv1.ListRecordsResponse], error) {
	page, _ := strconv.Atoi(r.Msg.GetPageToken())
	answer := &seqledgerv1.ListRecordsResponse{Records: []*seqledgerv1.IdempotencyRecord{{Token: uint64(page)}}}
	if page < 2 {
		answer.NextPageToken = strconv.Itoa(page + 1)
	}
	return answered(answer)
}

func (s *fakeRecords) PurgeRecord(
	context.Context, *connect.Request[seqledgerv1.PurgeRecordRequest],
) (*connect.Response[seqledgerv1.PurgeRecordResponse], error) {
	return answered(&seqledgerv1.PurgeRecordResponse{Outcome: okOutcome})
}

func (s *fakeRecords) ResolveRecord(
	context.Context, *connect.Request[seqledgerv1.ResolveRecordRequest],
) (*connect.Response[seqledgerv1.ResolveRecordResponse], error) {
	return answered(&seqledgerv1.ResolveRecordResponse{Outcome: okOutcome})
}

// TestRecordCallsAreRepeated: every call about a record survives a lost answer and repeats the same request.
func TestRecordCallsAreRepeated(t *testing.T) {
	t.Parallel()
	s := &fakeRecords{requests: map[string][]proto.Message{}}
	_, handler := seqledgerv1connect.NewIdempotencyServiceHandler(s, connect.WithInterceptors(s.lose()))
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c := must.Get(client.New(client.Options{Server: server.URL}))(t)
	t.Cleanup(func() { _ = c.Close() })
	ctx, owner := t.Context(), &seqledgerv1.Ownership{Token: 7}
	check.Equal(t, must.Get(c.Reserve(ctx, &seqledgerv1.ReserveRequest{AttemptId: []byte("attempt")}))(t).GetToken(), 7,
		"Reserve: %v")
	done, err := c.Complete(ctx, &seqledgerv1.CompleteRequest{Owner: owner, Response: []byte("done")})
	wantOK(t, "Complete", done.GetOutcome(), err)
	rejected, err := c.Reject(ctx, &seqledgerv1.RejectRequest{Owner: owner})
	wantOK(t, "Reject", rejected.GetOutcome(), err)
	released, err := c.Release(ctx, &seqledgerv1.ReleaseRequest{Owner: owner})
	wantOK(t, "Release", released.GetOutcome(), err)
	beat, err := c.Heartbeat(ctx, &seqledgerv1.HeartbeatRequest{Owner: owner})
	wantOK(t, "Heartbeat", beat.GetOutcome(), err)
	kept, err := c.Checkpoint(ctx, &seqledgerv1.CheckpointRequest{Owner: owner})
	wantOK(t, "Checkpoint", kept.GetOutcome(), err)
	purged, err := c.PurgeRecord(ctx, &seqledgerv1.PurgeRecordRequest{})
	wantOK(t, "PurgeRecord", purged.GetOutcome(), err)
	resolved, err := c.ResolveRecord(ctx, &seqledgerv1.ResolveRecordRequest{})
	wantOK(t, "ResolveRecord", resolved.GetOutcome(), err)
	if r, err := c.GetRecord(ctx, &seqledgerv1.GetRecordRequest{}); r != nil || !errors.Is(err, failure.ErrNotFound) {
		t.Errorf("GetRecord: %v, %v", r, err)
	}
	var tokens []uint64
	for r, err := range c.ListRecords(ctx, &seqledgerv1.ListRecordsRequest{}) {
		must.Do(t, err)
		tokens = append(tokens, r.GetToken())
	}
	if len(tokens) != 3 || tokens[2] != 2 {
		t.Errorf("ListRecords: %v", tokens)
	}
	check.Equal(t, len(s.requests), 10, "%d procedures were called")
	for name, sent := range s.requests {
		if len(sent) < 2 || !proto.Equal(sent[0], sent[1]) {
			t.Errorf("%s was sent as %v", name, sent)
		}
	}
}

func wantOK(t *testing.T, call string, outcome seqledgerv1.RecordOutcome, err error) {
	t.Helper()
	if err != nil || outcome != okOutcome {
		t.Errorf("%s: %v, %v", call, outcome, err)
	}
}
