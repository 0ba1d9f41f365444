package faultproxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// startProxy starts a proxy that the test closes.
func startProxy(t *testing.T, backend string, plan func(m *Message) Fault) *Proxy {
	t.Helper()
	p := must.Get(Start(backend, Options{Plan: plan}))(t)
	t.Cleanup(p.Close)
	return p
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
		fault              Fault
		arrives, afterward int // how many, at once and after the release
		answer             string
		status             int
	}{
		"pass":   {Fault{Kind: Pass}, 1, 1, "answer to x", 200},
		"drop":   {Fault{Kind: Drop}, 0, 0, "", 0},
		"lose":   {Fault{Kind: Lose}, 1, 1, "", 0},
		"hold":   {Fault{Kind: Hold}, 0, 1, "", 0},
		"twice":  {Fault{Kind: Twice}, 1, 2, "answer to x", 200},
		"answer": {Fault{Kind: Answer, Status: 503}, 0, 0, "<html>not the ledger</html>\n", 503},
		"mangle": {Fault{Kind: Mangle}, 1, 1, "answe", 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := new(backend)
			server := httptest.NewServer(s)
			t.Cleanup(server.Close)
			var mu sync.Mutex
			var order []string
			note := func(what string) func() {
				return func() {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, fmt.Sprint(what, len(s.arrived())))
				}
			}
			test.fault.Before, test.fault.After = note("before "), note("after ")
			p := startProxy(t, server.Listener.Addr().String(), func(m *Message) Fault {
				check.Equal(t, m.Procedure, "Write", "the procedure is %q")
				return test.fault
			})
			r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost,
				"http://"+p.Address+"/seqledger.v1.LedgerService/Write", strings.NewReader("x")))(t)
			r.GetBody = nil // net/http must not retry it by itself
			status, text := 0, ""
			if answer, err := http.DefaultTransport.RoundTrip(r); err == nil {
				b, readErr := io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				status, text = answer.StatusCode, string(b)
				if (readErr != nil) != (test.fault.Kind == Mangle) {
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
			check.EqualSlices(t, order, want)
			mu.Unlock()
			n, err := p.Release(t.Context())
			if err != nil || n != test.afterward-test.arrives || len(s.arrived()) != test.afterward {
				t.Errorf("released %d, %v; %d have arrived, want %d", n, err, len(s.arrived()), test.afterward)
			}
			if n, err := p.Release(t.Context()); n != 0 || err != nil {
				t.Errorf("a second release: %d, %v", n, err)
			}
		})
	}
}
