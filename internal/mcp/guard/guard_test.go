package guard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A guarded tool runs once for equal arguments, and once per key; a retry gets the first result.
func TestAToolRunsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testConfig)
	w.charge(nil)
	w.start()
	first := w.call("charge", "", payment{"A", 5, "now"})
	again := w.call("charge", "", payment{"A", 5, "and again"})
	if first.text != "charge 1 of 5 for A" || first.replayed || again.text != first.text || !again.replayed {
		t.Errorf("first %+v, again %+v", first, again)
	}
	if other := w.call("charge", "", payment{"B", 5, "now"}); other.text != "charge 2 of 5 for B" || other.replayed {
		t.Errorf("another order: %+v", other)
	}
	if keyed := w.call("charge", "k", payment{"A", 5, "now"}); keyed.text != "charge 3 of 5 for A" || keyed.replayed {
		t.Errorf("with a key: %+v", keyed)
	}
	if keyed := w.call("charge", "k", payment{"A", 5, "now"}); keyed.text != "charge 3 of 5 for A" || !keyed.replayed {
		t.Errorf("with the key again: %+v", keyed)
	}
	reused := w.call("charge", "k", payment{"A", 6, "now"})
	if !reused.isError || reused.code != "key-reused" || reused.action != "new-key" {
		t.Errorf("the key with another amount: %+v", reused)
	}
	check.Equal(t, w.effects.Load(), 3, "the tool ran %d times")
}

// Restarting the server and the guard changes nothing, and another principal or server has its own records.
func TestARepeatAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testConfig)
	w.charge(nil)
	w.start()
	first := w.call("charge", "", chargeA)
	w.kill()
	<-w.ended
	w.start()
	if again := w.call("charge", "", chargeA); again.text != first.text || !again.replayed {
		t.Errorf("after a restart: %+v", again)
	}
	w.kill()
	<-w.ended
	w.config.Server = "other"
	w.start()
	if other := w.call("charge", "", chargeA); other.replayed {
		t.Errorf("behind another server: %+v", other)
	}
	w.kill()
	<-w.ended
	w.principal = "ada"
	w.start()
	if other := w.call("charge", "", chargeA); other.replayed {
		t.Errorf("of another principal: %+v", other)
	}
}

// What an operator has stored for an unknown outcome is the answer to a retry: a text, or a whole answer.
func TestWhatAPersonHasStored(t *testing.T) {
	t.Parallel()
	c := &call{message: &message{id: []byte("7")}}
	for stored, want := range map[string]string{
		`paid`:                                   `{"content":[{"type":"text","text":"paid"}],"isError":false,"_meta":{"replayed":true}}`,
		`{"charge":"ch_1"}`:                      `{"content":[{"type":"text","text":"{\"charge\":\"ch_1\"}"}],"isError":false,"_meta":{"replayed":true}}`,
		`{"error":"no"}`:                         `{"content":[{"type":"text","text":"{\"error\":\"no\"}"}],"isError":false,"_meta":{"replayed":true}}`,
		`{"result":{"content":[]}}`:              `{"content":[],"_meta":{"replayed":true}}`,
		`{"result":{"_meta":{"a":1},"x":2}}`:     `{"_meta":{"a":1,"replayed":true},"x":2}`,
		`{"result":{"_meta":null}}`:              `{"_meta":{"replayed":true}}`,
		`{"result":{"_meta":{"replayed":0}}}`:    `{"_meta":{"replayed":true}}`,
		`{"error":{"code":-1,"message":"m"}}`:    `{"code":-1,"message":"m","data":{"replayed":true}}`,
		`{"error":{"code":-1,"data":"no"}}`:      `{"code":-1,"data":"no"}`,
		`{"result":{"content":[]},"other":true}`: `{"content":[{"type":"text","text":"{\"result\":{\"content\":[]},\"other\":true}"}],"isError":false,"_meta":{"replayed":true}}`,
	} {
		member := "result"
		if strings.HasPrefix(stored, `{"error":{`) {
			member = "error"
		}
		check.Equal(t, string(c.replay([]byte(stored), false)), `{"jsonrpc":"2.0","id":7,"`+member+`":`+want+`}`,
			"%s: got %s", stored)
	}
	check.Contains(t, string(c.replay([]byte("no"), true)), `"isError":true`)
}

// Many concurrent equal calls run the tool once, and all get its result.
func TestEqualCallsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testConfig)
	begun, end := make(chan struct{}, 1), make(chan struct{})
	w.charge(func(context.Context, *mcp.CallToolRequest, payment) (*mcp.CallToolResult, any, error) {
		begun <- struct{}{}
		<-end
		return text("paid"), nil, nil
	})
	w.start()
	var group sync.WaitGroup
	var fresh atomic.Int32
	for range 20 {
		group.Go(func() {
			r := w.call("charge", "", chargeA)
			if !r.replayed {
				fresh.Add(1)
			}
			if r.text != "paid" || r.isError {
				t.Errorf("%+v", r)
			}
		})
	}
	<-begun
	close(end)
	group.Wait()
	if w.effects.Load() != 1 || fresh.Load() != 1 {
		t.Errorf("the tool ran %d times, %d results were no replays", w.effects.Load(), fresh.Load())
	}
}

// A server that ends in the middle of a call leaves an unknown outcome. The guard says so at once and after a restart,
// and never runs the tool again by itself.
func TestAServerThatEndsInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testConfig)
	begun := make(chan struct{}, 1)
	w.charge(func(ctx context.Context, _ *mcp.CallToolRequest, _ payment) (*mcp.CallToolResult, any, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return nil, nil, ctx.Err()
	})
	w.start()
	got := make(chan reply, 1)
	go func() { got <- w.call("charge", "", chargeA) }() // received below
	<-begun
	w.kill()
	r := <-got
	if !r.isError || r.code != "outcome-unknown" || r.action != "reconcile" {
		t.Errorf("the call that was cut off: %+v", r)
	}
	for _, want := range []string{"may have happened", "Call list_charges.", "seqledger key resolve --organization mcp",
		"--namespace payments/charge args:"} {
		check.Contains(t, r.text, want)
	}
	<-w.ended
	w.start()
	if r := w.call("charge", "", chargeA); r.code != "outcome-unknown" {
		t.Errorf("the repeat: %+v", r)
	}
	check.Equal(t, w.effects.Load(), 1, "the tool ran %d times")
}

// An error is a result by default; the configuration can change that.
func TestErrorsOfATool(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]struct {
		again   string // code, or replayed or fresh
		effects int32
	}{"store": {"replayed", 1}, "release": {"fresh", 2}, "unknown": {"outcome-unknown", 1}} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, strings.Replace(testConfig, "if-unknown", "errors: "+mode+", if-unknown", 1))
			w.charge(func(context.Context, *mcp.CallToolRequest, payment) (*mcp.CallToolResult, any, error) {
				return nil, nil, errors.New("the card was declined")
			})
			w.start()
			first, again := w.call("charge", "", chargeA), w.call("charge", "", chargeA)
			if !first.isError || first.replayed || first.text != "the card was declined" {
				t.Errorf("first %+v", first)
			}
			got := fmt.Sprint(again.code)
			switch {
			case again.code == nil && again.replayed:
				got = "replayed"
			case again.code == nil:
				got = "fresh"
			}
			if got != want.again || !again.isError || w.effects.Load() != want.effects {
				t.Errorf("again %+v; the tool ran %d times", again, w.effects.Load())
			}
		})
	}
}

// A question of the server is not a result: the client calls again with the answer, and that call runs.
func TestAQuestionIsNoResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testConfig)
	w.charge(func(_ context.Context, _ *mcp.CallToolRequest, _ payment) (*mcp.CallToolResult, any, error) {
		if w.effects.Load() == 1 {
			return nil, nil, &jsonrpc.Error{Code: codeElicitation, Message: "visit a page first"}
		}
		return text("paid"), nil, nil
	})
	w.start()
	if r := w.call("charge", "", chargeA); r.code != "rpc" || !strings.Contains(r.text, "visit a page") {
		t.Errorf("the question: %+v", r)
	}
	if r := w.call("charge", "", chargeA); r.text != "paid" || r.replayed {
		t.Errorf("the call after it: %+v", r)
	}
	isError, kind := readResult([]byte(`{"resultType":"input_required","inputRequests":{}}`))
	if isError || kind != question {
		t.Error("input_required is taken for a result")
	}
}

// The client is told that a long call is still running. The call goes on, and the retry gets its result.
func TestALongCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.Replace(testConfig, "if-unknown", "timeout: 1s, if-unknown", 1))
	end := make(chan struct{})
	w.charge(func(context.Context, *mcp.CallToolRequest, payment) (*mcp.CallToolResult, any, error) {
		<-end
		return text("paid"), nil, nil
	})
	w.start()
	if r := w.call("charge", "", chargeA); r.code != "in-flight" || r.action != "same-key" ||
		!strings.Contains(r.text, "with the same arguments") {
		t.Errorf("the long call: %+v", r)
	}
	close(end)
	if r := w.call("charge", "", chargeA); r.text != "paid" || !r.replayed {
		t.Errorf("the repeat: %+v", r)
	}
}

// A result that is too long to keep is delivered; its retry is told that it was not kept.
func TestALongResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testConfig)
	w.charge(func(context.Context, *mcp.CallToolRequest, payment) (*mcp.CallToolResult, any, error) {
		return text(strings.Repeat("x", 2<<20)), nil, nil
	})
	w.start()
	if r := w.call("charge", "", chargeA); len(r.text) != 2<<20 || r.isError {
		t.Errorf("%d bytes, %v", len(r.text), r.isError)
	}
	if r := w.call("charge", "", chargeA); r.code != "response-not-retained" || !r.isError || !r.replayed {
		t.Errorf("%+v", r)
	}
	check.Equal(t, w.effects.Load(), 1, "the tool ran %d times")
}

// A cancelled call that has begun goes on, and its result answers the retry.
func TestACancelledCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testConfig)
	begun, end := make(chan struct{}, 1), make(chan struct{})
	var cancelled atomic.Bool
	w.charge(func(ctx context.Context, _ *mcp.CallToolRequest, _ payment) (*mcp.CallToolResult, any, error) {
		begun <- struct{}{}
		<-end
		cancelled.Store(ctx.Err() != nil)
		return text("paid"), nil, nil
	})
	w.start()
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { // received below
		_, err := w.client.CallTool(ctx, &mcp.CallToolParams{Name: "charge", Arguments: chargeA})
		got <- err
	}()
	<-begun
	cancel()
	check.Is(t, <-got, context.Canceled)
	must.Do(t, w.client.Ping(context.Background(), nil)) // processed after the notification
	close(end)
	if r := w.call("charge", "", chargeA); r.text != "paid" || !r.replayed || cancelled.Load() {
		t.Errorf("%+v, the server saw a cancellation: %v", r, cancelled.Load())
	}
}

// Malformed calls are refused, and the server does not see them.
func TestBadCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.Replace(testConfig, "tools:", "tools:\n  pay: {key: required}\n  send:", 1))
	w.charge(nil)
	in, pipe := w.startGuard()
	out := bufio.NewReader(pipe)
	call := func(params string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":` + params + `}`
	}
	for line, want := range map[string]string{
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","method":"ping"}`: "duplicate",
		`{"jsonrpc":"2.0","id":7,"Method":"tools/call"}`:                 "case",
		`{"jsonrpc":"2.0"`: "no JSON-RPC message",
		`{} {}`:            "follows the JSON",
		`nonsense`:         "no JSON-RPC message",
		call(`{"name":"charge","Name":"x","arguments":{"order":"A"}}`):                         "case",
		call(`{"name":"charge","arguments":{"note":"A"}}`):                                     "/order is missing",
		call(`{"name":"charge","arguments":{"order":"A"}}`):                                    "/amount is missing",
		call(`{"name":"charge","arguments":{"order":null,"amount":5}}`):                        "/order is missing or empty",
		call(`{"name":"charge","arguments":{"order":" ","amount":5}}`):                         "/order is missing or empty",
		call(`{"name":"charge","arguments":{"order":{},"amount":5}}`):                          "/order is missing or empty",
		call(`{"name":"charge","arguments":{"order":"A","amount":1.000000000000000001}}`):      "/amount: the number",
		call(`{"name":"charge","arguments":[1]}`):                                              "/order is missing",
		call(`{"name":"charge","arguments":{"order":9007199254740993}}`):                       "send it as a string",
		call(`{"name":"charge","arguments":{"order":"A"},"_meta":{"` + MetaKey + `":5}}`):      "must be a string",
		call(`{"name":"charge","arguments":{"order":"A"},"_meta":{"` + MetaKey + `":"a b"}}`):  "visible ASCII",
		call(`{"name":"charge","arguments":{"order":"A"},"_meta":{"` + MetaKey + `":""}}`):     "visible ASCII",
		call(`{"name":"send","arguments":{"sum":1.000000000000000002}}`):                       "/sum: the number",
		call(`{"name":"pay","arguments":{}}`):                                                  "needs a key",
		call(`{"name":"charge","arguments":{"order":"` + strings.Repeat("x", MaxCall) + `"}}`): "at most 1 MiB",
	} {
		answer := raw(t, in, out, line)
		fault, _ := answer["error"].(map[string]any)
		if text, _ := fault["message"].(string); !strings.Contains(text, want) ||
			!strings.Contains(text, "nothing was done") {
			t.Errorf("%.100s: want %q, got %v", line, want, answer)
		}
	}
	batch := "[" + call(`{"name":"charge","arguments":{"order":"A","amount":5}}`) +
		`,{"jsonrpc":"2.0","method":"notifications/x"}]`
	go func() { _, _ = in.Write([]byte(batch + "\n")) }() // ends with the write
	if answer, err := out.ReadString('\n'); err != nil || !strings.Contains(answer, "one by one") ||
		strings.Count(answer, `"id"`) != 1 {
		t.Error(answer, err)
	}
	// A notification in the form of a call never runs, because its sender could not learn the outcome.
	go func() { // ends with the write
		_, _ = in.Write([]byte(`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"charge","arguments":{"order":"A","amount":5}}}` +
			"\nnonsense\n"))
	}()
	raw(t, in, out, "")
	if w.pipes.sent.Load() != 0 || w.effects.Load() != 0 {
		t.Errorf("the server got %d messages", w.pipes.sent.Load())
	}
}

// Beyond its limit a guard refuses guarded calls.
func TestCallsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testConfig)
	begun, end := make(chan struct{}, defaultMaxCalls), make(chan struct{})
	w.charge(func(context.Context, *mcp.CallToolRequest, payment) (*mcp.CallToolResult, any, error) {
		begun <- struct{}{}
		<-end
		return text("paid"), nil, nil
	})
	w.start()
	var group sync.WaitGroup
	for i := range defaultMaxCalls {
		group.Go(func() {
			check.Equal(t, w.call("charge", "", payment{Order: fmt.Sprint(i), Amount: 5}).text, "paid")
		})
	}
	for range defaultMaxCalls {
		<-begun
	}
	if r := w.call("charge", "", payment{Order: "one more", Amount: 5}); r.code != "quota" || r.action != "same-key" {
		t.Errorf("%+v", r)
	}
	close(end)
	group.Wait()
	check.Equal(t, w.effects.Load(), defaultMaxCalls, "the tool ran %d times")
}
