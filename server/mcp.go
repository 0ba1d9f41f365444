package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/server/admission"
)

// mcpPath is the endpoint for agents.
const mcpPath = "/mcp"

// mountMCP mounts the endpoint for agents. Its requests are authenticated and admitted like every other, and what they
// ask of the API goes through the API's own handlers in memory, under the same credential: with its role, its limits
// and its charges. A request and its first call are one request of its share; each further call is another one.
func (s *Server) mountMCP(mux *http.ServeMux) error {
	api := http.NewServeMux()
	s.mount(api)
	handler, err := s.options.MCP(inProcess{s.within(checkProtocol(api))})
	if err != nil {
		return fmt.Errorf("server: Options.MCP: %w", err)
	}
	handler = s.limitBody(writing, answered(false, s.decodedInTurn(handler)))
	mux.Handle(mcpPath, s.fromAllowedPage(admission.BodyDeadline(s.byLeader(handler))))
	return nil
}

// decodedInTurn lets an agent's large message wait until it may be decoded. Its decoding ends when it first asks the
// API or is answered.
func (s *Server) decodedInTurn(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		body, err := io.ReadAll(r.Body)
		if len(body) > wire.LargeMessage && err == nil {
			callOf(ctx).work, err = s.admission.Decode(ctx, s.party(ctx))
		}
		r.Body = &replayedBody{bytes.NewReader(body), err, r.Body}
		next.ServeHTTP(w, r)
	})
}

// within admits the calls that an admitted request makes. They are answered on this node, which led when the request
// came.
func (s *Server) within(next http.Handler) http.Handler {
	return s.entered(func(r *http.Request) (func(), error) {
		return s.admission.Within(r.Context(), s.party(r.Context()))
	}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		outer := callOf(r.Context())
		outer.endWork()
		inner := &call{id: outer.id, caller: outer.caller, here: true}
		next.ServeHTTP(w, inner.begin(r))
	}))
}

// fromAllowedPage refuses pages of other origins, because a browser sends some requests without asking first.
func (s *Server) fromAllowedPage(next http.Handler) http.Handler {
	return onlyIf(func(r *http.Request) string {
		if s.allowsOrigin(r) {
			return ""
		}
		return "a page of this origin may not call here: name the origin with --cors-origin"
	}, func(context.Context) {}, next)
}

// inProcess is a transport to a handler of this process.
type inProcess struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper. The handler runs in the caller's goroutine.
func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	inner := r.Clone(r.Context())
	if inner.Body == nil {
		inner.Body = http.NoBody
	}
	defer func() { _ = inner.Body.Close() }() // the handler has read what it wants
	inner.RequestURI, inner.RemoteAddr = r.URL.RequestURI(), "in-process"
	w := &memoryResponse{header: http.Header{}}
	p.handler.ServeHTTP(w, inner)
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return &http.Response{
		StatusCode: w.status, Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)), Header: w.header,
		Request: r, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(&w.body),
		ContentLength: int64(w.body.Len()),
	}, nil
}

// memoryResponse is a response in memory. The handlers of the API bound what they answer.
type memoryResponse struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (w *memoryResponse) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *memoryResponse) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
}

// Write implements io.Writer.
func (w *memoryResponse) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}
