package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// TestAwait checks that an awaited condition may become true at any time, and that forbidden output, and the end of the
// client or of the case, end the wait with their own errors.
func TestAwait(t *testing.T) {
	t.Parallel()
	opened := func(b *books) func() bool { return func() bool { return b.opened != nil } }
	say := func(b *books, line string) { _, _ = b.Write([]byte(line + "\n")) }
	over := errors.New("the case took too long")
	for name, test := range map[string]struct {
		happens func(b *books, end func(error), exit func())
		says    string // no error if empty
	}{
		"it is said": {func(b *books, _ func(error), _ func()) { say(b, `{"event":"opened"}`) }, ""},
		"in pieces": {func(b *books, _ func(error), _ func()) {
			_, _ = b.Write([]byte(`{"event":`))
			say(b, `"opened"}`)
		}, ""},
		"said, and gone": {func(b *books, _ func(error), exit func()) {
			say(b, `{"event":"opened"}`)
			exit()
		}, ""},
		"gone": {func(_ *books, _ func(error), exit func()) { exit() }, "ended by itself before there is event opened"},
		"something else": {func(b *books, _ func(error), _ func()) { say(b, `{"event":"open"}`) },
			`said "{\"event\":\"open\"}"`},
		"too late": {func(_ *books, end func(error), _ func()) { end(over) }, "no event opened: " + over.Error()},
		"half a line": {func(b *books, _ func(error), exit func()) {
			_, _ = b.Write([]byte(`{"event":"opened"}`))
			exit()
		}, "ended by itself"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := booksOf(t, []string{"a"})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			process := make(chan struct{})
			done := make(chan error)
			go func() { done <- b.await(ctx, process, "event opened", opened(b)) }() // ends with what happens
			synctest.Wait()
			test.happens(b, cancel, func() { close(process) })
			err := <-done
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: want %q, got %v", name, test.says, err)
			}
		})
	}
}

// TestMissing checks that missing returns the writes without an outcome, in the order of submission, including those
// that a new process still has to report.
func TestMissing(t *testing.T) {
	t.Parallel()
	const done = `{"event":"outcome","id":"%s","outcome":"committed","sequence":"1"}`
	b := booksOf(t, []string{"c", "a", "b"}, fmt.Sprintf(done, "a"))
	if got := b.missing(); !slices.Equal(got, []string{"c", "b"}) {
		t.Errorf("missing are %v", got)
	}
	b.begin()
	_, _ = b.Write([]byte(`{"event":"opened","recovered":["a","b"]}` + "\n"))
	if got := b.missing(); !slices.Equal(got, []string{"c", "a", "b"}) {
		t.Errorf("the journal had a and b, and missing are %v", got)
	}
	_, _ = b.Write([]byte(fmt.Sprintf(done, "a") + "\n" + fmt.Sprintf(done, "b") + "\n"))
	if got := b.missing(); !slices.Equal(got, []string{"c"}) || !slices.Equal(b.noted, []string{"a", "b"}) {
		t.Errorf("missing are %v, noted %v", got, b.noted)
	}
	b.intend(command{ID: "a", Do: "submit"}) // again, because the application submits it anew
	if got := b.missing(); !slices.Equal(got, []string{"c", "a"}) {
		t.Errorf("a is wanted again, and missing are %v", got)
	}
}

// TestWhatAnApplicationWants checks outcomes, and the end of the client.
func TestWhatAnApplicationWants(t *testing.T) {
	t.Parallel()
	const refused = `{"event":"outcome","id":"a","outcome":"not_executed","code":"KEY_EXISTS","message":"it is there"}`
	b := &bed{books: booksOf(t, []string{"a", "b"}, refused)}
	if err := b.want(notExecuted, "a"); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"a", "b"} {
		if err := b.want(committed, id); err == nil || !strings.Contains(err.Error(), id+" must be committed") {
			t.Errorf("%s: %v", id, err)
		}
	}
	if err := b.want(committed, "a"); !strings.Contains(err.Error(), "KEY_EXISTS it is there") {
		t.Errorf("the refusal's reason is lost: %v", err)
	}
	if err := b.checkEnd(nil); err == nil || !strings.Contains(err.Error(), "goes on") {
		t.Errorf("a client that goes on: %v", err)
	}
	_, _ = b.books.Write([]byte(`{"event":"ended","code":"FENCED","message":"m","unsettled":["b"]}` + "\n"))
	if err := errors.Join(b.checkEnd(nil), b.checkEnd([]string{"OTHER", "FENCED"}), b.wantUnsettled("b")); err != nil {
		t.Error(err)
	}
	if err := b.checkEnd([]string{"OTHER"}); err == nil || !strings.Contains(err.Error(), `"FENCED" (m), want OTHER`) {
		t.Errorf("another reason: %v", err)
	}
	if err := b.wantUnsettled("a"); err == nil || !strings.Contains(err.Error(), "a was sent") {
		t.Errorf("a write that is not handed back: %v", err)
	}
	if err := b.notOpened(); err == nil || !strings.Contains(err.Error(), "did not open its stream: FENCED m") {
		t.Errorf("a client that has ended before: %v", err)
	}
}

// backend is a server that records the requests it receives and echoes them.
type backend struct {
	mu   sync.Mutex
	got  []string
	hook func(body string)
}

func (s *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.got = append(s.got, string(body))
	hook := s.hook
	s.mu.Unlock()
	if hook != nil {
		hook(string(body))
	}
	w.Header().Set("X-Answer", "yes")
	_, _ = io.WriteString(w, "answer to "+string(body))
}

func (s *backend) arrived() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// TestFaultsOfCalls checks that the proxy does to a call what the name of the fault says, as seen from both sides.
func TestFaultsOfCalls(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault              fault
		arrives, afterward int // how many, at once and after the release
		answer             string
		status             int
	}{
		"pass":   {fault{kind: pass}, 1, 1, "answer to x", 200},
		"drop":   {fault{kind: drop}, 0, 0, "", 0},
		"lose":   {fault{kind: lose}, 1, 1, "", 0},
		"hold":   {fault{kind: hold}, 0, 1, "", 0},
		"twice":  {fault{kind: twice}, 1, 2, "answer to x", 200},
		"answer": {fault{kind: answer, status: 503}, 0, 0, "<html>not the ledger</html>\n", 503},
		"mangle": {fault{kind: mangle}, 1, 1, "answe", 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := new(backend)
			server := httptest.NewServer(s)
			t.Cleanup(server.Close)
			p, err := startProxy(server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.close)
			var mu sync.Mutex
			var order []string
			note := func(what string) func() {
				return func() {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, fmt.Sprint(what, len(s.arrived())))
				}
			}
			test.fault.before, test.fault.after = note("before "), note("after ")
			p.setPlan(func(procedure string) fault {
				if procedure != "Write" {
					t.Errorf("the procedure is %q", procedure)
				}
				return test.fault
			})
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				"http://"+p.address+"/seqledger.v1.LedgerService/Write", strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			r.GetBody = nil // net/http must not retry it by itself
			status, text := 0, ""
			if answer, err := http.DefaultTransport.RoundTrip(r); err == nil {
				b, readErr := io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				status, text = answer.StatusCode, string(b)
				if (readErr != nil) != (test.fault.kind == mangle) {
					t.Errorf("the answer ends with %v", readErr)
				}
			}
			if status != test.status || !strings.HasPrefix(text, test.answer) || (text == "") != (test.answer == "") ||
				len(s.arrived()) != test.arrives {
				t.Errorf("%d %q, and %d arrived; want %d %q and %d", status, text, len(s.arrived()), test.status,
					test.answer, test.arrives)
			}
			want := []string{"before 0"}
			if test.arrives > 0 {
				want = append(want, "after 1")
			}
			mu.Lock()
			if !slices.Equal(order, want) {
				t.Errorf("%v, want %v", order, want)
			}
			mu.Unlock()
			n, err := p.release(t.Context())
			if err != nil || n != test.afterward-test.arrives || len(s.arrived()) != test.afterward || p.writes() != 1 {
				t.Errorf("released %d, %v; %d have arrived, want %d; %d writes were seen", n, err, len(s.arrived()),
					test.afterward, p.writes())
			}
			if n, err := p.release(t.Context()); n != 0 || err != nil {
				t.Errorf("a second release: %d, %v", n, err)
			}
		})
	}
}

// TestHeldMessagesKeepTheirOrder checks that held messages are sent in order, up to the first that fails, and that
// without a plan everything passes.
func TestHeldMessagesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	p, err := startProxy("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	var order []int
	broken := errors.New("broken")
	for i := range 4 {
		p.keep(func(context.Context) error {
			order = append(order, i)
			if i == 2 {
				return broken
			}
			return nil
		})
	}
	if n, err := p.release(t.Context()); !errors.Is(err, broken) || n != 4 || !slices.Equal(order, []int{0, 1, 2}) {
		t.Errorf("%d, %v, in the order %v", n, err, order)
	}
	r := httptest.NewRequest(http.MethodPost, "/seqledger.v1.LedgerService/GetEntity", http.NoBody)
	if f := p.decide(r); f.kind != pass || p.writes() != 0 {
		t.Errorf("without a plan: %+v, %d writes", f, p.writes())
	}
	for procedure, want := range map[string]bool{"Write": true, "WriteBatch": true, "WriteStream": true,
		"GetEntity": false, "Watch": false, "": false} {
		if isWrite(procedure) != want {
			t.Errorf("%q is a write: %v", procedure, !want)
		}
	}
	for kind, want := range map[string]bool{"application/connect+proto": true, "application/grpc": true,
		"application/grpc-web+proto": true, "application/proto": false, "application/json": false, "": false} {
		if isStream(kind) != want {
			t.Errorf("%q is a stream: %v", kind, !want)
		}
	}
}

// TestDriverCommands checks that a client under test reports invalid commands and exits, instead of panicking, which
// would look like the client's own mistake.
func TestDriverCommands(t *testing.T) {
	t.Parallel()
	for input, says := range map[string]string{
		"":                                    "",
		`{"do":"close"}`:                      "",
		"{":                                   "unexpected end",
		"[]":                                  "cannot unmarshal",
		`{"do":"jump"}`:                       `no such command "jump"`,
		`{"do":"resume"}`:                     "before open",
		`{"do":"acknowledge","id":"a"}`:       `"a" was never submitted`,
		`{"do":"open","server":"ftp://none"}`: "Options.Server",
	} {
		var out bytes.Buffer
		in, feed := io.Pipe()
		go func() { // ends when the driver has read it
			if input == "" {
				_ = feed.Close()
			}
			_, _ = io.WriteString(feed, input+"\n")
		}()
		err := Drive(t.Context(), in, &out)
		_ = feed.Close()
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: want %q, got %v", input, says, err)
		}
		if out.Len() > 0 && !json.Valid(out.Bytes()) {
			t.Errorf("%q: it said %q", input, out.String())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	in, feed := io.Pipe()
	defer func() { _ = feed.Close() }()
	if err := Drive(ctx, in, io.Discard); err != nil {
		t.Errorf("a driver whose harness is gone: %v", err)
	}
}
