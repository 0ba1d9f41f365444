package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// TestInternalErrorsNameTheirRequest: the client gets the id and no cause, the log has the cause at the id.
func TestInternalErrorsNameTheirRequest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fail func() error
		code string
	}{
		"damage":        {func() error { return fmt.Errorf("%w: the secret cause", machine.ErrCorrupt) }, "internal"},
		"anything else": {func() error { return errors.New("the secret cause") }, "internal"},
		"storage in a write": {func() error {
			return fmt.Errorf("%w: %w: the secret cause", ledger.ErrOutcomeUnknown, ledger.ErrFailed)
		}, "internal"},
		"panic": {func() error { panic("the secret cause") }, "internal"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			s := newTestServer(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			mux := http.NewServeMux()
			const procedure = seqledgerv1connect.AdminServiceGetStatusProcedure
			unary(s, mux, procedure, writing,
				func(context.Context, *seqledgerv1.GetStatusRequest) (*seqledgerv1.GetStatusResponse, error) {
					return nil, c.fail()
				})
			r := httptest.NewRequest(http.MethodPost, "http://localhost"+procedure, strings.NewReader(`{}`))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("X-Request-Id", "find-me")
			w := httptest.NewRecorder()
			withCall(false, mux).ServeHTTP(w, r)
			if !strings.Contains(w.Body.String(), c.code) || !strings.Contains(w.Body.String(), "request_id find-me") ||
				strings.Contains(w.Body.String(), "secret") {
				t.Errorf("the client gets %s", w.Body)
			}
			line := log.String()
			if strings.Count(line, "\n") != 1 || !strings.Contains(line, "request_id=find-me") ||
				!strings.Contains(line, "the secret cause") || !strings.Contains(line, "level=ERROR") {
				t.Errorf("the log has %s", line)
			}
		})
	}
}

// TestAStreamLogsOnce: thousands of writes that fail for one reason make one line, and each result names the request.
func TestAStreamLogsOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := newTestServer(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ctx := context.WithValue(t.Context(), callKey{}, &call{id: "stream-1"})
	for range 100 {
		e := s.writeErrorOf(ctx, fmt.Errorf("%w: the secret cause", machine.ErrCorrupt))
		if e.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN ||
			!strings.Contains(e.Message, "stream-1") || strings.Contains(e.Message, "secret") {
			t.Fatal(e)
		}
	}
	if strings.Count(log.String(), "the secret cause") != 1 || !strings.Contains(log.String(), "request_id=stream-1") {
		t.Error(log.String())
	}
	// Errors that are not failures of the server are not logged.
	_ = s.writeErrorOf(ctx, ledger.ErrDraining)
	if strings.Count(log.String(), "\n") != 1 {
		t.Error(log.String())
	}
}
