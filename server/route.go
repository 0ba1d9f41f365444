package server

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"time"

	"github.com/seqledger/seqledger/ledger"
)

const (
	// clientHeader has the address of the caller of a forwarded call. Only the listener for other nodes
	// believes it.
	clientHeader = "Seqledger-Client-Address"
	// electionPatience is how long a call waits for the nodes to elect a leader: longer than an election
	// takes with the default ticks.
	electionPatience = 2 * time.Second
	// maxForwarded bounds the calls that wait for the leader at once. What they send is not kept here.
	maxForwarded = 4096
)

// router passes calls that change something on to the leader. The leader authenticates the caller, and decides
// as if it had been called.
type router struct {
	server *Server
	local  http.Handler
	proxy  *httputil.ReverseProxy
	places chan struct{}
}

// leaderKey finds the leader that a call is forwarded to in its context.
type leaderKey struct{}

func newRouter(s *Server, local http.Handler) *router {
	r := &router{server: s, local: local, places: make(chan struct{}, maxForwarded)}
	r.proxy = &httputil.ReverseProxy{
		Rewrite: rewrite,
		// Asked for at each call, because there is none before the ledger has others.
		Transport: roundTripperFunc(func(q *http.Request) (*http.Response, error) {
			return s.options.Ledger.PeerTransport().RoundTrip(q)
		}),
		FlushInterval: -1, // both sides of a stream talk at once
		ErrorLog:      slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelDebug),
		// The call may have been executed. An answer without a WriteError says just that: the caller repeats it.
		ErrorHandler: func(w http.ResponseWriter, q *http.Request, err error) {
			s.options.Logger.Debug("a call could not be forwarded to the leader", "path", q.URL.Path, "error", err)
			http.Error(w, "the leader did not answer; repeat the call", http.StatusServiceUnavailable)
		},
	}
	return r
}

type roundTripperFunc func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripperFunc) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// rewrite addresses a call to the leader and leaves everything else as the caller sent it.
func rewrite(q *httputil.ProxyRequest) {
	leader, _ := q.In.Context().Value(leaderKey{}).(ledger.Leader)
	q.Out.URL.Scheme, q.Out.URL.Host = "http", leader.Peer
	if leader.Encrypted {
		q.Out.URL.Scheme = "https"
	}
	q.Out.Host = q.In.Host // the leader holds it against its own rules
	// What a proxy before this node has added is one of the reasons to refuse a call.
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, found := q.In.Header[name]; found {
			q.Out.Header[name] = values
		}
	}
	q.Out.Header.Set(clientHeader, q.In.RemoteAddr)
}

// ServeHTTP implements http.Handler.
func (r *router) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if !r.server.writes[q.URL.Path] {
		r.local.ServeHTTP(w, q)
		return
	}
	leader, found := r.leader(q.Context())
	if leader.Self || !found {
		r.local.ServeHTTP(w, q) // which refuses it in the caller's protocol, when nobody leads
		return
	}
	select {
	case r.places <- struct{}{}:
	default:
		http.Error(w, "this node forwards too many calls; repeat the call", http.StatusServiceUnavailable)
		return
	}
	defer func() { <-r.places }()
	r.proxy.ServeHTTP(w, q.WithContext(context.WithValue(q.Context(), leaderKey{}, leader)))
}

// leader returns who leads, waiting for an election. It is not found while there is none.
func (r *router) leader(ctx context.Context) (leader ledger.Leader, found bool) {
	leader, changed := r.server.options.Ledger.Leader()
	if known(leader) {
		return leader, true
	}
	patience := time.NewTimer(electionPatience)
	defer patience.Stop()
	for !known(leader) {
		select {
		case <-changed:
		case <-patience.C:
			return leader, false
		case <-ctx.Done():
			return leader, false
		case <-r.server.draining.Done():
			return leader, false
		}
		leader, changed = r.server.options.Ledger.Leader()
	}
	return leader, true
}

func known(l ledger.Leader) bool { return l.Self || l.Peer != "" }

// PeerHandler answers the calls that other nodes forward. It forwards none itself: a call that finds
// no leader here is refused, so that it never goes round in circles. Only the listener for other
// nodes may have it, because it believes what they say about their callers.
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
