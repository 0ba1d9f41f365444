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

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/upgrade"
	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

const (
	// clientHeader holds the address of the caller of a forwarded call. Only the listener for other nodes trusts it.
	clientHeader = "Seqledger-Client-Address"
	// electionPatience is how long a call waits for the nodes to elect a leader. It is longer than an election takes
	// with the default ticks.
	electionPatience = 2 * time.Second
	// upgradePatience replaces electionPatience for a request to upgrade. It is shorter, because a client without a
	// response within a second concludes that the server does not upgrade at all.
	upgradePatience = 600 * time.Millisecond
	// redialEvery is how often the router retries an unreachable leader meanwhile.
	redialEvery = 100 * time.Millisecond
	// forwardGrace is how long a call may still wait for a former leader. A leader that hands over answers at once; one
	// that hangs or is cut off would hold the call for ever.
	forwardGrace = 500 * time.Millisecond
	// maxForwarded bounds the number of calls that wait for the leader at once. The router does not buffer their
	// bodies.
	maxForwarded = 4096
)

// router forwards calls that change something to the leader. The leader authenticates the caller, and decides as if the
// caller had called it directly.
type router struct {
	server *Server
	nodes  nodes
	local  http.Handler
	proxy  *httputil.ReverseProxy
	places chan struct{}
	// electionPatience, except in tests.
	patience time.Duration
}

// nodes is the part of a ledger that a router needs.
type nodes interface {
	Leader() (cluster.Leader, <-chan struct{})
	PeerTransport() http.RoundTripper
}

func newRouter(s *Server, n nodes, local http.Handler) *router {
	r := &router{
		server: s, nodes: n, local: local, places: make(chan struct{}, maxForwarded), patience: electionPatience,
	}
	r.proxy = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      roundTripperFunc(r.roundTrip),
		FlushInterval:  -1, // both sides of a stream send at once
		ModifyResponse: nameLeader,
		ErrorLog:       slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelDebug),
		ErrorHandler:   r.failed,
	}
	return r
}

// forward is a call that is being forwarded to the leader.
type forward struct {
	call   *http.Request // as received
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

// ServeHTTP implements http.Handler.
func (r *router) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if !r.server.leaderOnly[q.URL.Path] || r.server.isDraining() {
		r.local.ServeHTTP(w, q)
		return
	}
	limited, cancel := context.WithTimeout(q.Context(), r.patienceFor(q))
	leader, found := r.leader(limited)
	cancel()
	if leader.Self || !found {
		r.local.ServeHTTP(w, q) // if there is no leader, it refuses the call in the caller's protocol
		return
	}
	select {
	case r.places <- struct{}{}:
	default:
		r.local.ServeHTTP(w, q) // it refuses the call and names the leader
		return
	}
	defer func() { <-r.places }()
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	f := &forward{call: q, leader: leader}
	r.proxy.ServeHTTP(w, q.WithContext(context.WithValue(ctx, forwardKey{}, f)))
}

// patienceFor returns how long a call waits for a leader.
func (r *router) patienceFor(q *http.Request) time.Duration {
	if upgrade.IsRequested(q) {
		return min(r.patience, upgradePatience)
	}
	return r.patience
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

// rewrite keeps a call as the caller sent it, and adds the caller's address. The hop-by-hop headers, which the proxy
// has removed, concern only the caller and this node.
func rewrite(q *httputil.ProxyRequest) {
	q.Out.Host = q.In.Host // the leader checks it against its own rules
	// Keep the headers of a proxy in front of this node, because they can be a reason to refuse a call.
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, found := q.In.Header[name]; found {
			q.Out.Header[name] = values
		}
	}
	q.Out.Header.Set(clientHeader, q.In.RemoteAddr)
}

// nameLeader adds the leader's address to a response.
func nameLeader(answer *http.Response) error {
	if f := forwardOf(answer.Request); f.leader.Client != "" {
		answer.Header.Set(message.LeaderHeader, f.leader.Client)
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
	limited, cancel := context.WithTimeout(q.Context(), r.patienceFor(f.call))
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
		if answer.StatusCode == http.StatusSwitchingProtocols {
			// The transport no longer tracks an upgraded connection, so it must be closed here. Ends with the call.
			conn := answer.Body
			context.AfterFunc(ctx, func() { _ = conn.Close() })
			return answer, false, nil
		}
		answer.Body = &forwardedAnswer{answer.Body, end}
		return answer, false, nil
	}
	cancel()
	dial, isDial := errors.AsType[*net.OpError](err)
	return nil, body != nil && body.seal() || isDial && dial.Op == "dial" || upgrade.IsRequested(q), err
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
		r.local.ServeHTTP(w, f.call)
		return
	}
	r.server.options.Logger.DebugContext(q.Context(), "the leader did not answer a call",
		"path", q.URL.Path, "leader", f.leader.ID, "error", err)
	// The leader may have executed it, or may still do so.
	failed := connectError(q.Context(), r.server.options.Logger, fmt.Errorf("%w: %w", ledger.ErrOutcomeUnknown, err))
	if writer := connect.NewErrorWriter(); writer.IsSupported(f.call) {
		_ = writer.Write(w, f.call, failed)
		return
	}
	http.Error(w, failed.Message(), http.StatusServiceUnavailable)
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

// PeerHandler returns a handler for calls that other nodes forward. It does not forward them again: without a leader
// here a call is refused, so that it cannot loop. Only the listener for other nodes may use this handler, because it
// trusts what they say about their callers.
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
		s.local.ServeHTTP(w, r)
	})
}
