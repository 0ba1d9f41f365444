package server_test

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// ledgerState returns where a stream stands in the ledger itself.
func ledgerState(t testing.TB, l *ledger.Ledger, client string) (s machine.StreamState, found bool) {
	t.Helper()
	must.Do(t, l.View(context.Background(), func(v machine.View) (err error) {
		s, found, err = v.Stream(machine.Scope{Organization: "acme", Vault: "main"}, client)
		return err
	}))
	return s, found
}

func (h *harness) get(t testing.TB, path string) (int, string) {
	t.Helper()
	request := must.Get(http.NewRequest(http.MethodGet, h.url+path, http.NoBody))(t)
	status, _, text := h.do(t, request)
	return status, text
}

// metric returns the value of a metric, labels included in the name.
func (h *harness) metric(t testing.TB, name string) string {
	t.Helper()
	status, text := h.get(t, "/metrics")
	if status != http.StatusOK {
		t.Fatal(status, text)
	}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if value, found := strings.CutPrefix(lines.Text(), name+" "); found {
			return value
		}
	}
	return ""
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.mustWrite(t, writeOf("a-client-id", 1, appendOp("x")))
	h.mustWrite(t, writeOf("a-client-id", 1, appendOp("x")))
	_, err := h.client.Write(t.Context(), connect.NewRequest(writeOf("a-client-id", 5, appendOp("x"))))
	if err == nil {
		t.Fatal("a gap must be refused")
	}
	stream := h.client.WriteStream(within(t))
	must.Do(t, stream.Send(frameOf(writeOf("a-client-id", 0))))
	receive(t, stream, 1)
	for name, want := range map[string]string{
		`seqledger_decisions_total{code="SEQUENCE_GAP"}`:                                                     "1",
		`seqledger_requests_total{code="ok",procedure="/seqledger.v1.LedgerService/Write"}`:                  "2",
		`seqledger_requests_total{code="failed_precondition",procedure="/seqledger.v1.LedgerService/Write"}`: "1",
		`seqledger_write_duration_seconds_count{method="Write"}`:                                             "3",
		`seqledger_write_duration_seconds_count{method="WriteStream"}`:                                       "1",
		`seqledger_write_duration_seconds_count{method="WriteBatch"}`:                                        "0",
		`seqledger_results_total{code="INVALID_ARGUMENT",method="WriteStream"}`:                              "1",
		`seqledger_streams_open`: "1",
		`seqledger_clients`:      "1",
		`seqledger_queue_items`:  "0",
		`seqledger_panics_total`: "0",
		`seqledger_ready`:        "1",
		`seqledger_build_info{goversion="` + runtime.Version() + `",version="test"}`: "1",
	} {
		check.Equal(t, h.metric(t, name), want, "%s is %q", name)
	}
	for _, name := range []string{
		"seqledger_pending_bytes", "seqledger_log_bytes_total", "seqledger_checkpoint_duration_seconds_count",
		"seqledger_spill_duration_seconds_count", "seqledger_spill_bytes_total", "seqledger_block_files_bytes",
		"seqledger_cache_hits_total",
		"seqledger_cache_misses_total", "seqledger_index", "seqledger_ledger_time_seconds", "go_goroutines",
		"process_resident_memory_bytes",
	} {
		if h.metric(t, name) == "" {
			t.Error("missing:", name)
		}
	}
	if _, text := h.get(t, "/metrics"); strings.Contains(text, "a-client-id") || strings.Contains(text, "acme") {
		t.Error("what clients choose must not be in the metrics")
	}
	end(t, stream)
}

// apiServices are the services of the API.
var apiServices = []protoreflect.FullName{
	seqledgerv1connect.AdminServiceName, seqledgerv1connect.IdempotencyServiceName,
	seqledgerv1connect.LedgerServiceName,
}

func TestHealth(t *testing.T) {
	t.Parallel()
	h := start(t)
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, text := h.get(t, path); status != http.StatusOK || text != "ok\n" {
			t.Error(path, status, text)
		}
	}
	services := []string{""}
	for _, name := range apiServices {
		services = append(services, string(name))
	}
	for _, service := range services {
		check.Equal(t, must.Get(h.health(t, service))(t), grpchealth.StatusServing, "%q: got %v", service)
	}
	if _, err := h.health(t, "other"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Error("an unknown service:", err)
	}
	must.Do(t, h.server.Drain(t.Context()))
	for _, service := range services {
		check.Equal(t, must.Get(h.health(t, service))(t), grpchealth.StatusNotServing, "draining, %q: got %v", service)
	}
}

func TestServeRefusesOtherAddresses(t *testing.T) {
	t.Parallel()
	s := must.Get(server.New(server.Options{Ledger: openLedger(t, ledger.Options{})}))(t)
	listener := must.Get(net.Listen("tcp", "0.0.0.0:0"))(t)
	check.Is(t, s.Serve(t.Context(), listener), server.ErrNotLoopback)
	if _, err := listener.Accept(); err == nil {
		t.Error("the listener must be closed")
	}
}

func TestServeEndsWhenTheListenerFails(t *testing.T) {
	t.Parallel()
	s := must.Get(server.New(server.Options{Ledger: openLedger(t, ledger.Options{})}))(t)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	must.Do(t, listener.Close())
	if err := s.Serve(t.Context(), listener); err == nil {
		t.Error("a listener that fails must be reported")
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	if _, err := server.New(server.Options{}); err == nil {
		t.Error("a server without a ledger must be refused")
	}
	if _, err := server.New(server.Options{Ledger: openLedger(t, ledger.Options{}), MaxOpenStreams: -1}); err == nil {
		t.Error("a negative limit must be refused")
	}
}

// health asks over gRPC. Two well-known types have the same encoding as the messages of the health service, which
// grpchealth keeps to itself.
func (h *harness) health(t testing.TB, service string) (grpchealth.Status, error) {
	client := connect.NewClient[wrapperspb.StringValue, wrapperspb.Int32Value](
		h.h2, h.url+"/grpc.health.v1.Health/Check", connect.WithGRPC())
	answer, err := client.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String(service)))
	if err != nil {
		return 0, err
	}
	return grpchealth.Status(answer.Msg.Value), nil
}

func TestReflection(t *testing.T) {
	t.Parallel()
	h := start(t)
	stream := grpcreflect.NewClient(h.h2, h.url, connect.WithGRPC()).NewStream(within(t))
	services, err := stream.ListServices()
	slices.Sort(services)
	if err != nil || !slices.Equal(services, apiServices) {
		t.Errorf("want %q, got %q, %v", apiServices, services, err)
	}
	files, err := stream.FileContainingSymbol(seqledgerv1connect.LedgerServiceName)
	if err != nil || len(files) == 0 {
		t.Error(files, err)
	}
	// The stream stays open, and must not hold up the drain.
	must.Do(t, h.stop(), "a reflection stream held up the drain")
	if status, err := stream.Close(); status != nil && err != nil {
		t.Log(status, err)
	}
}
