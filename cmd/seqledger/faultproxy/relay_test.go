package faultproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// envelope returns a message of a stream.
func envelope(text string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...)
}

// serveStream answers each message of a stream at once.
func (s *backend) serveStream(w http.ResponseWriter, r *http.Request) {
	for {
		e, err := ReadEnvelope(r.Body)
		if err != nil {
			return
		}
		text := string(e[HeaderBytes:])
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
func streamThrough(t *testing.T, p *Proxy) (answers []string, end error) {
	t.Helper()
	transport := NewTransport(Protocols(false, true))
	t.Cleanup(transport.CloseIdleConnections)
	body, feed := io.Pipe()
	defer func() { _ = feed.Close() }()
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://"+p.Address+"/seqledger.v1.LedgerService/WriteStream", body))(t)
	r.Header.Set("Content-Type", "application/connect+proto")
	go func() { _, _ = feed.Write(envelope("a")) }() // ends when it is sent, or with feed
	response := must.Get(transport.RoundTrip(r))(t)
	defer func() { _ = response.Body.Close() }()
	for {
		e, err := ReadEnvelope(response.Body)
		if err != nil {
			return answers, err
		}
		answers = append(answers, string(e[HeaderBytes:]))
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
		kind                Kind
		arrives, afterwards string // at once, and after the release
		answers             int
	}{
		"pass":   {Pass, "ab", "ab", 2},
		"drop":   {Drop, "a", "a", 1},
		"lose":   {Lose, "ab", "ab", 1},
		"hold":   {Hold, "a", "ab", 1},
		"twice":  {Twice, "ab", "abb", 2},
		"answer": {Answer, "a", "a", 1},
		"mangle": {Mangle, "ab", "ab", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := new(backend)
			server := httptest.NewUnstartedServer(http.HandlerFunc(s.serveStream))
			server.Config.Protocols = Protocols(false, true)
			server.Start()
			t.Cleanup(server.Close)
			messages, before, after := 0, -1, -1
			p := startProxy(t, server.Listener.Addr().String(), func(*Message) Fault {
				if messages++; messages == 1 {
					return Fault{}
				}
				return Fault{Kind: test.kind, Before: func() { before = len(s.arrived()) },
					After: func() { after = len(s.arrived()) }}
			})
			answers, end := streamThrough(t, p)
			if want := []string{"answer to a", "answer to b"}[:test.answers]; !slices.Equal(answers, want) ||
				errors.Is(end, io.EOF) != (test.answers == 2) {
				t.Errorf("the answers are %q and end with %v, want %q", answers, end, want)
			}
			p.front.Close() // waits for the stream
			check.Equal(t, strings.Join(s.arrived(), ""), test.arrives, "%q has arrived")
			answered := test.kind == Lose || test.kind == Mangle
			if before != 1 || answered && after != 2 || !answered && after != -1 {
				t.Errorf("before it %d had arrived, and behind it %d", before, after)
			}
			n, err := p.Release(t.Context())
			if got := strings.Join(s.arrived(), ""); err != nil || n != len(test.afterwards)-len(test.arrives) ||
				got != test.afterwards || messages != 2 {
				t.Errorf("released %d, %v: %q has arrived, want %q; %d messages were seen", n, err, got,
					test.afterwards, messages)
			}
		})
	}
}

// TestACopyIsBehindItsMessage checks that a copy is kept for a Release only once the server has answered the message:
// otherwise it could be the one that commits.
func TestACopyIsBehindItsMessage(t *testing.T) {
	t.Parallel()
	s := &stream{proxy: new(Proxy)}
	for _, step := range []struct{ sends, results, kept int }{{2, 0, 0}, {1, 1, 0}, {0, 1, 1}, {0, math.MaxInt, 2}} {
		if step.sends > 0 {
			s.sends(step.sends)
			s.copy(func(context.Context) error { return nil })
		}
		if s.results(step.results); len(s.proxy.held) != step.kept {
			t.Errorf("%d of %d copies are kept, want %d", len(s.proxy.held), len(s.copies), step.kept)
		}
	}
}
