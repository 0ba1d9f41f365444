package guard

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// Everything but guarded calls passes, as often as it is sent: resources, prompts, progress, logs, requests of the
// server to the client, and calls of other tools.
func TestEverythingElsePasses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testConfig)
	progress, changed := make(chan string, 10), make(chan struct{}, 10)
	w.options = &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			progress <- r.Params.Message
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"sure": true}}, nil
		},
	}
	w.charge(func(ctx context.Context, r *mcp.CallToolRequest, _ payment) (*mcp.CallToolResult, any, error) {
		token := r.Params.GetProgressToken()
		if err := r.Session.NotifyProgress(ctx,
			&mcp.ProgressNotificationParams{ProgressToken: token, Message: "half"}); err != nil {
			return nil, nil, err
		}
		return text("paid"), nil, nil
	})
	ran := 0
	mcp.AddTool(w.server, &mcp.Tool{Name: "roll", Annotations: &mcp.ToolAnnotations{Title: "Dice"}},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			ran++
			return text(fmt.Sprint(ran)), nil, nil
		})
	w.server.AddResource(&mcp.Resource{URI: "file:///a", Name: "a"},
		func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "file:///a", Text: "contents"}}}, nil
		})
	w.server.AddPrompt(&mcp.Prompt{Name: "p"},
		func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Description: "described"}, nil
		})
	w.start()
	ctx := t.Context()
	params := &mcp.CallToolParams{Name: "charge", Arguments: chargeA,
		Meta: mcp.Meta{"progressToken": "mine"}}
	if result, err := w.client.CallTool(ctx, params); err != nil || result.IsError {
		t.Error(result, err)
	}
	check.Equal(t, <-progress, "half", "progress %q")
	for want := range 2 {
		if r := w.call("roll", "", struct{}{}); r.text != fmt.Sprint(want+1) || r.replayed {
			t.Errorf("a tool that is not guarded: %+v", r)
		}
	}
	check.Equal(t, must.Get(w.client.ReadResource(ctx, &mcp.ReadResourceParams{URI: "file:///a"}))(t).Contents[0].Text,
		"contents")
	check.Equal(t, must.Get(w.client.GetPrompt(ctx, &mcp.GetPromptParams{Name: "p"}))(t).Description, "described")
	tools := must.Get(w.client.ListTools(ctx, nil))(t)
	for _, tool := range tools.Tools {
		guarded := tool.Name == "charge"
		if guarded != (tool.Annotations != nil && tool.Annotations.IdempotentHint) ||
			!guarded && tool.Annotations.Title != "Dice" || tool.InputSchema == nil {
			t.Errorf("%s: %+v", tool.Name, tool.Annotations)
		}
	}
	w.server.AddTool(&mcp.Tool{Name: "more", InputSchema: map[string]any{"type": "object"}}, nil)
	<-changed
}

// echo is an Upstream that collects what it receives; the test writes its lines.
type echo struct {
	got   chan string
	lines chan string // closed at the end
}

func newEcho() *echo { return &echo{make(chan string, 100), make(chan string)} }

// Run implements Upstream.
func (e *echo) Run(receive func([]byte, *bufio.Reader) error) error {
	for line := range e.lines {
		r := bufio.NewReader(strings.NewReader(line + "\n"))
		text, tooLong, err := readLine(r, MaxMessage)
		if err != nil {
			return err
		}
		if !tooLong {
			r = nil
		}
		if err := receive(text, r); err != nil {
			return err
		}
	}
	return nil
}

// Send implements Upstream.
func (e *echo) Send(m *message) error { e.got <- string(m.raw); return nil }

// Call implements Upstream.
func (e *echo) Call(m *message) error { return e.Send(m) }

// CloseSend implements Upstream.
func (e *echo) CloseSend() error { return nil }

// What passes is unchanged in both directions, byte for byte.
func TestBytesPass(t *testing.T) {
	t.Parallel()
	config := must.Get(parseConfig("guard.yaml", []byte(testConfig), Times{}))(t)
	upstream := newEcho()
	g := New(Options{Config: config, Upstream: upstream, Store: idempotency.Memory()})
	in, toGuard := io.Pipe()
	fromGuard, out := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- g.Run(context.Background(), in, out) }() // received below
	for _, line := range []string{
		`{ "method":"x/unknown" , "id" : 1.50, "jsonrpc":"2.0","extra":[1e400,"\u0041"] }`,
		`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"other","arguments":{"n":9007199254740993}}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}`,
		`{"jsonrpc":"2.0","id":9,"result":{"action":"accept"}}`,
		`[{"jsonrpc":"2.0","id":3,"method":"ping"}]`,
	} {
		go func() { _, _ = io.WriteString(toGuard, line+"\n\n") }() // ends with the write
		if got := <-upstream.got; got != line {
			t.Errorf("sent %s, the server got %s", line, got)
		}
	}
	lines := bufio.NewReader(fromGuard)
	for _, line := range []string{
		`{ "jsonrpc":"2.0","id":1.50,"result":{"x":[1e400]} }`, `{"method":"sampling/createMessage","id":4}`,
		"this is a server that logs on its standard output", `{"a":1,"a":2}`, `{"id":"seqledger:1","result":{}}`,
		`{"jsonrpc":"2.0","id":5,"result":"` + strings.Repeat("x", MaxMessage+100_000) + `"}`,
	} {
		go func() { upstream.lines <- line }() // ends with the line
		if got, err := lines.ReadString('\n'); err != nil || strings.TrimSuffix(got, "\n") != line {
			t.Errorf("the server sent %d bytes, %.100s; the client got %d, %.100s (%v)", len(line), line, len(got), got,
				err)
		}
	}
	go func() { // ends with the write
		_, _ = io.WriteString(toGuard, `{"id":1,"method":"`+strings.Repeat("x", MaxMessage)+`"}`+"\n"+
			`{"id":2,"method":"after"}`+"\n")
	}()
	check.Contains(t, must.Get(lines.ReadString('\n'))(t), "16 MiB", "a message that is too long")
	check.Equal(t, <-upstream.got, `{"id":2,"method":"after"}`, "the message behind it: %.200s")
	close(upstream.lines)
	must.Do(t, <-done)
	_ = toGuard.Close()
}

// The log warns of a configured tool that the server does not have, and of an argument that the tool does not have.
func TestWarnings(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.Replace(testConfig, "[order, amount]", "[order, amuont]", 1)+"  chargee: {}\n")
	w.charge(nil)
	w.start()
	for range 2 {
		must.Get(w.client.ListTools(t.Context(), nil))(t)
	}
	if log := w.log.String(); strings.Count(log, "amuont") != 1 || strings.Count(log, "chargee") != 1 {
		t.Error(log)
	}
}

// A server over HTTP whose answer is truncated leaves an unknown outcome; one that refuses the request before any
// method leaves the key free; a message is never sent twice.
func TestHTTPThatFails(t *testing.T) {
	t.Parallel()
	config := must.Get(parseConfig("guard.yaml", []byte(testConfig), Times{}))(t)
	answers := map[string]struct {
		handler http.HandlerFunc
		first   string // code
		runs    int
	}{
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\ndata: "+
				"{\"jsonrpc")
			panic(http.ErrAbortHandler)
		}, "outcome-unknown", 1},
		"no answer": {func(http.ResponseWriter, *http.Request) {}, "outcome-unknown", 1},
		"a broken pipe": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "outcome-unknown",
			1},
		"a failure": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oops", http.StatusBadGateway) },
			"outcome-unknown", 1},
		"a tool that has run, and does not find its receipt": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no such receipt", http.StatusNotFound)
		}, "outcome-unknown", 1},
		"no credential": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "who are you?", http.StatusUnauthorized)
		}, "store-unavailable", 2},
	}
	for name, c := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runs := make(chan struct{}, 10)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				runs <- struct{}{}
				_, _ = io.Copy(io.Discard, r.Body)
				c.handler(w, r)
			}))
			defer s.Close()
			upstream := NewHTTP(HTTPOptions{Endpoint: s.URL, DrainTimeout: hangs})
			settings := *config
			settings.Wait = -1
			g := New(Options{Config: &settings, Upstream: upstream, Store: idempotency.Memory()})
			in, toGuard := io.Pipe()
			fromGuard, out := io.Pipe()
			done := make(chan error, 1)
			go func() { done <- g.Run(context.Background(), in, out) }() // received below
			lines := bufio.NewReader(fromGuard)
			call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","arguments":{"order":"A","amount":5}}}`
			for range 2 {
				for answer := raw(t, toGuard, lines, call); ; answer = raw(t, toGuard, lines, "") {
					if answer["method"] == "notifications/progress" {
						continue
					}
					check.Contains(t, fmt.Sprint(answer), metaCode+":"+c.first)
					break
				}
			}
			_ = toGuard.Close()
			must.Do(t, <-done)
			check.Equal(t, len(runs), c.runs, "%d requests")
		})
	}
}
