package server

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

func newTestServer(t testing.TB, o Options) *Server {
	t.Helper()
	// A start reads a whole log file, which the race detector makes the largest part of most tests.
	l := must.Get(ledger.Open(context.Background(), ledger.Options{Dir: t.TempDir(), LogBytes: 8 << 20,
		Logger: slog.New(slog.DiscardHandler)}))(t)
	t.Cleanup(func() {
		check.Is(t, l.Close(), nil)
	})
	o.Ledger = l
	s := must.Get(New(o))(t)
	return s
}

func post(h http.Handler, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "http://localhost"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	withCall(false, h).ServeHTTP(w, r)
	return w
}

// TestPanicIsOneRequestsProblem: a panic in a handler fails only its request, is logged and counted, and reveals
// nothing to the client.
func TestPanicIsOneRequestsProblem(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := newTestServer(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	mux := http.NewServeMux()
	unary(s, mux, seqledgerv1connect.AdminServiceGetStatusProcedure, writing,
		func(context.Context, *seqledgerv1.GetStatusRequest) (*seqledgerv1.GetStatusResponse, error) {
			panic("the secret of the bug")
		})
	w := post(mux, seqledgerv1connect.AdminServiceGetStatusProcedure, `{}`)
	if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "secret") {
		t.Error(w.Code, w.Body)
	}
	if !strings.Contains(log.String(), "the secret of the bug") || !strings.Contains(log.String(), "observer_test.go") {
		t.Error("the log must have the panic and its place:", log.String())
	}
	answer := httptest.NewRecorder()
	s.handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "http://localhost/metrics", http.NoBody))
	for _, want := range []string{
		"seqledger_panics_total 1",
		`seqledger_requests_total{code="internal",procedure="/seqledger.v1.AdminService/GetStatus"} 1`,
	} {
		check.Contains(t, answer.Body.String(), want, "the metrics")
	}
}
