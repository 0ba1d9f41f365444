package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seqledger/seqledger/internal/mcp/tools"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/server"
)

// withTools are the options of a server with the endpoint for agents.
func withTools() server.Options {
	return server.Options{MCP: func(api http.RoundTripper) (http.Handler, error) {
		return tools.Handler(tools.Options{}, api, slog.New(slog.DiscardHandler))
	}}
}

// agent connects an agent with a key; "" has none.
func agent(t *testing.T, h *harness, key string) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	session := must.Get(client.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: h.url + "/mcp", HTTPClient: &http.Client{Transport: withBearer{key, h.h1.Transport}},
	}, nil))(t)
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// object is arguments or a result of a tool.
type object = map[string]any

// use calls a tool and returns its structured result, or its error.
func use(t *testing.T, a *mcp.ClientSession, tool string, arguments object) (object, string) {
	t.Helper()
	result, err := a.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		return nil, err.Error()
	}
	if result.IsError {
		text := must.Get(json.Marshal(result.Content))(t)
		return nil, string(text)
	}
	o, ok := result.StructuredContent.(object)
	if !ok {
		t.Fatalf("%s: no structured result: %+v", tool, result)
	}
	return o, ""
}

// An agent reserves, completes and looks up; another one gets the result; each tool says what to do.
func TestToolsForAgents(t *testing.T) {
	t.Parallel()
	h := startWith(t, withTools())
	a := agent(t, h, "")
	key := object{"scope": "acme/main", "namespace": "charge", "key": "order-1"}
	with := func(more object) object {
		o := object{}
		for _, part := range []object{key, more} {
			for name, value := range part {
				o[name] = value
			}
		}
		return o
	}
	expect := func(tool string, arguments object, want ...string) object {
		t.Helper()
		o, problem := use(t, a, tool, arguments)
		must.Equal(t, problem, "", "%s: %s", tool)
		for i := 0; i < len(want); i += 2 {
			check.Contains(t, fmt.Sprint(o[want[i]]), want[i+1], "%s: %s", tool, want[i])
		}
		return o
	}
	expect("look_up", key, "found", "false", "next", "Call reserve")
	attempt := strings.Repeat("ab", 16)
	request := object{"request": object{"amount": 5, "to": "x"}, "attempt_id": attempt}
	owned := expect("reserve", with(request), "outcome", "ACQUIRED", "next", "once")
	expect("reserve", with(request), "outcome", "ACQUIRED", "token", fmt.Sprint(owned["token"])) // its own repeat
	expect("reserve", with(object{"request": object{"to": "x", "amount": 5}}), "outcome", "IN_FLIGHT", "next",
		"do nothing")
	expect("reserve", with(object{"request": object{"to": "x", "amount": 6}}), "outcome", "MISMATCH", "next", "new key")
	expect("look_up", key, "found", "true", "next", "Wait")
	owner := object{"token": owned["token"], "attempt_id": attempt}
	expect("resolve", with(object{"state": "committed"}), "outcome", "NOT_FINAL", "next", "Call again")
	expect("heartbeat", with(owner), "outcome", "OK")
	owner["response"] = "charged"
	expect("complete", with(owner), "outcome", "OK")
	expect("reject", with(owner), "outcome", "ALREADY_COMPLETED", "record", "charged")
	expect("reserve", with(object{"request": object{"to": "x", "amount": 5}}), "outcome", "REPLAY", "record", "charged",
		"next", "do not do it again")
	expect("look_up", key, "record", "COMMITTED", "next", "do not do it again")

	write := object{"scope": "acme/main", "key": "report", "operations": []object{
		{"append": "made"}, {"set": object{"key": "report/1", "value": "done", "if_absent": true}}}}
	first := expect("write_once", write, "replayed", "false")
	expect("write_once", write, "replayed", "true", "tx_id", fmt.Sprint(first["tx_id"]))
	expect("client_state", object{"scope": "acme/main", "client_id": "till-7"}, "last_committed_sequence", "0")
}

// An agent has the rights of its own credential, and no other's.
func TestAgentsHaveTheirOwnRights(t *testing.T) {
	t.Parallel()
	g := guard(t, withTools(), nil)
	reserve := object{"scope": "acme/main", "key": "k", "request": "x"}
	writer, reader := agent(t, g.harness, g.keys["writer"]), agent(t, g.harness, g.keys["reader"])
	elsewhere := agent(t, g.harness, g.keys["elsewhere"])
	if o, problem := use(t, writer, "reserve", reserve); problem != "" || o["outcome"] != "ACQUIRED" {
		t.Error(o, problem)
	}
	for name, a := range map[string]*mcp.ClientSession{"reader": reader, "elsewhere": elsewhere} {
		if o, problem := use(t, a, "reserve", reserve); !strings.Contains(problem, "does not allow it") {
			t.Errorf("%s: %v %s", name, o, problem)
		}
	}
	if o, problem := use(t, reader, "look_up", object{"scope": "acme/main", "key": "k"}); problem != "" ||
		o["found"] != false {
		t.Errorf("the reader sees the writer's key: %v %s", o, problem)
	}
	for _, key := range []string{"", "nonsense"} {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/mcp",
			strings.NewReader("{}")))(t)
		answer := must.Get((&http.Client{Transport: withBearer{key, g.h1.Transport}}).Do(r))(t)
		_ = answer.Body.Close()
		check.Equal(t, answer.StatusCode, http.StatusUnauthorized, "key %q: %s: %v", key, answer.Status)
	}
}

// The endpoint is not there unless it is asked for; pages of other origins, foreign hosts and large messages are
// refused.
func TestTheEndpointForAgents(t *testing.T) {
	t.Parallel()
	post := func(h *harness, body string, header http.Header) int {
		t.Helper()
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/mcp",
			strings.NewReader(body)))(t)
		r.Header = header.Clone()
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Host = header.Get("Host")
		answer := must.Get(h.h1.Do(r))(t)
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode
	}
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	h := startWith(t, withTools())
	for name, c := range map[string]struct {
		header http.Header
		body   string
		want   int
	}{
		"a program":      {http.Header{}, ping, http.StatusOK},
		"its own page":   {http.Header{"Origin": {h.url}}, ping, http.StatusOK},
		"another page":   {http.Header{"Origin": {"https://evil.example"}}, ping, http.StatusForbidden},
		"a foreign host": {http.Header{"Host": {"evil.example"}}, ping, http.StatusForbidden},
		"too large":      {http.Header{}, `"` + strings.Repeat("x", 5<<20) + `"`, http.StatusRequestEntityTooLarge},
		"no JSON":        {http.Header{}, "{", http.StatusBadRequest},
		"nothing":        {http.Header{}, " ", http.StatusBadRequest},
		"spaces":         {http.Header{}, " \r\n\t" + ping, http.StatusOK},
		"a batch":        {http.Header{}, " \r\n\t[" + ping + "]", http.StatusBadRequest},
	} {
		check.Equal(t, post(h, c.body, c.header), c.want, "%s: status %d", name)
	}
	check.Equal(t, post(start(t), ping, http.Header{}), http.StatusNotFound, "without the endpoint: status %d")
}
