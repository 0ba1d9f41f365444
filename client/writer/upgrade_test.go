package writer_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestAnUpgradeThatIsSwallowed: something before the server keeps a question that it does
// not know, for ever. The stream goes the ordinary way after a second, and no later
// reconnect waits for that again.
func TestAnUpgradeThatIsSwallowed(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"without an answer": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"with 501":          func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotImplemented) },
		"with a page that does not end": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := new(fakeServer)
			b := balanced(t, s)
			var questions atomic.Int32
			pass := b.pass
			b.pass = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Upgrade") == "" {
					pass.ServeHTTP(w, r)
					return
				}
				questions.Add(1)
				answer(w, r)
			})
			w := newWriter(t, dial(t, s), "till")
			for n := range uint64(5) {
				wantCommitted(t, burst(t, w, payload("a"))[0], n+1)
				b.server.CloseClientConnections()
			}
			check.Equal(t, questions.Load(), 1, "the question was asked %d times")
		})
	}
}

// TestAnUpgradeRefusedForTheMoment is asked for again at the next reconnect: nothing is
// known about the server by a 503.
func TestAnUpgradeRefusedForTheMoment(t *testing.T) {
	t.Parallel()
	s := new(fakeServer)
	b := balanced(t, s)
	b.only = "/WriteStream"
	w := newWriter(t, dial(t, s), "till")
	b.status.Store(http.StatusServiceUnavailable)
	p := burst(t, w, payload("a"))[0]
	eventually(t, "several attempts", func() bool { return b.turnedAway.Load() > 3 })
	// From here on the server itself answers.
	asked := make(chan struct{}, 100)
	pass := b.pass
	b.pass = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "websocket" {
			asked <- struct{}{}
		}
		pass.ServeHTTP(w, r)
	})
	b.status.Store(0)
	wantCommitted(t, p, 1)
	if len(asked) == 0 {
		t.Error("no connection was asked for any more")
	}
}

// TestHTTP2OnRequest: neither an upgrade nor an HTTP/1.1 call is tried.
func TestHTTP2OnRequest(t *testing.T) {
	t.Parallel()
	s := new(fakeServer)
	b := balanced(t, s)
	pass := b.pass
	b.pass = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("%s came over %s", r.URL.Path, r.Proto)
		}
		pass.ServeHTTP(w, r)
	})
	c := dial(t, s, func(o *client.Options) { o.HTTP2 = true })
	must.Get(newWriter(t, c, "till").Write(t.Context(), payload("a")))(t)
	must.Get(c.GetClientState(t.Context(),
		&seqledgerv1.GetClientStateRequest{Scope: org, ClientId: "till"}))(t)
}

// TestThroughAProxy: a reverse proxy that knows WebSocket passes it on. A connection that it
// breaks is opened again.
func TestThroughAProxy(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	front := httptest.NewServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: s.address}))
	t.Cleanup(front.Close)
	s.address = front.Listener.Addr().String()
	w := newWriter(t, dial(t, s), "till")
	for n := range uint64(3) {
		wantCommitted(t, burst(t, w, payload("a"))[0], n+1)
		s.mu.Lock()
		if !s.upgraded {
			t.Error("the stream had no upgraded connection")
		}
		s.mu.Unlock()
		front.CloseClientConnections()
	}
}
