package server

import (
	"bytes"
	"compress/gzip"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/mcp/tools"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// answerWithoutDecoding is a response that checks that others do not wait while its client is written to.
type answerWithoutDecoding struct {
	*httptest.ResponseRecorder

	check func()
}

func (a answerWithoutDecoding) Write(p []byte) (int, error) {
	a.check()
	return a.ResponseRecorder.Write(p)
}

// TestLargeMessagesAreDecodedInTurn: whatever protocol brings a large message, it waits for its turn to be decoded,
// which ends before an agent's call goes on and before the client is answered.
func TestLargeMessagesAreDecodedInTurn(t *testing.T) {
	t.Parallel()
	var s *Server
	check := func() {
		if n := s.admission.Gauges().Decodes; n != 0 {
			t.Error(n, "messages are decoded longer than they need")
		}
	}
	s = newTestServer(t, Options{Logger: slog.New(slog.DiscardHandler),
		MCP: func(api http.RoundTripper) (http.Handler, error) {
			return tools.Handler(tools.Options{}, roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				defer check()
				return api.RoundTrip(r)
			}), slog.New(slog.DiscardHandler))
		}})
	mistaken := `{"mistake":1` + strings.Repeat(" ", wire.LargeMessage) + `}`
	asFrames := enveloped(0, mistaken)
	const procedure = seqledgerv1connect.LedgerServiceWriteProcedure
	const unknown = "is an unknown field"
	for name, test := range map[string]struct{ path, kind, encoding, body, want string }{
		"Connect": {procedure, "application/json", "", mistaken, unknown},
		"gzip":    {procedure, "application/json", "gzip", zip(t, mistaken), unknown},
		"gRPC":    {procedure, "application/grpc+json", "", asFrames, unknown},
		"gRPC, gzip": {procedure, "application/grpc+json", "gzip", enveloped(1, zip(t, mistaken)),
			unknown},
		"gRPC-Web": {procedure, "application/grpc-web+json", "", asFrames, unknown},
		"batch": {seqledgerv1connect.LedgerServiceWriteBatchProcedure, "application/json", "", mistaken,
			unknown},
		"stream": {seqledgerv1connect.LedgerServiceWriteStreamProcedure, "application/connect+json", "", asFrames,
			unknown},
		"agent": {mcpPath, "application/json", "", `{"jsonrpc":"2.0","id":1,"method":"tools/list"` + mistaken[12:],
			`"tools":[`},
		"agent's call": {mcpPath, "application/json", "",
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look_up","arguments":{` +
				`"scope":"a/b","namespace":"n","key":"k"}}` + mistaken[12:], `"found":false`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var held []func()
				for range max(1, runtime.GOMAXPROCS(0)-1) {
					done := must.Get(s.admission.Decode(t.Context(), s.party(t.Context())))(t)
					held = append(held, done)
				}
				r := httptest.NewRequest(http.MethodPost, "http://localhost"+test.path, strings.NewReader(test.body))
				r.ProtoMajor = 2 // for streams
				r.Header.Set("Content-Type", test.kind)
				r.Header.Set("Accept", "application/json, text/event-stream")
				if test.encoding != "" {
					r.Header.Set("Content-Encoding", test.encoding)
					r.Header.Set("Grpc-Encoding", test.encoding)
				}
				w := answerWithoutDecoding{httptest.NewRecorder(), check}
				answered := make(chan struct{})
				go func() { // ends with the answer, received below
					defer close(answered)
					s.handler.ServeHTTP(w, r)
				}()
				<-time.After(time.Minute) // of the bubble
				select {
				case <-answered:
					t.Error("the message was decoded beside others:", w.Body)
				default:
				}
				for _, done := range held {
					done()
				}
				<-answered
				got := w.Result()
				told := w.Body.String() + got.Header.Get("Grpc-Message") + got.Trailer.Get("Grpc-Message")
				if !strings.Contains(told, test.want) {
					t.Errorf("got %d %q, want %q", w.Code, told, test.want)
				}
			})
		})
	}
}

func zip(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	must.Get(w.Write([]byte(text)))(t)
	must.Do(t, w.Close())
	return b.String()
}
