package guard

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// taskServer is an Upstream that runs every call as a task if it is asked to, or if always is set.
type taskServer struct {
	always  bool
	fault   string // the error that answers each call; empty for none
	tasks   int
	answers chan string
}

// Run implements Upstream.
func (s *taskServer) Run(receive func(line []byte, rest *bufio.Reader) error) error {
	for line := range s.answers {
		_ = receive([]byte(line), nil)
	}
	return nil
}

// Send implements Upstream.
func (s *taskServer) Send(m *message) error {
	result := `{"content":[{"type":"text","text":"paid"}]}`
	switch {
	case m.method == "tools/list":
		result = `{"tools":[{"name":"charge","execution":{"taskSupport":"optional","x":1}},` +
			`{"name":"look","execution":{"taskSupport":"optional"}},{"name":"send","execution":{"taskSupport":"required"}}]}`
	case s.always || strings.Contains(string(m.params), `"task"`):
		s.tasks++
		result = fmt.Sprintf(`{"task":{"taskId":"t%d","status":"working"}}`, s.tasks)
	}
	if s.fault != "" {
		s.answers <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":%s}`, m.id, s.fault)
		return nil
	}
	s.answers <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.id, result)
	return nil
}

// Call implements Upstream.
func (s *taskServer) Call(m *message) error { return s.Send(m) }

// CloseSend implements Upstream.
func (s *taskServer) CloseSend() error {
	close(s.answers)
	return nil
}

// startTasks starts a guard before a taskServer, and returns a function that sends a message and returns the answer.
func startTasks(t *testing.T, s *taskServer, logged io.Writer) func(line string) string {
	t.Helper()
	c := must.Get(parseConfig("guard.yaml", []byte("server: payments\nwait: 0s\ntools: {charge: {}, send: {}}\n"),
		Times{}))(t)
	s.answers = make(chan string, 8)
	in, toGuard := io.Pipe()
	fromGuard, out := io.Pipe()
	logger := slog.New(slog.NewTextHandler(logged, nil))
	g := New(Options{Config: c, Upstream: s, Store: idempotency.Memory(), Logger: logger})
	ended := make(chan struct{})
	go func() { // ends with its input, which the cleanup closes and waits for
		defer close(ended)
		_ = g.Run(t.Context(), in, out)
	}()
	t.Cleanup(func() {
		_ = toGuard.Close()
		<-ended
	})
	lines := bufio.NewReader(fromGuard)
	return func(line string) string {
		must.Get(io.WriteString(toGuard, line+"\n"))(t)
		answer := must.Get(lines.ReadString('\n'))(t)
		return answer
	}
}

func toolCall(tool, more string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":{"o":"A"}` + more + `}}`
}

// A guarded tool is not called as a task: the handle of a task is no result, and a repeat could not get the task. Tools
// without a guard are.
func TestGuardedToolsAreNoTasks(t *testing.T) {
	t.Parallel()
	s, logged := new(taskServer), new(lockedLog)
	send := startTasks(t, s, logged)
	if answer := send(toolCall("charge", `,"task":{"ttl":60000}`)); !strings.Contains(answer, "-32601") ||
		!strings.Contains(answer, "nothing was done") || s.tasks != 0 {
		t.Errorf("%d tasks: %s", s.tasks, answer)
	}
	for range 2 {
		if answer := send(toolCall("charge", "")); !strings.Contains(answer, "paid") || s.tasks != 0 {
			t.Errorf("%d tasks: %s", s.tasks, answer)
		}
	}
	check.Contains(t, send(toolCall("look", `,"task":{}`)), "t1")
	listed := send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	for _, want := range []string{
		`"name":"charge","execution":{"taskSupport":"forbidden","x":1}`, `"name":"look","execution":{"taskSupport":"optional"}`,
	} {
		check.Contains(t, listed, want, "the list of tools")
	}
	check.Contains(t, logged.String(), "only runs as a task",
		"the log does not tell of the tool that is only a task: %s", logged)
}

// A server that answers with a task of its own accord has not given a result: its answer is passed on once, and a
// repeat gets neither the handle nor another run.
func TestTaskHandlesAreNotStored(t *testing.T) {
	t.Parallel()
	s := &taskServer{always: true}
	send := startTasks(t, s, io.Discard)
	check.Contains(t, send(toolCall("charge", "")), `"taskId":"t1"`)
	if answer := send(toolCall("charge", "")); s.tasks != 1 || strings.Contains(answer, "taskId") ||
		!strings.Contains(answer, "outcome-unknown") {
		t.Errorf("%d tasks: %s", s.tasks, answer)
	}
}

// An answer that is not final is not stored, and a result may have any member.
func TestKindsOfResults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]resultKind{
		`{"content":[]}`:                         final,
		`{"content":[],"task":{"taskId":"t"}}`:   final,
		`{"resultType":"complete","content":[]}`: final,
		`{"resultType":"input_required"}`:        question,
		`{"task":{"taskId":"t"}}`:                unfinished,
		`{"resultType":"task","taskId":"t"}`:     unfinished,
	} {
		if _, kind := readResult([]byte(text)); kind != want {
			t.Errorf("%s is %d, want %d", text, kind, want)
		}
	}
}

// A key of a call whose tool is not guarded has no effect, and the result says so. Other answers pass unchanged.
func TestIgnoredKeysAreTold(t *testing.T) {
	t.Parallel()
	send := startTasks(t, new(taskServer), io.Discard)
	for tool, ignored := range map[string]bool{"look": true, "charge": false} {
		for range 2 {
			answer := send(toolCall(tool, `,"_meta":{"`+MetaKey+`":"k"}`))
			if !strings.Contains(answer, "paid") || strings.Contains(answer, `"`+metaIgnored+`":true`) != ignored {
				t.Errorf("%s: %s", tool, answer)
			}
		}
		if answer := send(toolCall(tool, "")); strings.Contains(answer, metaIgnored) {
			t.Errorf("%s without a key: %s", tool, answer)
		}
	}
	for fault, want := range map[string]string{
		`{"code":1,"message":"no"}`:                `"message":"no","data":{"` + metaIgnored + `":true}}`,
		`{"code":1,"message":"no","data":{"a":1}}`: `"data":{"a":1,"` + metaIgnored + `":true}}`,
		`{"code":1,"message":"no","data":"text"}`:  `"data":"text"}`,
	} {
		send := startTasks(t, &taskServer{fault: fault}, io.Discard)
		check.Contains(t, send(toolCall("look", `,"_meta":{"`+MetaKey+`":"k"}`)), want, "%s", fault)
	}
}

// Calls that get no answer do not keep the answers to later ones from being marked.
func TestIgnoredKeysAreBounded(t *testing.T) {
	t.Parallel()
	g := New(Options{Config: new(Config), Upstream: new(taskServer), Store: idempotency.Memory()})
	for id := range maxIgnored + 1 {
		g.ignoreKey(&message{id: jsontext.Value(strconv.Itoa(id))})
	}
	for id, want := range map[int]bool{0: false, 1: true, maxIgnored: true} {
		answer := must.Get(parseMessage(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"result":{}}`, id)))(t)
		check.Equal(t, strings.Contains(string(g.tellIgnored(answer, answer.raw)), metaIgnored), want,
			"the answer to call %d is marked: %t", id)
	}
	g.ignoreKey(&message{id: jsontext.Value(strings.Repeat("1", maxIgnoredID+1))})
	check.Equal(t, len(g.ignored), maxIgnored-2, "%d ids are kept")
}
