package server_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// harness is a server on a real listener over a real ledger.
type harness struct {
	server *server.Server
	ledger *ledger.Ledger
	url    string
	h1, h2 *http.Client
	stop   func() error // ends Serve and returns what it returned

	client seqledgerv1connect.LedgerServiceClient
	admin  seqledgerv1connect.AdminServiceClient
}

func openLedger(t testing.TB, o ledger.Options) *ledger.Ledger {
	t.Helper()
	o.Dir = t.TempDir()
	o.Logger = slog.New(slog.DiscardHandler)
	// A start reads a whole log file, which the race detector makes the largest part of most tests.
	o.LogBytes = 8 << 20
	l := must.Get(ledger.Open(context.Background(), o))(t)
	t.Cleanup(func() {
		if err := l.Close(); err != nil && l.Err() == nil {
			t.Error(err)
		}
	})
	return l
}

func transport(t testing.TB, http2 bool) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(!http2)
	p.SetUnencryptedHTTP2(http2)
	tr := &http.Transport{Protocols: p, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// start serves a new ledger until the test ends.
func start(t testing.TB) *harness { return startWith(t, server.Options{}) }

func startWith(t testing.TB, o server.Options) *harness {
	t.Helper()
	if o.Ledger == nil {
		o.Ledger = openLedger(t, ledger.Options{})
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Version = "test"
	s := must.Get(server.New(o))(t)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	// Ends with cancel; stop waits for it.
	go func() { served <- s.Serve(ctx, listener) }()
	h := &harness{
		server: s, ledger: o.Ledger, url: "http://" + listener.Addr().String(),
		h1: transport(t, false), h2: transport(t, true),
	}
	stopped := false
	h.stop = func() error {
		stopped = true
		cancel()
		return <-served
	}
	t.Cleanup(func() {
		if !stopped {
			h.h1.CloseIdleConnections()
			h.h2.CloseIdleConnections()
			if err := h.stop(); err != nil && o.Ledger.Err() == nil {
				t.Error("Serve:", err)
			}
		}
	})
	h.client = seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url)
	h.admin = seqledgerv1connect.NewAdminServiceClient(h.h2, h.url)
	return h
}

func scope() *seqledgerv1.Scope {
	return &seqledgerv1.Scope{Organization: "acme", Vault: "main"}
}

func appendOp(payload string) *seqledgerv1.Operation {
	return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_Append{
		Append: &seqledgerv1.Append{Payload: []byte(payload)},
	}}
}

func setOp(key, value string) *seqledgerv1.Operation {
	return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_SetEntity{
		SetEntity: &seqledgerv1.SetEntity{Key: key, Value: []byte(value)},
	}}
}

func relateOp(resource, relation, subject string) *seqledgerv1.Operation {
	return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_CreateRelationship{
		CreateRelationship: &seqledgerv1.CreateRelationship{Resource: resource, Relation: relation, Subject: subject},
	}}
}

func writeOf(client string, sequence uint64, ops ...*seqledgerv1.Operation) *seqledgerv1.WriteRequest {
	return &seqledgerv1.WriteRequest{Scope: scope(), ClientId: client, Sequence: sequence, Operations: ops}
}

// mustWrite commits a write and returns its receipt.
func (h *harness) mustWrite(t testing.TB, m *seqledgerv1.WriteRequest) *seqledgerv1.Receipt {
	t.Helper()
	answer := must.Get(h.client.Write(t.Context(), connect.NewRequest(m)))(t)
	return answer.Msg.Receipt
}

// state is what a refused request must not change.
type state struct {
	index  uint64
	digest string
}

func (h *harness) state(t testing.TB) state {
	t.Helper()
	answer := must.Get(h.admin.GetStatus(context.Background(),
		connect.NewRequest(new(seqledgerv1.GetStatusRequest))))(t)
	return state{answer.Msg.Status.Index, answer.Msg.Status.Digest}
}

// detail returns the WriteError of an error, or nil.
func detail(err error) *seqledgerv1.WriteError {
	var failed *connect.Error
	if !errors.As(err, &failed) {
		return nil
	}
	for _, d := range failed.Details() {
		if m, err := d.Value(); err == nil {
			if e, ok := m.(*seqledgerv1.WriteError); ok {
				return e
			}
		}
	}
	return nil
}

// mustRefuse checks the Connect code and the WriteError of a refusal.
func mustRefuse(t testing.TB, err error, code connect.Code, reason seqledgerv1.WriteErrorCode) *seqledgerv1.WriteError {
	t.Helper()
	if connect.CodeOf(err) != code || err == nil {
		t.Fatalf("got %v, want a refusal with the Connect code %s", err, code)
	}
	e := detail(err)
	if e == nil || e.Code != reason {
		t.Fatalf("got the detail %v of %v, want %s", e, err, reason)
	}
	return e
}

// wire are the ways to call.
var wire = map[string][]connect.ClientOption{
	"connect":       nil,
	"connect json":  {connect.WithProtoJSON()},
	"grpc":          {connect.WithGRPC()},
	"grpc json":     {connect.WithGRPC(), connect.WithProtoJSON()},
	"grpc-web":      {connect.WithGRPCWeb()},
	"grpc-web json": {connect.WithGRPCWeb(), connect.WithProtoJSON()},
}

// post sends a body as curl would and returns the status, headers and body.
func (h *harness) post(t testing.TB, procedure, contentType, body string) (int, http.Header, string) {
	t.Helper()
	request := must.Get(http.NewRequest(http.MethodPost, h.url+procedure, strings.NewReader(body)))(t)
	request.Header.Set("Content-Type", contentType)
	return h.do(t, request)
}

func (h *harness) do(t testing.TB, request *http.Request) (int, http.Header, string) {
	t.Helper()
	response := must.Get(h.h1.Do(request))(t)
	defer response.Body.Close()
	text := must.Get(io.ReadAll(response.Body))(t)
	return response.StatusCode, response.Header, string(text)
}

func TestReadsOverGET(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.mustWrite(t, writeOf("c", 1, setOp("k", "v")))
	client := seqledgerv1connect.NewLedgerServiceClient(h.h1, h.url, connect.WithHTTPGet(), connect.WithProtoJSON())
	answer, err := client.GetEntity(t.Context(),
		connect.NewRequest(&seqledgerv1.GetEntityRequest{Scope: scope(), Key: "k"}))
	if err != nil || string(answer.Msg.Entity.Value) != "v" {
		t.Fatal(answer, err)
	}
	check.Equal(t, answer.Header().Get("Cache-Control"), "no-store",
		"Cache-Control is %q: a cache would answer with an old state")
	_, err = client.GetEntity(t.Context(), connect.NewRequest(&seqledgerv1.GetEntityRequest{Scope: scope(),
		Key: "none"}))
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Error("an absent entity must be not_found:", err)
	}
	url := h.url + seqledgerv1connect.LedgerServiceWriteProcedure + "?connect=v1&encoding=json&message=%7B%7D"
	request := must.Get(http.NewRequest(http.MethodGet, url, http.NoBody))(t)
	status, _, text := h.do(t, request)
	if status != http.StatusMethodNotAllowed || !strings.Contains(text, `"the method GET is not allowed here; send POST"`) {
		t.Errorf("a write over GET must not be possible: %d %s", status, text)
	}
	url = h.url + seqledgerv1connect.LedgerServiceGetEntityProcedure
	request = must.Get(http.NewRequest(http.MethodPut, url, http.NoBody))(t)
	if status, header, text := h.do(t, request); status != http.StatusMethodNotAllowed ||
		header.Get("Allow") != "GET, POST" || !strings.Contains(text, `"code":"unimplemented"`) {
		t.Errorf("a read by PUT: %d %v %s", status, header, text)
	}
}

func TestUnknownContentTypeIsExplained(t *testing.T) {
	t.Parallel()
	h := start(t)
	for contentType, want := range map[string]int{
		"": 415, "application/x-www-form-urlencoded": 415, "text/plain": 415, "application/json; charset=latin1": 415,
		"application/json": 200, "application/json; charset=utf-8": 200, "Application/JSON; Charset=UTF-8": 200,
	} {
		request := must.Get(http.NewRequest(http.MethodPost, h.url+"/seqledger.v1.AdminService/GetStatus",
			strings.NewReader("{}")))(t)
		if contentType != "" {
			request.Header.Set("Content-Type", contentType)
		}
		status, _, body := h.do(t, request)
		if status != want || want == 415 && !strings.Contains(body, "application/json") {
			t.Errorf("%q: %d, %s", contentType, status, body)
		}
	}
}

// badRequest returns the field of google.rpc.BadRequest in an error.
func badRequest(err error) (field string, found bool) {
	var failed *connect.Error
	if !errors.As(err, &failed) {
		return "", false
	}
	for _, d := range failed.Details() {
		if m, err := d.Value(); err == nil {
			if b, ok := m.(*errdetails.BadRequest); ok {
				return b.FieldViolations[0].Field, true
			}
		}
	}
	return "", false
}

// within gives a test that waits for something a bound.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
