package admin_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// operated is a server that notes what an operator asks it for. It refuses the first so many calls.
type operated struct {
	seqledgerv1connect.UnimplementedAdminServiceHandler

	refuse  atomic.Int32
	err     error
	calls   atomic.Int32
	request proto.Message
}

func noted[T any](s *operated, request proto.Message, response *T) (*connect.Response[T], error) {
	s.calls.Add(1)
	if s.refuse.Add(-1) >= 0 {
		return nil, s.err
	}
	s.request = request
	return connect.NewResponse(response), nil
}

func (s *operated) GetCluster(
	_ context.Context, r *connect.Request[seqledgerv1.GetClusterRequest],
) (*connect.Response[seqledgerv1.GetClusterResponse], error) {
	return noted(s, r.Msg, &seqledgerv1.GetClusterResponse{Cluster: &seqledgerv1.Cluster{Self: 3}})
}

func (s *operated) ChangeCluster(
	_ context.Context, r *connect.Request[seqledgerv1.ChangeClusterRequest],
) (*connect.Response[seqledgerv1.ChangeClusterResponse], error) {
	return noted(s, r.Msg, &seqledgerv1.ChangeClusterResponse{Cluster: &seqledgerv1.Cluster{Self: 4}})
}

func (s *operated) UpdateConfig(
	_ context.Context, r *connect.Request[seqledgerv1.UpdateConfigRequest],
) (*connect.Response[seqledgerv1.UpdateConfigResponse], error) {
	return noted(s, r.Msg, &seqledgerv1.UpdateConfigResponse{Config: &seqledgerv1.Config{ReceiptWindow: 5}})
}

func (s *operated) ListRefusals(
	_ context.Context, r *connect.Request[seqledgerv1.ListRefusalsRequest],
) (*connect.Response[seqledgerv1.ListRefusalsResponse], error) {
	return noted(s, r.Msg, &seqledgerv1.ListRefusalsResponse{Refusals: []*seqledgerv1.Refusal{{Number: 6}}})
}

// operate returns a client of a server.
func operate(t *testing.T, s *operated) *client.Client {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(seqledgerv1connect.NewAdminServiceHandler(s))
	served := httptest.NewServer(mux)
	t.Cleanup(served.Close)
	c := must.Get(client.New(client.Options{Server: served.URL, HTTPClient: served.Client()}))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// calls are the calls of an operator, each with what it sends and a number of its answer.
var calls = map[string]struct {
	sends proto.Message
	want  uint64
	call  func(context.Context, *client.Client) (uint64, error)
}{
	"GetCluster": {&seqledgerv1.GetClusterRequest{}, 3, func(ctx context.Context, c *client.Client) (uint64, error) {
		cluster, err := admin.GetCluster(ctx, c)
		return cluster.GetSelf(), err
	}},
	"ChangeCluster": {removeNode(9), 4, func(ctx context.Context, c *client.Client) (uint64, error) {
		cluster, err := admin.ChangeCluster(ctx, c, removeNode(9))
		return cluster.GetSelf(), err
	}},
	"UpdateConfig": {window(5), 5, func(ctx context.Context, c *client.Client) (uint64, error) {
		config, err := admin.UpdateConfig(ctx, c, window(5))
		return uint64(config.GetReceiptWindow()), err
	}},
	"ListRefusals": {&seqledgerv1.ListRefusalsRequest{After: 17}, 6,
		func(ctx context.Context, c *client.Client) (uint64, error) {
			list, err := admin.ListRefusals(ctx, c, 17)
			if len(list.GetRefusals()) != 1 {
				return 0, err
			}
			return list.GetRefusals()[0].GetNumber(), err
		}},
}

func removeNode(id uint64) *seqledgerv1.ChangeClusterRequest {
	return &seqledgerv1.ChangeClusterRequest{Change: &seqledgerv1.ChangeClusterRequest_Remove{Remove: id}}
}

func window(n uint64) *seqledgerv1.UpdateConfigRequest {
	return &seqledgerv1.UpdateConfigRequest{
		ReceiptWindowSet: &seqledgerv1.UpdateConfigRequest_ReceiptWindow{ReceiptWindow: n},
	}
}

// TestCallsOfAnOperator: each asks for what it was given, and a server that has no time is asked again.
func TestCallsOfAnOperator(t *testing.T) {
	t.Parallel()
	for name, test := range calls {
		s := &operated{err: connect.NewError(connect.CodeUnavailable, errors.New("starting"))}
		s.refuse.Store(1)
		got, err := test.call(t.Context(), operate(t, s))
		if err != nil || got != test.want || !proto.Equal(s.request, test.sends) || s.calls.Load() != 2 {
			t.Errorf("%s: %d, %v after %d calls of %v", name, got, err, s.calls.Load(), s.request)
		}
	}
}

// TestRefusedCallsOfAnOperator: a refusal is told at once, and is not taken for an answer.
func TestRefusedCallsOfAnOperator(t *testing.T) {
	t.Parallel()
	for name, test := range calls {
		s := &operated{err: connect.NewError(connect.CodePermissionDenied, errors.New("not an admin"))}
		s.refuse.Store(100)
		got, err := test.call(t.Context(), operate(t, s))
		refusal, is := errors.AsType[*failure.Error](err)
		if !is || refusal.ConnectCode != connect.CodePermissionDenied || got != 0 || s.calls.Load() != 1 {
			t.Errorf("%s: %d, %v after %d calls", name, got, err, s.calls.Load())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		check.Is(t, check.Err(test.call(ctx, operate(t, s))), context.Canceled, "%s without time", name)
	}
}
