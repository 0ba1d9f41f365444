package guard

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// httpRequest is a request that a server over HTTP received.
type httpRequest struct {
	method string
	header http.Header
	body   string
}

// httpServer is a server over HTTP that records its requests, behind a running upstream.
type httpServer struct {
	*HTTP

	mu       sync.Mutex
	requests []httpRequest
	lines    chan string // what the guard would receive
	ended    chan error
}

// startHTTP starts a server with a handler per HTTP method, and its upstream.
func startHTTP(t *testing.T, o HTTPOptions, handlers map[string]http.HandlerFunc) *httpServer {
	t.Helper()
	s := &httpServer{lines: make(chan string, 100), ended: make(chan error, 1)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.requests = append(s.requests, httpRequest{r.Method, r.Header.Clone(), string(body)})
		s.mu.Unlock()
		if handler := handlers[r.Method]; handler != nil {
			handler(w, r)
		}
	}))
	t.Cleanup(server.Close)
	o.Endpoint, o.DrainTimeout = server.URL, hangs
	s.HTTP = NewHTTP(o)
	// Ends with CloseSend, which stop calls; received there.
	go func() {
		s.ended <- s.Run(func(line []byte, _ *bufio.Reader) error {
			s.lines <- string(line)
			return nil
		})
	}()
	return s
}

// stop closes the connection and returns all its requests.
func (s *httpServer) stop(t *testing.T) []httpRequest {
	t.Helper()
	must.Do(t, errors.Join(s.CloseSend(), s.CloseSend(), <-s.ended))
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

func messageOf(t *testing.T, text string) *message {
	t.Helper()
	m := must.Get(parseMessage([]byte(text)))(t)
	return m
}

const (
	pingCall   = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	pingAnswer = `{"jsonrpc":"2.0","id":1,"result":{}}`
)

func respond(kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, body)
	}
}

// An answer arrives as JSON or in a stream of events, together with what else the server sends, and becomes one line
// whatever its layout.
func TestHTTPAnswers(t *testing.T) {
	t.Parallel()
	const notice = `{"jsonrpc":"2.0","method":"notifications/progress"}`
	for name, test := range map[string]struct {
		kind, body string
		want       []string
	}{
		"json":                {"application/json", pingAnswer, []string{pingAnswer}},
		"json with parameter": {"application/json; charset=utf-8", "\n" + pingAnswer + "\n", []string{pingAnswer}},
		"json in lines": {"application/json", strings.ReplaceAll(pingAnswer, ",", ",\r\n "),
			[]string{pingAnswer}},
		"events": {"text/event-stream", "event: message\nid: 7\ndata: " + notice + "\n\n: a comment\n\ndata:" +
			pingAnswer + "\n\n", []string{notice, pingAnswer}},
		"an event in lines": {"text/event-stream", "data: " + strings.ReplaceAll(pingAnswer, ",", ",\ndata: ") +
			"\r\n\r\n", []string{pingAnswer}},
		"what follows the answer is left": {"text/event-stream", "data: " + pingAnswer + "\n\ndata: " + notice + "\n\n",
			[]string{pingAnswer}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startHTTP(t, HTTPOptions{}, map[string]http.HandlerFunc{"POST": respond(test.kind, test.body)})
			must.Do(t, s.Call(messageOf(t, pingCall)))
			for _, want := range test.want {
				check.Equal(t, <-s.lines, want)
			}
			if all := s.stop(t); len(all) != 1 || all[0].body != pingCall || len(s.lines) != 0 {
				t.Errorf("%d requests, %d lines more", len(all), len(s.lines))
			}
		})
	}
}

// An invalid answer is an error. The error says that nothing was executed only if the server cannot have received the
// message.
func TestHTTPFailures(t *testing.T) {
	t.Parallel()
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		says    string
		unsent  bool
	}{
		"no content": {status(204), "ended before it was complete", false},
		"another's answer": {respond("application/json", strings.Replace(pingAnswer, "1,", "2,", 1)),
			"before it was complete", false},
		"another type": {respond("text/html", pingAnswer), "before it was complete", false},
		"a redirect":   {status(307), "307", false},
		"401": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			w.WriteHeader(http.StatusUnauthorized)
		}, "401", true},
		"401 of a tool": {status(401), "401", false},
		"403":           {status(403), "403", false},
		"404":           {status(404), "404", false},
		"405":           {status(405), "405", true},
		"415":           {status(415), "415", true},
		"429":           {status(429), "429", false},
		"500":           {status(500), "500", false},
		"too long": {func(w http.ResponseWriter, r *http.Request) {
			respond("application/json", strings.Repeat(" ", MaxMessage+1)+pingAnswer)(w, r)
		}, "more than 16 MiB", false},
		"an event that is too long": {func(w http.ResponseWriter, r *http.Request) {
			respond("text/event-stream", strings.Repeat("data: "+strings.Repeat("x", 1<<20)+"\n", 17))(w, r)
		}, "more than 16 MiB", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startHTTP(t, HTTPOptions{}, map[string]http.HandlerFunc{"POST": test.handler})
			err := s.Call(messageOf(t, pingCall))
			if err == nil || !strings.Contains(err.Error(), test.says) ||
				errors.Is(err, idempotency.ErrNotExecuted) != test.unsent {
				t.Errorf("got %v, want %q, unsent %v", err, test.says, test.unsent)
			}
			check.Equal(t, len(s.stop(t)), 1, "the message was sent %d times")
		})
	}
	for gone, says := range map[bool]string{
		true: "the server does not know the session", false: "a tool answers with 404",
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			var s *httpServer
			s = startHTTP(t, HTTPOptions{}, map[string]http.HandlerFunc{
				"POST": func(w http.ResponseWriter, r *http.Request) {
					s.mu.Lock()
					body := s.requests[len(s.requests)-1].body
					s.mu.Unlock()
					switch {
					case strings.Contains(body, "initialize"):
						w.Header().Set(headerSession, "s")
						respond("application/json", pingAnswer)(w, r)
					case gone || strings.Contains(body, "tools/call"):
						w.WriteHeader(http.StatusNotFound)
					default:
						respond("application/json", pingAnswer)(w, r)
					}
				},
			})
			must.Do(t, s.Call(messageOf(t, strings.Replace(pingCall, "ping", "initialize", 1))))
			err := s.Call(messageOf(t, strings.Replace(pingCall, "ping", "tools/call", 1)))
			if err == nil || errors.Is(err, idempotency.ErrNotExecuted) != gone {
				t.Errorf("got %v", err)
			}
			s.stop(t)
		})
	}
	nobody := NewHTTP(HTTPOptions{Endpoint: "http://127.0.0.1:1", DrainTimeout: hangs})
	check.Is(t, nobody.Call(messageOf(t, pingCall)), idempotency.ErrNotExecuted, "where nothing listens")
	nowhere := NewHTTP(HTTPOptions{Endpoint: "http://[", DrainTimeout: hangs})
	check.Is(t, nowhere.Call(messageOf(t, pingCall)), idempotency.ErrNotExecuted, "at an address that is none")
}

// If a message that passes fails, a call is answered in place of the server, and any other message is dropped; after
// CloseSend nothing is sent.
func TestHTTPSend(t *testing.T) {
	t.Parallel()
	s := startHTTP(t, HTTPOptions{}, map[string]http.HandlerFunc{"POST": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
	}})
	must.Do(t, s.Send(messageOf(t, `{"jsonrpc":"2.0","method":"notifications/cancelled"}`)))
	must.Do(t, s.Send(messageOf(t, pingCall)))
	if got := <-s.lines; !strings.Contains(got, `"id":1`) || !strings.Contains(got, "502") {
		t.Errorf("the call is answered with %s", got)
	}
	if all := s.stop(t); len(all) != 2 || len(s.lines) != 0 {
		t.Errorf("%d requests, %d lines more", len(all), len(s.lines))
	}
	for name, send := range map[string]func(*message) error{"Send": s.Send, "Call": s.Call} {
		check.Is(t, send(messageOf(t, pingCall)), idempotency.ErrNotExecuted, "%s behind the end", name)
	}
}

// Every later request carries the session and the revision of the initialize, and the session is ended.
func TestHTTPSession(t *testing.T) {
	t.Parallel()
	listening := make(chan struct{})
	s := startHTTP(t, HTTPOptions{Header: http.Header{"Authorization": {"Bearer secret"}}}, map[string]http.HandlerFunc{
		"POST": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(headerSession, fmt.Sprint("session of ", r.Header.Get(headerSession), "#"))
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}`)
		},
		"GET": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"id\":9}\n\n")
			_ = http.NewResponseController(w).Flush()
			close(listening)
			<-r.Context().Done()
		},
	})
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`, pingCall,
	} {
		must.Do(t, s.Send(messageOf(t, text)))
	}
	<-listening
	var got []string
	for range 4 { // three answers, and what the server asks on its own
		got = append(got, <-s.lines)
	}
	check.Contains(t, strings.Join(got, "\n"), `"id":9`, "the guard got %q", got)
	all := s.stop(t)
	last := all[len(all)-1]
	if len(all) != 5 || last.method != http.MethodDelete {
		t.Errorf("%d requests, the last is %s", len(all), last.method)
	}
	for i, r := range all {
		session, version := "session of #", "2025-06-18"
		if i == 0 {
			session, version = "", ""
		}
		if r.header.Get(headerSession) != session || r.header.Get(headerVersion) != version ||
			r.header.Get("Authorization") != "Bearer secret" {
			t.Errorf("request %d, %s, has %v", i, r.method, r.header)
		}
	}
}

// A server without a stream of its own messages is asked for one only once.
func TestHTTPWithoutAStreamOfItsOwn(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 10)
	s := startHTTP(t, HTTPOptions{}, map[string]http.HandlerFunc{
		"GET": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusMethodNotAllowed)
			asked <- struct{}{}
		},
	})
	for i := range 2 {
		must.Do(t, s.Send(messageOf(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)))
		if i == 0 {
			<-asked
		}
	}
	s.stop(t)
	check.Equal(t, len(asked), 0, "it was asked %d times more")
}

// From revision 2026-07-28 on, headers describe a message; before it, none does.
func TestHTTPDescribesMessages(t *testing.T) {
	t.Parallel()
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`
	for text, want := range map[string]string{
		`{"id":1,"method":"tools/call","params":{"name":"charge",` + meta + `}}`:             "2026-07-28 tools/call charge",
		`{"id":1,"method":"prompts/get","params":{` + meta + `,"name":"p"}}`:                 "2026-07-28 prompts/get p",
		`{"id":1,"method":"resources/read","params":{"uri":"u:1","name":"n",` + meta + `}}`:  "2026-07-28 resources/read u:1",
		`{"id":1,"method":"tools/list","params":{"name":"n",` + meta + `}}`:                  "2026-07-28 tools/list ",
		`{"id":1,"method":"tools/call","params":{"name":"charge"}}`:                          "  ",
		`{"id":1,"method":"tools/call","params":{"name":"charge","_meta":{"progress":"x"}}}`: "  ",
		`{"id":1,"method":"ping"}`: "  ",
	} {
		header := http.Header{}
		(&HTTP{}).describe(header, messageOf(t, text))
		got := header.Get(headerVersion) + " " + header.Get(headerMethod) + " " + header.Get(headerName)
		check.Equal(t, got, want, "%s: got %q", text)
	}
}
