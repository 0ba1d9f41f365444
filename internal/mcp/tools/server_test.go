package tools

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// session connects an agent to the tools over a ledger.
func session(t *testing.T, a *api) *mcp.ClientSession {
	t.Helper()
	o := over(t, a, 1).Options
	o.Version = "v1.2.3"
	ours, theirs := mcp.NewInMemoryTransports()
	served := must.Get(Server(o).Connect(t.Context(), theirs, nil))(t)
	agent := mcp.NewClient(&mcp.Implementation{Name: "agent"}, nil)
	s := must.Get(agent.Connect(t.Context(), ours, nil))(t)
	t.Cleanup(func() {
		_ = s.Close()
		_ = served.Wait()
	})
	return s
}

// TestToolsOfAnAgent: what an agent is told of each tool. A client may ask a person before it calls one that changes
// something for good, and must not before one that reads.
func TestToolsOfAnAgent(t *testing.T) {
	t.Parallel()
	s := session(t, &api{})
	if i := s.InitializeResult(); i.ServerInfo.Version != "v1.2.3" || !strings.Contains(i.Instructions,
		"never choose") {
		t.Errorf("%+v", i)
	}
	list := must.Get(s.ListTools(t.Context(), nil))(t)
	type kind struct{ readOnly, destructive bool }
	want := map[string]kind{
		"reserve": {}, "complete": {}, "reject": {}, "heartbeat": {}, "look_up": {readOnly: true},
		"resolve": {destructive: true}, "write_once": {destructive: true}, "client_state": {readOnly: true},
	}
	required := map[string][]string{
		"reserve": {"key", "request"}, "complete": {"key", "token", "attempt_id"}, "reject": {"key", "token",
			"attempt_id"},
		"heartbeat": {"key", "token", "attempt_id"}, "look_up": {"key"}, "resolve": {"key", "state"},
		"write_once": {"key", "operations"}, "client_state": {},
	}
	for _, tool := range list.Tools {
		a := tool.Annotations
		k, known := want[tool.Name]
		if !known || a == nil || tool.Description == "" || a.Title == "" {
			t.Errorf("tool %+v", tool)
			continue
		}
		delete(want, tool.Name)
		if a.ReadOnlyHint != k.readOnly || *a.DestructiveHint != k.destructive || !a.IdempotentHint ||
			*a.OpenWorldHint {
			t.Errorf("%s: %+v", tool.Name, a)
		}
		b := must.Get(json.Marshal(tool.InputSchema))(t)
		var schema struct {
			Required   []string
			Properties map[string]struct{ Description string }
		}
		must.Do(t, json.Unmarshal(b, &schema))
		for _, name := range required[tool.Name] {
			if !slices.Contains(schema.Required, name) {
				t.Errorf("%s: %s is not required: %v", tool.Name, name, schema.Required)
			}
		}
		for _, name := range []string{"scope", "namespace", "principal"} {
			if slices.Contains(schema.Required, name) {
				t.Errorf("%s: %s is required", tool.Name, name)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("there are no tools %v", want)
	}
}

// TestBadCallsOfAnAgent: a call that the ledger must not get is answered with what is wrong, as an answer that the
// agent can read, and the ledger is not called.
func TestBadCallsOfAnAgent(t *testing.T) {
	t.Parallel()
	s := session(t, &api{}) // any call would panic
	id := strings.Repeat("ab", 16)
	for _, test := range []struct{ tool, arguments, says string }{
		{"reserve", `{"request":1}`, "key"},
		{"reserve", `{"key":"k"}`, "request"},
		{"reserve", `{"key":"k","request":1,"attempt_id":"12"}`, "attempt_id must be 32 hex digits"},
		{"reserve", `{"key":"k","request":1,"on_lease_expired":"never"}`, "on_lease_expired"},
		{"reserve", `{"key":"k","request":1,"scope":"a/b/c"}`, `scope "a/b/c"`},
		{"reserve", `{"key":"k","request":1,"lease":5}`, "lease"},
		{"reserve", `{"key":5,"request":1}`, "key"},
		{"reserve", `{"key":"k","request":{"amount":1.000000000000000001}}`, "/request/amount: the number"},
		{"reserve", `{"key":"k","request":{"amount":9007199254740993}}`, "/request/amount: the number"},
		{"reserve", `{"key":"k","request":{"a":1,"a":2}}`, "duplicate"},
		{"write_once", `{"key":"k","operations":[{"set":{"key":"b","if_version":9007199254740993}}]}`,
			"/operations/0/set/if_version: the number"},
		{"complete", `{"key":"k","token":"0","attempt_id":"` + id + `"}`, "token must be the number"},
		{"complete", `{"key":"k","token":"x","attempt_id":"` + id + `"}`, "token must be the number"},
		{"complete", `{"key":"k","token":"1","attempt_id":"zz"}`, "attempt_id must be 32 hex digits"},
		{"reject", `{"key":"k","token":"-1","attempt_id":"` + id + `"}`, "token must be the number"},
		{"heartbeat", `{"key":"k","token":"1"}`, "attempt_id"},
		{"look_up", `{"key":"k","scope":"/"}`, `scope "/"`},
		{"resolve", `{"key":"k","scope":"a/","state":"COMMITTED"}`, `scope "a/"`},
		{"write_once", `{"key":"k","operations":[{}]}`, "must have one of append, set"},
		{"write_once", `{"key":"k","operations":[{"append":"a","set":{"key":"b"}}]}`, "has 2"},
		{"write_once", `{"key":"k","operations":[{"set":{"key":"b","if_absent":true,"if_present":true}}]}`,
			"more than one"},
		{"write_once", `{"key":"k","operations":[{"delete":{"key":"b","value":"x"}}]}`, "must not have a value"},
		{"write_once", `{"key":"k","operations":[{"append":"a"},{"delete":{"key":"b","if_value":"c","if_version":1}}]}`,
			"more than one"},
	} {
		result, err := s.CallTool(t.Context(), &mcp.CallToolParams{
			Name: test.tool, Arguments: json.RawMessage(test.arguments),
		})
		var text string
		switch {
		case err != nil: // the schema refuses it
			text = err.Error()
		case !result.IsError || len(result.Content) != 1:
			t.Errorf("%s %s: %+v", test.tool, test.arguments, result)
		default:
			text = result.Content[0].(*mcp.TextContent).Text
		}
		check.Contains(t, text, test.says, "%s %s: it says", test.tool, test.arguments)
	}
}

// TestRefusalsReachTheAgent as answers with advice, not as errors of the protocol, which agents do not see.
func TestRefusalsReachTheAgent(t *testing.T) {
	t.Parallel()
	s := session(t, &api{write: func(*seqledgerv1.WriteRequest) (*seqledgerv1.Receipt, error) {
		return nil, refused(t, connect.CodeInvalidArgument,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT, "operations[0].key")
	}})
	result, err := s.CallTool(t.Context(), &mcp.CallToolParams{
		Name: "write_once", Arguments: json.RawMessage(`{"key":"k","operations":[{"append":"a"}]}`),
	})
	if err != nil || !result.IsError {
		t.Fatalf("%+v, %v", result, err)
	}
	check.Contains(t, result.Content[0].(*mcp.TextContent).Text, "Correct operations[0].key")
}

// credentials is a ledger that notes with which credential it is called.
type credentials struct {
	*api

	seen []string
}

func (c *credentials) RoundTrip(r *http.Request) (*http.Response, error) {
	c.seen = append(c.seen, r.Header.Get("Authorization"))
	return c.api.RoundTrip(r)
}

// TestCredentialOfTheAgent: over HTTP the ledger is called with the credential of each request, and with none but a
// bearer token.
func TestCredentialOfTheAgent(t *testing.T) {
	t.Parallel()
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look_up",` +
		`"arguments":{"scope":"acme","key":"k"}}}`
	for _, test := range []struct {
		header, seen, says string
	}{
		{"", "", "PENDING"},
		{"Bearer secret", "Bearer secret", "PENDING"},
		{"bearer  secret ", "Bearer secret", "PENDING"},
		{"Basic c2VjcmV0", "", "must be a bearer token"},
		{"secret", "", "must be a bearer token"},
	} {
		c := &credentials{api: &api{record: func(r *seqledgerv1.GetRecordRequest) (*seqledgerv1.IdempotencyRecord,
			error) {
			if r.GetRecord().GetScope().GetOrganization() != "acme" {
				t.Errorf("asked for %v", r)
			}
			return &seqledgerv1.IdempotencyRecord{State: seqledgerv1.RecordState_RECORD_STATE_PENDING}, nil
		}}}
		h := must.Get(Handler(Options{}, c, slog.New(slog.DiscardHandler)))(t)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(call))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if test.header != "" {
			r.Header.Set("Authorization", test.header)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), test.says) {
			t.Errorf("%q: %d %s", test.header, w.Code, w.Body)
		}
		called := len(c.seen) > 0
		if called != (test.says == "PENDING") || called && c.seen[0] != test.seen {
			t.Errorf("%q: the ledger was called with %q", test.header, c.seen)
		}
	}
}

// TestRequestsThatAreNoCalls are refused by their form, before a tool is asked.
func TestRequestsThatAreNoCalls(t *testing.T) {
	t.Parallel()
	h := must.Get(Handler(Options{}, &api{}, slog.New(slog.DiscardHandler)))(t)
	const json = "application/json"
	for _, test := range []struct {
		what, method, contentType string
		body                      io.Reader
		status                    int
	}{
		{"no JSON", http.MethodPost, json, strings.NewReader("reserve"), http.StatusBadRequest},
		{"nothing", http.MethodPost, json, strings.NewReader(""), http.StatusBadRequest},
		{"a form", http.MethodPost, "application/x-www-form-urlencoded", strings.NewReader("a=b"),
			http.StatusUnsupportedMediaType},
		{"too much", http.MethodPost, json,
			io.MultiReader(strings.NewReader(`{"x":"`), bytes.NewReader(bytes.Repeat([]byte("x"), maxBody))),
			http.StatusRequestEntityTooLarge},
		{"no session to end", http.MethodDelete, json, http.NoBody, http.StatusMethodNotAllowed},
	} {
		r := httptest.NewRequestWithContext(t.Context(), test.method, "/", test.body)
		r.Header.Set("Content-Type", test.contentType)
		r.Header.Set("Accept", "application/json, text/event-stream")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != test.status {
			t.Errorf("%s: %d %s, want %d", test.what, w.Code, w.Body, test.status)
		}
	}
}
