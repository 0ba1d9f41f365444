package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server/admission"
)

const (
	// clientHeader holds the address of the caller of a forwarded call. Only the listener for other nodes trusts it.
	clientHeader = "Seqledger-Client-Address"
	// electionPatience is how long a call waits for the nodes to elect a leader. It is longer than an election takes
	// with the default ticks.
	electionPatience = 2 * time.Second
	// redialEvery is how often the router retries an unreachable leader meanwhile.
	redialEvery = 100 * time.Millisecond
	// forwardGrace is how long a call may still wait for a former leader. A leader that hands over answers at once; one
	// that hangs or is cut off never does.
	forwardGrace = 500 * time.Millisecond
)

// router passes calls that only the leader can answer on to the leader, after the bounds, deadlines and checks that
// every request of this node passes. The leader authenticates the caller again, and decides as if the caller had called
// it directly.
type router struct {
	server *Server
	nodes  nodes
	// calls passes on unary calls. streams passes on those on which both sides send at once.
	calls, streams *httputil.ReverseProxy
	// electionPatience, except in tests.
	patience time.Duration
}

// nodes is the part of a ledger that a router needs.
type nodes interface {
	Leader() (cluster.Leader, <-chan struct{})
	PeerTransport() http.RoundTripper
}

func newRouter(s *Server, n nodes) *router {
	r := &router{server: s, nodes: n, patience: electionPatience}
	r.calls = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      roundTripperFunc(r.roundTrip),
		ModifyResponse: received,
		ErrorLog:       slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelDebug),
		ErrorHandler:   r.failed,
	}
	streams := *r.calls
	streams.FlushInterval = -1
	r.streams = &streams
	return r
}

// byLeader returns a handler for unary calls that only the leader can answer: on the leader it is local.
func (s *Server) byLeader(local http.Handler) http.Handler {
	if s.router == nil {
		return local
	}
	return s.router.handler(local, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		s.router.calls.ServeHTTP(unaryAnswer{w, callOf(q.Context())}, q)
	}))
}

// streamByLeader is byLeader for streams. A client that leaves its messages unread is cut off as it is by the leader.
func (s *Server) streamByLeader(local http.Handler) http.Handler {
	if s.router == nil {
		return local
	}
	pass := func(w http.ResponseWriter, q *http.Request) {
		controls := admission.StreamControlsOf(q.Context())
		defer controls.End()
		defer controls.Begin()()
		s.router.streams.ServeHTTP(&passedStream{w, controls}, q)
	}
	return s.router.handler(local, s.asStream(false, http.HandlerFunc(pass)))
}

// nameLeader adds the address of the leader to the header of an answer, if it is another node.
func (s *Server) nameLeader(h http.Header) {
	if s.router == nil {
		return
	}
	if leader, _ := s.router.nodes.Leader(); !leader.Self && leader.Client != "" {
		h.Set(message.LeaderHeader, leader.Client)
	}
}

// passedStream is the answer to a stream that is passed on.
type passedStream struct {
	http.ResponseWriter

	controls *admission.StreamControls
}

// Write implements io.Writer.
func (p *passedStream) Write(b []byte) (n int, err error) {
	err = p.controls.Send(func() error {
		n, err = p.ResponseWriter.Write(b)
		return err
	})
	return n, err
}

// FlushError is for http.ResponseController.
func (p *passedStream) FlushError() error {
	return p.controls.Send(http.NewResponseController(p.ResponseWriter).Flush)
}

// Unwrap is for http.ResponseController.
func (p *passedStream) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// forward is a call that is being forwarded to the leader.
type forward struct {
	call   *http.Request // as received
	local  http.Handler  // answers it on this node
	header http.Header   // what this node has added to the answer
	leader cluster.Leader
}

// forwardKey is the context key of a call's forward.
type forwardKey struct{}

func forwardOf(q *http.Request) *forward {
	f, _ := q.Context().Value(forwardKey{}).(*forward)
	return f
}

type roundTripperFunc func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripperFunc) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// handler returns a handler that uses local on the leader, and pass on another node.
func (r *router) handler(local, pass http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if callOf(q.Context()).here || r.server.isDraining() {
			local.ServeHTTP(w, q)
			return
		}
		limited, cancel := context.WithTimeout(q.Context(), r.patience)
		leader, found := r.leader(limited)
		cancel()
		if leader.Self || !found {
			local.ServeHTTP(w, q) // if there is no leader, it refuses the call in the caller's protocol
			return
		}
		ctx, cancel := context.WithCancel(q.Context())
		defer cancel()
		f := &forward{call: q, local: local, header: w.Header(), leader: leader}
		pass.ServeHTTP(w, q.WithContext(context.WithValue(ctx, forwardKey{}, f)))
	})
}

// leader returns the current leader. During an election it waits for one until ctx ends or the server drains, and then
// returns false.
func (r *router) leader(ctx context.Context) (leader cluster.Leader, found bool) {
	for {
		leader, changed := r.nodes.Leader()
		if known(leader) {
			return leader, true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return leader, false
		case <-r.server.draining.Done():
			return leader, false
		}
	}
}

func known(l cluster.Leader) bool { return l.Self || l.Peer != "" }

// rewrite keeps a call as the caller sent it, and adds the caller's address. The hop-by-hop headers and those of other
// proxies, which the proxy has removed, concern only the caller and this node. So does the page that it comes from.
func rewrite(q *httputil.ProxyRequest) {
	q.Out.Header.Del("Origin")
	// A request for another protocol is one to this node. ReverseProxy would ask the leader for it, too, and HTTP/2 has
	// no such request: clients offer h2c with ordinary calls.
	q.Out.Header.Del("Connection")
	q.Out.Header.Del("Upgrade")
	transport.AddressToAny(q.Out.Header)
	q.Out.Header.Set(clientHeader, q.In.RemoteAddr)
	q.Out.Header.Set(requestIDHeader, callOf(q.In.Context()).id) // in the logs of both nodes
}

// received prepares the leader's answer for the caller: it adds the leader's address, and its headers replace those
// that this node has set.
func received(answer *http.Response) error {
	f := forwardOf(answer.Request)
	if f.leader.Client != "" {
		answer.Header.Set(message.LeaderHeader, f.leader.Client)
	}
	for name := range answer.Header {
		f.header.Del(name)
	}
	if !isEndless(answer.Request) {
		admission.Answering(answer.Request.Context())
	}
	return nil
}

// errUnsent means that the leader has received no part of a call, so that the call was not executed.
var errUnsent = errors.New("the leader was not reached")

// roundTrip sends a call to the leader. As long as no part of it has been sent, it retries with the next leader, so
// that an election goes unnoticed by the caller. errUnsent means that this node must answer, because it now leads or
// there is no leader.
func (r *router) roundTrip(q *http.Request) (*http.Response, error) {
	f := forwardOf(q)
	limited, cancel := context.WithTimeout(q.Context(), r.patience)
	defer cancel()
	for {
		answer, unsent, err := r.attempt(q, f.leader)
		if err == nil || !unsent {
			return answer, err
		}
		_, changed := r.nodes.Leader()
		again := time.NewTimer(redialEvery)
		select {
		case <-changed:
		case <-again.C:
		case <-limited.Done():
		}
		again.Stop()
		leader, found := r.leader(limited)
		if !found || leader.Self || limited.Err() != nil {
			return nil, fmt.Errorf("%w: %w", errUnsent, err)
		}
		f.leader = leader
	}
}

// attempt sends a call to a node. unsent reports whether a failed call was not sent.
func (r *router) attempt(q *http.Request, to cluster.Leader) (answer *http.Response, unsent bool, err error) {
	ctx, cancel := context.WithCancel(q.Context())
	q = q.WithContext(ctx)
	q.URL = &url.URL{Scheme: "http", Host: to.Peer, Path: q.URL.Path, RawPath: q.URL.RawPath, RawQuery: q.URL.RawQuery}
	if to.Encrypted {
		q.URL.Scheme = "https"
	}
	var body *forwardedBody
	end := cancel
	if q.Body != nil {
		body = &forwardedBody{ReadCloser: q.Body}
		// The proxy owns this body and does not pass on Close. Over HTTP/1.1 Close cannot interrupt a Read, and need
		// not: the response comes after the whole body.
		if call := forwardOf(q).call; call.ProtoMajor > 1 {
			body.interrupt = call.Body.Close
		}
		q.Body = body
		// Without closing the body, the transport would not notice the cancellation until the caller sends something.
		end = func() {
			cancel()
			_ = body.Close()
		}
	}
	// Ends with the call.
	go r.endWith(ctx, end, to, isEndless(q))
	if answer, err = r.nodes.PeerTransport().RoundTrip(q); err == nil {
		answer.Body = &forwardedAnswer{answer.Body, end}
		return answer, false, nil
	}
	cancel()
	dial, isDial := errors.AsType[*net.OpError](err)
	return nil, body != nil && body.seal() || isDial && dial.Op == "dial", err
}

// isEndless reports whether a call lasts until one side ends it.
func isEndless(q *http.Request) bool {
	return q.URL.Path == seqledgerv1connect.LedgerServiceWriteStreamProcedure
}

// endWith ends a call when the node that it was sent to is no longer the leader, and an endless call when this server
// drains. Requests in flight may have been executed; the caller repeats them.
func (r *router) endWith(ctx context.Context, end func(), to cluster.Leader, endless bool) {
	var draining <-chan struct{}
	if endless {
		draining = r.server.draining.Done()
	}
	for over := false; !over; {
		now, changed := r.nodes.Leader()
		if known(now) && now.ID != to.ID {
			break
		}
		select {
		case <-changed:
		case <-draining:
			over = true
		case <-r.server.closed.Done():
			end()
			return
		case <-ctx.Done():
			return
		}
	}
	grace := time.NewTimer(forwardGrace)
	defer grace.Stop()
	select {
	case <-grace.C:
		end()
	case <-ctx.Done():
	}
}

// failed answers a call for which the leader sent no response.
func (r *router) failed(w http.ResponseWriter, q *http.Request, err error) {
	f := forwardOf(q)
	if errors.Is(err, errUnsent) {
		f.local.ServeHTTP(w, f.call)
		return
	}
	r.server.options.Logger.DebugContext(q.Context(), "the leader did not answer a call",
		"path", q.URL.Path, "leader", f.leader.ID, "error", err)
	// The leader may have executed it, or may still do so.
	failed := connectError(q.Context(), r.server.options.Logger, fmt.Errorf("%w: %w", ledger.ErrOutcomeUnknown, err))
	answerError(w, f.call, failed, http.StatusServiceUnavailable)
}

// forwardedBody is the body of one attempt to send a call. It records whether any of it may have been sent.
type forwardedBody struct {
	io.ReadCloser

	// interrupt interrupts a Read that waits for the caller. It may be nil.
	interrupt func() error

	state atomic.Uint32 // one of the three constants below
}

const (
	forwardUnread uint32 = iota
	forwardRead
	forwardSealed // not read, and never will be
)

// seal reports whether nothing was read, and prevents later reads, because a transport may still be working on a failed
// request.
func (b *forwardedBody) seal() bool {
	return b.state.CompareAndSwap(forwardUnread, forwardSealed) || b.state.Load() == forwardSealed
}

// Read implements io.Reader.
func (b *forwardedBody) Read(p []byte) (int, error) {
	if !b.state.CompareAndSwap(forwardUnread, forwardRead) && b.state.Load() == forwardSealed {
		return 0, errUnsent
	}
	return b.ReadCloser.Read(p)
}

// Close implements io.Closer. A body that was not read is kept for another attempt. Close also interrupts a Read that
// waits for the caller, because the transport ends the response of a lost leader only after that Read returns.
func (b *forwardedBody) Close() error {
	if b.seal() {
		return nil
	}
	err := b.ReadCloser.Close()
	if b.interrupt != nil {
		err = errors.Join(err, b.interrupt())
	}
	return err
}

// forwardedAnswer is the body of a response. Closing it ends the call. Otherwise the transport would wait until the
// caller has sent the rest of a stream, while the caller waits for the end of the response.
type forwardedAnswer struct {
	io.ReadCloser

	end func() // ends the call
}

// Close implements io.Closer.
func (a *forwardedAnswer) Close() error {
	a.end()
	return a.ReadCloser.Close()
}

// PeerHandler returns a handler for calls that other nodes pass on. The caller is authenticated and admitted here, too;
// where it comes from was checked by the node that it has called. Calls are not passed on again: without a leader here
// a call is refused, so that it cannot loop. Only the listener for other nodes may use this handler, because it trusts
// what they say about their callers.
func (s *Server) PeerHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		address := r.Header.Get(clientHeader)
		if _, err := netip.ParseAddrPort(address); err != nil {
			http.Error(w, "this is the address for other nodes of the cluster, not for clients",
				http.StatusMisdirectedRequest)
			return
		}
		r = r.Clone(r.Context())
		r.Header.Del(clientHeader)
		r.RemoteAddr = address
		withCall(true, s.passedOn).ServeHTTP(w, r)
	})
}
