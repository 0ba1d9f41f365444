package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/upgrade"
	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// fakeNodes is a cluster whose leader the test sets.
type fakeNodes struct {
	mu      sync.Mutex
	leader  cluster.Leader
	changed chan struct{}
	dialled func() // called once, after a failed call
	// transport sends the calls; nil means the default transport.
	transport http.RoundTripper
}

func (n *fakeNodes) Leader() (cluster.Leader, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leader, n.changed
}

func (n *fakeNodes) PeerTransport() http.RoundTripper { return n }

// RoundTrip implements http.RoundTripper.
func (n *fakeNodes) RoundTrip(q *http.Request) (*http.Response, error) {
	answer, err := cmp.Or[http.RoundTripper](n.transport, http.DefaultTransport).RoundTrip(q)
	n.mu.Lock()
	then := n.dialled
	n.dialled = nil
	n.mu.Unlock()
	if err != nil && then != nil {
		then()
	}
	return answer, err
}

func (n *fakeNodes) elect(l cluster.Leader) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leader = l
	close(n.changed)
	n.changed = make(chan struct{})
}

// routed is a node that does not lead.
type routed struct {
	*fakeNodes

	server *Server
	mux    *http.ServeMux
	url    string
	local  chan string // the bodies of the calls that the node answered itself
}

func startRouted(t *testing.T) *routed {
	t.Helper()
	r := &routed{fakeNodes: &fakeNodes{changed: make(chan struct{})}, local: make(chan string, 10)}
	s := &Server{options: Options{Logger: slog.New(slog.DiscardHandler)}, stall: time.Minute, late: time.Minute,
		pingEvery: time.Minute}
	s.draining, s.startDrain = context.WithCancel(t.Context())
	s.closed, s.close = context.WithCancel(t.Context())
	r.server = s
	here := http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		b, err := io.ReadAll(q.Body)
		r.local <- fmt.Sprint(string(b), err)
	})
	s.router = newRouter(s, r.fakeNodes)
	r.mux = http.NewServeMux()
	r.mux.Handle(seqledgerv1connect.LedgerServiceWriteProcedure, s.byLeader(here))
	r.mux.Handle(seqledgerv1connect.LedgerServiceWriteStreamProcedure, s.upgradable(s.streamByLeader(here)))
	r.mux.Handle("/", here)
	hs := httptest.NewServer(withCall(false, r.mux))
	t.Cleanup(hs.Close)
	t.Cleanup(s.close)
	r.url = hs.URL
	return r
}

// call posts a body to a procedure and returns the response.
func (r *routed) call(t *testing.T, procedure, body string) (status int, header http.Header, answer string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	q := must.Get(http.NewRequestWithContext(ctx, http.MethodPost, r.url+procedure, strings.NewReader(body)))(t)
	q.Host = "ledger.example.com"
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Authorization", "Bearer key")
	q.Header.Set(clientHeader, "192.0.2.1:1") // forged
	response := must.Get(http.DefaultClient.Do(q))(t)
	defer func() { _ = response.Body.Close() }()
	b := must.Get(io.ReadAll(response.Body))(t)
	return response.StatusCode, response.Header, string(b)
}

func (r *routed) write(t *testing.T) (status int, header http.Header, answer string) {
	t.Helper()
	return r.call(t, seqledgerv1connect.LedgerServiceWriteProcedure, "a write")
}

// leads returns a node with a handler that can be elected.
func leads(t *testing.T, id uint64, h http.HandlerFunc) cluster.Leader {
	t.Helper()
	hs := httptest.NewServer(h)
	t.Cleanup(hs.Close)
	t.Cleanup(hs.CloseClientConnections) // before Close, which waits for the calls
	return cluster.Leader{ID: id, Term: id, Peer: strings.TrimPrefix(hs.URL, "http://"), Client: fmt.Sprint("node", id)}
}

// dead returns a node at whose address nothing listens.
func dead(t *testing.T, id uint64) cluster.Leader {
	t.Helper()
	return cluster.Leader{ID: id, Term: id, Peer: freeport.Unreachable(t)}
}

// accepts is the handler of a leader that responds with what it received.
func accepts(w http.ResponseWriter, q *http.Request) {
	b, _ := io.ReadAll(q.Body)
	fmt.Fprintf(w, "got %s for %s from %v", b, q.Host, q.Header["Authorization"])
}

func wantUnknown(t *testing.T, when string, status int, answer string) {
	t.Helper()
	var e struct {
		Code    string
		Details []struct{ Debug struct{ Code string } }
	}
	if err := json.Unmarshal([]byte(answer), &e); err != nil || len(e.Details) != 1 {
		t.Fatalf("%s: got %d %s, want an error in the caller's protocol: %v", when, status, answer, err)
	}
	if status != http.StatusServiceUnavailable || e.Code != "unavailable" ||
		e.Details[0].Debug.Code != "WRITE_ERROR_CODE_OUTCOME_UNKNOWN" {
		t.Errorf("%s: got %d %s, want OUTCOME_UNKNOWN", when, status, answer)
	}
}

// The leader receives a call as the caller sent it, with the caller's address. The caller learns the leader's address.
func TestForwardedCallIsAsItWasSent(t *testing.T) {
	t.Parallel()
	r := startRouted(t)
	client := make(chan string, 1)
	r.elect(leads(t, 2, func(w http.ResponseWriter, q *http.Request) {
		client <- q.Header.Get(clientHeader)
		accepts(w, q)
	}))
	status, header, answer := r.write(t)
	if want := "got a write for ledger.example.com from [Bearer key]"; status != 200 || answer != want {
		t.Errorf("got %d %s, want %s", status, answer, want)
	}
	if from := <-client; !strings.HasPrefix(from, "127.0.0.1:") {
		t.Errorf("the leader takes %q for the caller", from)
	}
	if header.Get(message.LeaderHeader) != "node2" {
		t.Errorf("the caller is told %v", header)
	}
	if _, _, _ = r.call(t, "/a/read", "x"); <-r.local != "x<nil>" {
		t.Error("what changes nothing must stay here")
	}
}

// A leader that cannot be reached has received nothing, so the call goes to the next leader and the caller does not
// notice.
func TestUnsentCallGoesToTheNextLeader(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(*testing.T) cluster.Leader{
		"another node": func(t *testing.T) cluster.Leader { return leads(t, 3, accepts) },
		"this node":    func(*testing.T) cluster.Leader { return cluster.Leader{ID: 1, Term: 9, Self: true} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRouted(t)
			r.elect(dead(t, 2))
			then := next(t)
			r.dialled = func() {
				r.elect(cluster.Leader{Term: 3}) // an election
				r.elect(then)
			}
			status, _, answer := r.write(t)
			if then.Self {
				check.Equal(t, <-r.local, "a write<nil>", "this node got %q")
			} else if !strings.HasPrefix(answer, "got a write") {
				t.Errorf("got %d %s", status, answer)
			}
		})
	}
}

// A node that cannot be reached may come back in the same term.
func TestUnsentCallIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := startRouted(t)
	address := must.Get(freeport.Address())(t)
	r.elect(cluster.Leader{ID: 2, Term: 2, Peer: address})
	answered := make(chan string, 1)
	go func() { // ends with the response
		_, _, answer := r.write(t)
		answered <- answer
	}()
	l := must.Get(freeport.Listen(t.Context(), address))(t)
	hs := &http.Server{Handler: http.HandlerFunc(accepts), ReadHeaderTimeout: time.Minute}
	go func() { _ = hs.Serve(l) }() // ends with Close
	defer func() { _ = hs.Close() }()
	if answer := <-answered; !strings.HasPrefix(answer, "got a write") {
		t.Error(answer)
	}
}

// Without a leader the node itself refuses the call, and has its whole body.
func TestNoLeaderIsRefusedHere(t *testing.T) {
	t.Parallel()
	for name, leader := range map[string]cluster.Leader{
		"none is known": {Term: 5}, "it is not there": dead(t, 2),
	} {
		r := startRouted(t)
		r.server.router.patience = 50 * time.Millisecond
		r.elect(leader)
		r.write(t)
		check.Equal(t, <-r.local, "a write<nil>", "%s: this node got %q", name)
	}
	r := startRouted(t)
	r.elect(leads(t, 2, accepts))
	r.server.startDrain()
	r.write(t)
	check.Equal(t, <-r.local, "a write<nil>", "draining, this node got %q")
}

// A leader that has received a call and then disappears may have executed it. The call is not sent again from here.
func TestBrokenForwardIsOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	for name, goes := range map[string]func(r *routed){
		"connection broken": func(*routed) { panic(http.ErrAbortHandler) },
		"leader replaced": func(r *routed) {
			r.elect(leads(t, 3, func(http.ResponseWriter, *http.Request) { t.Error("it was sent again") }))
			select { // the old leader hangs
			case <-r.server.closed.Done():
			case <-t.Context().Done():
			}
		},
		"server closed": func(r *routed) {
			r.server.close()
			<-t.Context().Done()
		},
	} {
		r := startRouted(t)
		r.elect(leads(t, 2, func(w http.ResponseWriter, q *http.Request) {
			b, _ := io.ReadAll(q.Body)
			got <- string(b)
			goes(r)
		}))
		status, _, answer := r.write(t)
		wantUnknown(t, name, status, answer)
		check.Equal(t, <-got, "a write", "%v the leader did not get the call: got %v", name)
	}
}

// A forwarded stream on which the caller is silent ends when the leader is gone or replaced, or when this node stops,
// because a caller that waits for a response sends nothing more. Over HTTP/2, where a stream is not upgraded, only a
// Read of the caller's data would notice.
func TestSilentForwardedStreamsEnd(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(r *routed, leader *httptest.Server){
		"connection broken": func(_ *routed, leader *httptest.Server) { leader.CloseClientConnections() },
		"leader replaced": func(r *routed, _ *httptest.Server) {
			r.elect(leads(t, 3, func(http.ResponseWriter, *http.Request) { t.Error("it was sent again") }))
		},
		"draining":      func(r *routed, _ *httptest.Server) { r.server.startDrain() },
		"server closed": func(r *routed, _ *httptest.Server) { r.server.close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRouted(t)
			h2c := new(http.Protocols)
			h2c.SetUnencryptedHTTP2(true)
			transport := &http.Transport{Protocols: h2c}
			defer transport.CloseIdleConnections()
			r.transport = transport
			leader := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				_, _ = io.ReadFull(q.Body, make([]byte, len("frames")))
				_ = http.NewResponseController(w).Flush()
				<-q.Context().Done()
			}))
			node := httptest.NewUnstartedServer(withCall(false, r.mux))
			for _, hs := range []*httptest.Server{leader, node} {
				hs.Config.Protocols = h2c
				hs.Start()
				t.Cleanup(hs.Close)
				t.Cleanup(hs.CloseClientConnections) // before Close, which waits for the calls
			}
			r.elect(cluster.Leader{ID: 2, Term: 2, Peer: leader.Listener.Addr().String()})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			sent, caller := io.Pipe()
			defer func() { _ = caller.Close() }()
			q := must.Get(http.NewRequestWithContext(ctx, http.MethodPost,
				node.URL+seqledgerv1connect.LedgerServiceWriteStreamProcedure, sent))(t)
			go func() { _, _ = io.WriteString(caller, "frames") }() // ends when they are read, or with the call
			response := must.Get(transport.RoundTrip(q))(t)
			ends(r, leader)
			if _, err := io.ReadAll(response.Body); err == nil || ctx.Err() != nil {
				t.Errorf("the stream must break, as its last answers are missing; got %v", err)
			}
			cancel() // otherwise Close would wait until the rest is sent
			_ = response.Body.Close()
		})
	}
}

// The same for an upgraded stream. Its leader may disappear silently, so that nothing else would end the stream.
func TestSilentForwardedUpgradesEnd(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(r *routed){
		"leader replaced": func(r *routed) {
			r.elect(leads(t, 3, func(http.ResponseWriter, *http.Request) { t.Error("it was sent again") }))
		},
		"draining":      func(r *routed) { r.server.startDrain() },
		"server closed": func(r *routed) { r.server.close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRouted(t)
			begun := make(chan struct{})
			h2c := new(http.Protocols)
			h2c.SetUnencryptedHTTP2(true)
			transport := &http.Transport{Protocols: h2c}
			defer transport.CloseIdleConnections()
			r.transport = transport
			leader := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				_ = http.NewResponseController(w).Flush()
				close(begun)
				<-q.Context().Done()
			}))
			leader.Config.Protocols = h2c
			leader.Start()
			t.Cleanup(leader.Close)
			t.Cleanup(leader.CloseClientConnections) // before Close, which waits for the calls
			r.elect(cluster.Leader{ID: 2, Term: 2, Peer: leader.Listener.Addr().String()})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			q := must.Get(http.NewRequestWithContext(ctx, http.MethodGet,
				r.url+seqledgerv1connect.LedgerServiceWriteStreamProcedure, http.NoBody))(t)
			for name, value := range map[string]string{
				"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Protocol": upgrade.Protocol,
				"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
			} {
				q.Header.Set(name, value)
			}
			response := must.Get(http.DefaultClient.Do(q))(t)
			defer func() { _ = response.Body.Close() }()
			must.Equal(t, response.StatusCode, http.StatusSwitchingProtocols, "%v: %v", response.Status)
			<-begun
			ended := make(chan struct{})
			go func() { // ends with the connection, at the latest with the Close above
				defer close(ended)
				_, _ = io.Copy(io.Discard, response.Body)
			}()
			ends(r)
			select {
			case <-ended:
			case <-ctx.Done():
				t.Error("the connection is still there")
			}
		})
	}
}

// A body that a transport may have read from is not given to another one, and an abandoned body is not read.
func TestForwardedBody(t *testing.T) {
	t.Parallel()
	under := io.NopCloser(strings.NewReader("body"))
	b := &forwardedBody{ReadCloser: under}
	if !b.seal() || b.Close() != nil || !b.seal() {
		t.Error("an unread body must be sealed")
	}
	if _, err := b.Read(make([]byte, 4)); err == nil {
		t.Error("a sealed body was read")
	}
	b = &forwardedBody{ReadCloser: under}
	if all, err := io.ReadAll(b); string(all) != "body" || err != nil {
		t.Error(string(all), err)
	}
	if b.seal() {
		t.Error("a body that was read must not be sent again")
	}
}

// Only nodes may state a caller's address, and forwarded calls are not forwarded again.
func TestPeerHandler(t *testing.T) {
	t.Parallel()
	var from string
	s := &Server{passedOn: http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		from = q.RemoteAddr + q.Header.Get(clientHeader)
		if !callOf(q.Context()).here {
			t.Error("the call may be passed on again")
		}
	})}
	for address, want := range map[string]int{
		"": http.StatusMisdirectedRequest, "somebody": http.StatusMisdirectedRequest, "192.0.2.1:5": http.StatusOK,
	} {
		w, q := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/x", http.NoBody)
		if address != "" {
			q.Header.Set(clientHeader, address)
		}
		s.PeerHandler().ServeHTTP(w, q)
		check.Equal(t, w.Code, want, "with the caller %q: got %d", address)
	}
	check.Equal(t, from, "192.0.2.1:5", "the caller is %q")
}
