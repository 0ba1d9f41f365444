package server

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/iotest"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestDirectWriteForms: a request in its usual form does not reach Connect's handler. Every other one does, with all of
// its body, and with the error at the body's end.
func TestDirectWriteForms(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{Logger: slog.New(slog.DiscardHandler)})
	message := must.Get((&seqledgerv1.WriteRequest{
		Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "main"}, ClientId: "c", Sequence: 1,
		Operations: []*seqledgerv1.Operation{{Operation: &seqledgerv1.Operation_Append{
			Append: &seqledgerv1.Append{Payload: []byte("x")},
		}}},
	}).MarshalVT())(t)
	for name, test := range map[string]struct {
		change func(r *http.Request)
		direct bool
		fails  bool // the body's end is an error
	}{
		"usual": {func(*http.Request) {}, true, false},
		"its version": {func(r *http.Request) { r.Header.Set("Connect-Protocol-Version", "1") }, true,
			false},
		"takes gzip": {func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") }, true, false},
		"a deadline": {func(r *http.Request) { r.Header.Set("Connect-Timeout-Ms", "60000") }, true, false},
		"another type": {func(r *http.Request) { r.Header.Set("Content-Type", "application/json") }, false,
			false},
		"grpc": {func(r *http.Request) { r.Header.Set("Content-Type", "application/grpc") }, false,
			false},
		"compressed":             {func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, false, false},
		"a GET":                  {func(r *http.Request) { r.Method = http.MethodGet }, false, false},
		"no length":              {func(r *http.Request) { r.ContentLength = -1 }, false, false},
		"large":                  {func(r *http.Request) { r.ContentLength = maxDirectBytes + 1 }, false, false},
		"shorter than announced": {func(r *http.Request) { r.ContentLength++ }, false, false},
		"longer than announced":  {func(r *http.Request) { r.ContentLength-- }, false, false},
		"cut off": {func(r *http.Request) {
			r.Body = io.NopCloser(io.MultiReader(r.Body, iotest.ErrReader(io.ErrUnexpectedEOF)))
			r.ContentLength += 100
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(message))
			r.Header.Set("Content-Type", binaryType)
			test.change(r)
			general := false
			d := &directWrite{s, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				general = true
				body, err := io.ReadAll(r.Body)
				if !bytes.Equal(body, message) || (err != nil) != test.fails {
					t.Errorf("the body is %q, %v", body, err)
				}
			}), &observer{s}, connect.NewErrorWriter()}
			w := httptest.NewRecorder()
			withCall(false, d).ServeHTTP(w, r)
			if general == test.direct || test.direct && (w.Code != http.StatusOK || w.Body.Len() == 0) {
				t.Errorf("Connect's handler was asked: %t; %d %s", general, w.Code, w.Body)
			}
		})
	}
}
