package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// entities is a Connect service that counts its calls.
type entities struct {
	seqledgerv1connect.UnimplementedLedgerServiceHandler

	*testing.T
	runs   atomic.Int64
	serve  func(ctx context.Context, header http.Header) error
	shared *connect.Response[seqledgerv1.WriteResponse] // if set, every response of Write
}

// Write stands for any procedure with effects.
func (s *entities) Write(
	ctx context.Context, r *connect.Request[seqledgerv1.WriteRequest],
) (*connect.Response[seqledgerv1.WriteResponse], error) {
	n := s.runs.Add(1)
	if s.serve != nil {
		if err := s.serve(ctx, r.Header()); err != nil {
			return nil, err
		}
	}
	if s.shared != nil {
		return s.shared, nil
	}
	response := connect.NewResponse(&seqledgerv1.WriteResponse{Receipt: &seqledgerv1.Receipt{Sequence: uint64(n)}})
	response.Header().Set("Idempotent-Replayed", "spoofed")
	return response, nil
}

// GetEntity has no effects.
func (s *entities) GetEntity(
	context.Context, *connect.Request[seqledgerv1.GetEntityRequest],
) (*connect.Response[seqledgerv1.GetEntityResponse], error) {
	s.runs.Add(1)
	return connect.NewResponse(new(seqledgerv1.GetEntityResponse)), nil
}

// rpc starts a service behind an interceptor and returns it with one client per protocol.
func rpc(t *testing.T, change ...func(*idempotency.Options)) (*entities,
	map[string]seqledgerv1connect.LedgerServiceClient) {
	t.Helper()
	return rpcOn(t, idempotency.Memory(), change...)
}

// rpcOn is rpc with a store.
func rpcOn(t *testing.T, store idempotency.Store, change ...func(*idempotency.Options)) (*entities,
	map[string]seqledgerv1connect.LedgerServiceClient) {
	t.Helper()
	s := &entities{T: t}
	options := idempotency.Options{Settings: idempotency.Settings{Wait: -1}}
	for _, c := range change {
		c(&options)
	}
	_, handler := seqledgerv1connect.NewLedgerServiceHandler(s,
		connect.WithInterceptors(idempotency.Interceptor(store, options)))
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	clients := map[string]seqledgerv1connect.LedgerServiceClient{}
	for name, o := range map[string][]connect.ClientOption{
		"Connect": nil, "Connect with JSON": {connect.WithProtoJSON()}, "gRPC": {connect.WithGRPC()},
		"gRPC-Web": {connect.WithGRPCWeb()},
	} {
		clients[name] = seqledgerv1connect.NewLedgerServiceClient(server.Client(), server.URL, o...)
	}
	return s, clients
}

func writeCall(key, client string) *connect.Request[seqledgerv1.WriteRequest] {
	r := connect.NewRequest(&seqledgerv1.WriteRequest{ClientId: client})
	r.Header().Set("Authorization", "Bearer demo")
	r.Header().Set("Idempotency-Fence", "99")
	if key != "" {
		r.Header().Set("Idempotency-Key", `"`+key+`"`)
	}
	return r
}

// A replay has the headers of the first response, or of its error, that a replay of the middleware has.
func TestInterceptorReplaysHeaders(t *testing.T) {
	t.Parallel()
	s, clients := rpc(t, func(o *idempotency.Options) { o.StoredHeaders = []string{"X-Version"} })
	set := func(header http.Header) {
		header.Set("Location", "/charges/1")
		header.Set("X-Version", "7")
		header.Set("Set-Cookie", "secret")
	}
	s.shared = connect.NewResponse(new(seqledgerv1.WriteResponse))
	set(s.shared.Header())
	refusal := connect.NewError(connect.CodeNotFound, errors.New("no such account"))
	set(refusal.Meta())
	for name, client := range clients {
		for i := range 2 {
			s.serve = nil
			answer, err := client.Write(t.Context(), writeCall("m-"+name[len(name)-3:], "a"))
			must.Do(t, err, "%v", name)
			s.serve = func(context.Context, http.Header) error { return refusal }
			_, err = client.Write(t.Context(), writeCall("e-"+name[len(name)-3:], "a"))
			failure, ok := errors.AsType[*connect.Error](err)
			if !ok || failure.Code() != connect.CodeNotFound {
				t.Fatal(name, err)
			}
			for _, header := range []http.Header{answer.Header(), failure.Meta()} {
				replay := header.Get("Idempotent-Replayed") == "true"
				if header.Get("Location") != "/charges/1" || header.Get("X-Version") != "7" || replay != (i == 1) ||
					(header.Get("Set-Cookie") == "") != replay {
					t.Errorf("%s, answer %d: %v", name, i, header)
				}
			}
		}
	}
}

// Calls to two hosts, or to two mounts of a handler, are two.
func TestInterceptorOfHostsAndMounts(t *testing.T) {
	t.Parallel()
	s, log := &entities{T: t}, new(bytes.Buffer)
	settings := idempotency.Settings{Logger: slog.New(slog.NewTextHandler(log, nil))}
	path, handler := seqledgerv1connect.NewLedgerServiceHandler(s, connect.WithInterceptors(
		idempotency.Interceptor(idempotency.Memory(), idempotency.Options{Settings: settings})))
	call := func(handler http.Handler, host, mount string) {
		r := httptest.NewRequest(http.MethodPost, "http://"+host+mount+path+"Write", strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer demo")
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		http.StripPrefix(mount, handler).ServeHTTP(w, r)
		check.Equal(t, w.Code, 200, w.Body)
	}
	for range 2 {
		for _, host := range []string{"eu.example", "us.example"} {
			call(idempotency.WithHost(handler), host, "")
			call(idempotency.WithHost(handler), host, "/v1")
		}
	}
	check.Equal(t, s.runs.Load(), 4, "calls that ran")
	check.Equal(t, log.String(), "", "the log")
	call(handler, "eu.example", "")
	check.Contains(t, log.String(), "WithHost", "without it")
}

// A call runs once, whatever protocol and encoding its retries use.
func TestInterceptorReplays(t *testing.T) {
	t.Parallel()
	s, clients := rpc(t)
	s.serve = func(ctx context.Context, header http.Header) error {
		if header.Get("Idempotency-Fence") != "1" || header.Get("Idempotency-Attempt") != "1" ||
			idempotency.FromContext(ctx) == nil {
			t.Errorf("the handler gets %v", header)
		}
		return nil
	}
	var first *connect.Response[seqledgerv1.WriteResponse]
	for range 2 {
		for name, c := range clients {
			answer, err := c.Write(t.Context(), writeCall("k", "a"))
			must.Do(t, err, "%s", name)
			want := "true"
			if first == nil {
				first, want = answer, "false"
			}
			if !proto.Equal(answer.Msg, first.Msg) || answer.Header().Get("Idempotent-Replayed") != want ||
				answer.Header().Get("Idempotency-Key") != `"k"` ||
				answer.Header().Get("Idempotency-Expires") != first.Header().Get("Idempotency-Expires") {
				t.Errorf("%s: %v %v", name, answer.Msg, answer.Header())
			}
		}
	}
	if s.runs.Load() != 1 || first.Msg.GetReceipt().GetSequence() != 1 ||
		first.Header().Get("Idempotency-Expires") == "" {
		t.Errorf("%d runs, %v, %v", s.runs.Load(), first.Msg, first.Header())
	}
}

// refusedCall checks an error of the interceptor.
func refusedCall(t *testing.T, err error, code connect.Code, reason idempotency.Code, action idempotency.Action) {
	t.Helper()
	e, ok := errors.AsType[*connect.Error](err)
	if !ok || e.Code() != code {
		t.Fatalf("%v, want %v", err, code)
	}
	var info *errdetails.ErrorInfo
	retry := false
	for _, detail := range e.Details() {
		switch m, _ := detail.Value(); m := m.(type) {
		case *errdetails.ErrorInfo:
			info = m
		case *errdetails.RetryInfo:
			retry = m.GetRetryDelay().AsDuration() > 0
		}
	}
	if info.GetReason() != string(reason) || info.GetDomain() != idempotency.ErrorDomain ||
		info.GetMetadata()["action"] != string(action) || retry != (action == idempotency.SameKey) {
		t.Errorf("%v, retry %v; want %s, %s", info, retry, reason, action)
	}
}

func TestInterceptorRefuses(t *testing.T) {
	t.Parallel()
	s, clients := rpc(t, func(o *idempotency.Options) { o.Required = true })
	c := clients["gRPC"]
	call := func(key, client string, change func(http.Header)) error {
		r := writeCall(key, client)
		if change != nil {
			change(r.Header())
		}
		_, err := c.Write(t.Context(), r)
		return err
	}
	refusedCall(t, call("", "a", nil), connect.CodeInvalidArgument, idempotency.CodeKeyMissing, idempotency.FixRequest)
	refusedCall(t, call("a b", "a", nil), connect.CodeInvalidArgument, idempotency.CodeKeyInvalid,
		idempotency.FixRequest)
	refusedCall(t, call("k", "a", func(h http.Header) { h.Del("Authorization") }), connect.CodeInvalidArgument,
		idempotency.CodePrincipalMissing, idempotency.FixRequest)
	check.Equal(t, s.runs.Load(), 0, "%d runs")
	s.serve = func(context.Context, http.Header) error {
		refusedCall(t, call("k", "a", nil), connect.CodeAborted, idempotency.CodeInFlight, idempotency.SameKey)
		return nil
	}
	must.Do(t, call("k", "a", nil))
	refusedCall(t, call("k", "b", nil), connect.CodeFailedPrecondition, idempotency.CodeKeyReused, idempotency.OtherKey)
	check.Equal(t, s.runs.Load(), 1, "%d runs")
	// A call without effects is not keyed.
	for range 2 {
		must.Get(c.GetEntity(t.Context(), connect.NewRequest(new(seqledgerv1.GetEntityRequest))))(t)
	}
	check.Equal(t, s.runs.Load(), 3, "%d runs")
}

// Final errors are replayed with their details; the options decide about the others.
func TestInterceptorErrors(t *testing.T) {
	t.Parallel()
	detail := must.Get(connect.NewErrorDetail(&errdetails.ResourceInfo{ResourceName: "invoice"}))(t)
	for code, test := range map[connect.Code]struct {
		option func(*idempotency.Options)
		runs   int64
		then   connect.Code
	}{
		connect.CodeFailedPrecondition: {nil, 1, connect.CodeFailedPrecondition},
		connect.CodeInternal:           {nil, 1, connect.CodeFailedPrecondition}, // unknown whether it ran
		connect.CodePermissionDenied:   {nil, 1, connect.CodeFailedPrecondition},
		connect.CodeUnavailable: {func(o *idempotency.Options) { o.ServerErrors = idempotency.StoreResult }, 1,
			connect.CodeUnavailable},
		connect.CodeUnauthenticated: {func(o *idempotency.Options) { o.ReleaseRefusals = true }, 2,
			connect.CodeUnauthenticated},
	} {
		var change []func(*idempotency.Options)
		if test.option != nil {
			change = append(change, test.option)
		}
		s, clients := rpc(t, change...)
		s.serve = func(context.Context, http.Header) error {
			e := connect.NewError(code, errors.New("no"))
			e.AddDetail(detail)
			return e
		}
		var last *connect.Error
		for i, want := range []connect.Code{code, test.then} {
			_, err := clients["Connect"].Write(t.Context(), writeCall("k", "a"))
			if last, _ = errors.AsType[*connect.Error](err); last.Code() != want {
				t.Errorf("%v: call %d is answered with %v, want %v", code, i, err, want)
			}
		}
		check.Equal(t, s.runs.Load(), test.runs, "%v: %d runs", code)
		if test.then == code {
			check.Equal(t, must.Get(last.Details()[0].Value())(t).(*errdetails.ResourceInfo).GetResourceName(),
				"invoice", "%v: details %v", code)
		}
	}
}

// A handler may return one error or response to many calls, even at once. The marks of a call do not reach the others.
func TestInterceptorLeavesWhatAHandlerSharesAlone(t *testing.T) {
	t.Parallel()
	failure := connect.NewError(connect.CodeNotFound, errors.New("no such account"))
	withMeta := connect.NewError(connect.CodeUnavailable, errors.New("down"))
	withMeta.Meta().Set("Reason", "maintenance")
	response := connect.NewResponse(new(seqledgerv1.WriteResponse))
	response.Header().Set("Reason", "maintenance")
	response.Trailer().Set("Reason", "maintenance") // connect itself makes these maps at first use
	for name, test := range map[string]struct {
		err    error
		reason string
	}{"response": {nil, "maintenance"}, "error": {failure, ""}, "error with metadata": {withMeta, "maintenance"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, clients := rpc(t)
			s.shared, s.serve = response, func(context.Context, http.Header) error { return test.err }
			call := func(key string) {
				answer, err := clients["Connect"].Write(t.Context(), writeCall(key, "a"))
				var header http.Header
				if e, ok := errors.AsType[*connect.Error](err); ok {
					header = e.Meta()
				} else {
					header = answer.Header()
				}
				want := ""
				if key != "" {
					want = `"` + key + `"`
				}
				if connect.CodeOf(err) != connect.CodeOf(test.err) || header.Get("Idempotency-Key") != want ||
					header.Get("Reason") != test.reason {
					t.Errorf("the call with the key %q: %v, %v", key, err, header)
				}
			}
			var calls sync.WaitGroup
			for g := range 8 {
				calls.Go(func() {
					for n := range 10 {
						call(fmt.Sprint("k", g, "-", n))
					}
				})
			}
			calls.Wait()
			call("")
		})
	}
}
