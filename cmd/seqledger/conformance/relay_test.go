package conformance

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
)

// envelope returns a message of a stream.
func envelope(text string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...)
}

// serveStream answers each message of a stream at once.
func (s *backend) serveStream(w http.ResponseWriter, r *http.Request) {
	for {
		e, err := faultproxy.ReadEnvelope(r.Body)
		if err != nil {
			return
		}
		text := string(e[faultproxy.HeaderBytes:])
		s.mu.Lock()
		s.got = append(s.got, text)
		s.mu.Unlock()
		if _, err := w.Write(envelope("answer to " + text)); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
	}
}

// streamThrough opens a stream to a backend through a proxy, which applies a fault to the second message. It returns
// the answers to the two messages, and how the answers ended.
func streamThrough(t *testing.T, p *proxy) (answers []string, end error) {
	t.Helper()
	transport := faultproxy.NewTransport(faultproxy.Protocols(false, true))
	t.Cleanup(transport.CloseIdleConnections)
	body, feed := io.Pipe()
	defer func() { _ = feed.Close() }()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://"+p.address+"/seqledger.v1.LedgerService/WriteStream", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/connect+proto")
	go func() { _, _ = feed.Write(envelope("a")) }() // ends when it is sent, or with feed
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	for {
		e, err := faultproxy.ReadEnvelope(response.Body)
		if err != nil {
			return answers, err
		}
		answers = append(answers, string(e[faultproxy.HeaderBytes:]))
		if len(answers) == 1 {
			_, _ = feed.Write(envelope("b")) // an error shows in the answers
		} else {
			_ = feed.Close()
		}
	}
}

// TestFaultsOfStreams checks that the proxy does to a message of a stream what the name of the fault says, as seen from
// both sides.
func TestFaultsOfStreams(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind                kind
		arrives, afterwards string // at once, and after the release
		answers             int
	}{
		"pass":   {pass, "ab", "ab", 2},
		"drop":   {drop, "a", "a", 1},
		"lose":   {lose, "ab", "ab", 1},
		"hold":   {hold, "a", "ab", 1},
		"twice":  {twice, "ab", "abb", 2},
		"answer": {answer, "a", "a", 1},
		"mangle": {mangle, "ab", "ab", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := new(backend)
			server := httptest.NewUnstartedServer(http.HandlerFunc(s.serveStream))
			server.Config.Protocols = faultproxy.Protocols(false, true)
			server.Start()
			t.Cleanup(server.Close)
			p, err := startProxy(server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.close)
			messages, before, after := 0, -1, -1
			p.setPlan(func(string) fault {
				if messages++; messages == 1 {
					return fault{}
				}
				return fault{kind: test.kind, before: func() { before = len(s.arrived()) },
					after: func() { after = len(s.arrived()) }}
			})
			answers, end := streamThrough(t, p)
			if want := []string{"answer to a", "answer to b"}[:test.answers]; !slices.Equal(answers, want) ||
				errors.Is(end, io.EOF) != (test.answers == 2) {
				t.Errorf("the answers are %q and end with %v, want %q", answers, end, want)
			}
			p.front.Close() // waits for the stream
			if got := strings.Join(s.arrived(), ""); got != test.arrives {
				t.Errorf("%q has arrived, want %q", got, test.arrives)
			}
			answered := test.kind == lose || test.kind == mangle
			if before != 1 || answered && after != 2 || !answered && after != -1 {
				t.Errorf("before it %d had arrived, and behind it %d", before, after)
			}
			n, err := p.release(t.Context())
			if got := strings.Join(s.arrived(), ""); err != nil || n != len(test.afterwards)-len(test.arrives) ||
				got != test.afterwards || p.writes() != 2 {
				t.Errorf("released %d, %v: %q has arrived, want %q; %d writes were seen", n, err, got, test.afterwards,
					p.writes())
			}
		})
	}
}

// TestAStreamToNoServer checks that such a stream also ends for the client, and that nothing waits for it.
func TestAStreamToNoServer(t *testing.T) {
	t.Parallel()
	p, err := startProxy("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	transport := faultproxy.NewTransport(faultproxy.Protocols(false, true))
	t.Cleanup(transport.CloseIdleConnections)
	body, feed := io.Pipe()
	defer func() { _ = feed.Close() }()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.address+"/x/WriteStream", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/grpc")
	if response, err := transport.RoundTrip(r); err == nil {
		_ = response.Body.Close()
		t.Errorf("a server that is not there answers %s", response.Status)
	}
}

// TestCasesHaveNames checks that a case's name is unique, because it names the case's directory and row, and that each
// case has a duty, which is shown for a client that fails.
func TestCasesHaveNames(t *testing.T) {
	t.Parallel()
	form, seen := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`), map[string]bool{}
	for _, c := range Cases() {
		if !form.MatchString(c.Name) || filepath.Base(c.Name) != c.Name || seen[c.Name] || c.Duty == "" {
			t.Errorf("%+v", c)
		}
		seen[c.Name] = true
	}
	if len(seen) != len(cases) || len(seen) == 0 {
		t.Errorf("%d of %d cases are listed", len(seen), len(cases))
	}
}

// TestRunsThatCannotBegin checks that a failure that is not the client's fault is an error of the run, and not a
// result.
func TestRunsThatCannotBegin(t *testing.T) {
	t.Parallel()
	first := Cases()[0].Name
	only := regexp.MustCompile("^" + regexp.QuoteMeta(first) + "$")
	missing := filepath.Join(t.TempDir(), "none")
	tell := func(r Result) { t.Errorf("a result: %+v", r) }
	report, err := Run(t.Context(), Options{Program: missing, Command: []string{missing}, Only: only, Progress: tell})
	if report != nil || err == nil || !strings.Contains(err.Error(), "case "+first) ||
		!strings.Contains(err.Error(), missing) {
		t.Errorf("a server that does not start: %+v, %v", report, err)
	}
	stop := errors.New("the user has had enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, err := Run(ctx, Options{Program: missing, Only: only, Progress: tell}); !errors.Is(err, stop) {
		t.Errorf("a run that was ended: %v", err)
	}
	report, err = Run(t.Context(), Options{Program: missing, Only: regexp.MustCompile("^$"), Seed: 7})
	if err != nil || report.Seed != 7 || len(report.Results) != 0 || report.Failed() != 0 || report.Dir != "" {
		t.Errorf("a run of no case: %+v, %v", report, err)
	}
	some := Report{Results: []Result{{}, {Problem: "it lies"}, {}, {Problem: "it is silent"}}}
	if some.Failed() != 2 {
		t.Errorf("%d of 2 failures are counted", some.Failed())
	}
}

// TestBooksCompareLikeAModel checks, for everything that a client can report about two writes and everything that a
// ledger can have, that the books complain exactly when the two contradict each other.
func TestBooksCompareLikeAModel(t *testing.T) {
	t.Parallel()
	outcomes := []string{"", committed, notExecuted, unknown, known}
	for said := range len(outcomes) * len(outcomes) {
		for has := range 9 {
			var lines []string
			var ledger []found
			wrong := false
			for i, id := range []string{"a", "b"} {
				outcome, times := outcomes[said%len(outcomes)], has%3
				if i == 1 {
					outcome, times = outcomes[said/len(outcomes)], has/3
				}
				if outcome != "" {
					lines = append(lines, fmt.Sprintf(`{"event":"outcome","id":%q,"outcome":%q,"sequence":"%d"}`, id,
						outcome, 10*i+1))
				}
				for k := range times {
					ledger = append(ledger, found{id, uint64(10*i + 1 + k), fmt.Sprint(id, k)})
				}
				wrong = wrong || times > 1 || times == 1 && outcome == notExecuted ||
					times == 0 && (outcome == committed || outcome == known)
			}
			if err := booksOf(t, []string{"a", "b"}, lines...).compare(ledger); (err != nil) != wrong {
				t.Errorf("said %q, in the ledger %v: %v", lines, ledger, err)
			}
		}
	}
}
