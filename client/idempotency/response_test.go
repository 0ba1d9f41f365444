package idempotency_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
)

// A response that is not as long as its handler has declared is never replayed as a whole one.
func TestMiddlewareContentLength(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status   int
		declared string
		written  int
		flush    bool
		whole    bool
	}{
		"as declared":         {200, "50", 50, false, true},
		"as declared, 404":    {404, "50", 50, false, true},
		"nothing, declared":   {201, "0", 0, false, true},
		"not declared":        {200, "", 50, false, true},
		"no number":           {200, "many", 50, false, true},
		"204":                 {204, "", 0, false, true},
		"204, with a length":  {204, "50", 0, false, true},
		"304, with a length":  {304, "50", 0, false, true},
		"flushed":             {200, "50", 50, true, true},
		"too short":           {200, "100", 50, false, false},
		"too short, 404":      {404, "100", 50, false, false},
		"nothing":             {200, "100", 0, false, false},
		"too long":            {200, "5", 10, false, false},
		"too short, flushed":  {200, "100", 50, true, false},
		"too large, and long": {200, "5", 2 << 20, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
				if test.declared != "" {
					w.Header().Set("Content-Length", test.declared)
				}
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, strings.Repeat("x", test.written/2))
				if test.flush {
					_ = http.NewResponseController(w).Flush()
				}
				_, _ = io.WriteString(w, strings.Repeat("x", test.written-test.written/2))
			}
			s.expect(s.send(), test.status, "false", 1)
			answer := s.send()
			if !test.whole {
				s.refused(answer, http.StatusGone, idempotency.CodeNotRetained, idempotency.Reconcile, 1)
				return
			}
			if text := s.expect(answer, test.status, "true", 1); len(text) != test.written {
				t.Errorf("%d bytes are replayed", len(text))
			}
		})
	}
}
