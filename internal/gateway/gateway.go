// Package gateway is a reverse proxy in front of an HTTP service. A request with the header Idempotency-Key reaches the
// service once; its retries get the first response.
//
// [Load] reads a configuration, [New] makes a gateway from it, and [Gateway.Reload] replaces it.
package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/cors"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/listen"
	"github.com/seqledger/seqledger/internal/unsent"
)

// Options configure a gateway. Config and Store are required.
type Options struct {
	Config *Config
	// MaxRequests bounds the requests in flight; 0 means 512. A request with a key takes up to four times its size in
	// memory. Further requests are refused with 503.
	MaxRequests int
	// MaxPerPrincipal bounds the keyed requests in flight of one party, whatever the tenant or the host; 0 means half
	// of MaxRequests. Further requests are refused with 429.
	MaxPerPrincipal int
	// MaxPerPeer bounds the requests in flight from one address, or one IPv6 /64; 0 means half of MaxRequests. Further
	// requests are refused with 429. Trusted proxies and this machine have no limit.
	MaxPerPeer int
	// Store keeps the records, in Scope.
	Store idempotency.Store
	Scope idempotency.Scope
	// Journal keeps the results that the store does not take; it may be nil.
	Journal *idempotency.Journal
	// Logger logs a line for each request, with a hash in place of the key.
	Logger *slog.Logger
}

// Gateway is the handler. It is safe for concurrent use.
type Gateway struct {
	options  Options
	metrics  *metrics
	requests chan struct{} // holds a token for each request in flight

	mu         sync.Mutex // held by Reload and Close
	transports map[connections]*unsent.Transport
	config     *Config
	current    atomic.Pointer[table]

	principals counts // of requests with a key
	peers      counts // of all requests
}

// counts are the numbers of requests in flight per principal or peer. There are never more entries than requests in
// flight.
type counts struct {
	mu sync.Mutex
	of map[string]int
}

// enter counts a request if there are fewer than most; leave ends the count.
func (c *counts) enter(whose string, most int) (leave func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[whose] >= most {
		return nil, false
	}
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[whose]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.of[whose]--; c.of[whose] == 0 {
			delete(c.of, whose)
		}
	}, true
}

// New returns a gateway. The caller must call Close.
func New(o Options) *Gateway {
	o.MaxRequests = cmp.Or(o.MaxRequests, 512)
	o.MaxPerPrincipal = cmp.Or(o.MaxPerPrincipal, max(1, o.MaxRequests/2))
	o.MaxPerPeer = cmp.Or(o.MaxPerPeer, max(1, o.MaxRequests/2))
	g := &Gateway{
		options: o, requests: make(chan struct{}, o.MaxRequests),
		transports: map[connections]*unsent.Transport{},
	}
	g.metrics = newMetrics(g)
	g.Reload(o.Config)
	return g
}

// Reload applies another configuration to new requests. Requests in flight finish with the old one, so that one request
// never follows two rules.
func (g *Gateway) Reload(c *Config) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.config
	g.config = c
	if old != nil {
		c.warnOfNewIdentities(g.options.Logger, old)
	}
	c.tokens.start(g.options.Logger)
	g.current.Store(g.newTable(c))
	used := c.connections()
	maps.DeleteFunc(g.transports, func(c connections, t *unsent.Transport) bool {
		if !used[c] {
			t.CloseIdleConnections() // connections in use close after they have been idle for a while
		}
		return !used[c]
	})
	if old != nil {
		old.tokens.stop()
	}
}

// Routes returns the number of routes in effect.
func (g *Gateway) Routes() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.config.Routes()
}

// Close stops the gateway's background work. Requests are not affected.
func (g *Gateway) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.config.tokens.stop()
	for _, t := range g.transports {
		t.CloseIdleConnections()
	}
}

// connections are the settings that routes share if they share connections.
type connections struct{ timeout, idle time.Duration }

// connections returns those of all routes.
func (c *Config) connections() map[connections]bool {
	used := map[connections]bool{}
	for _, r := range append(slices.Clone(c.routes), c.fallback) {
		if r != nil {
			used[r.connections] = true
		}
	}
	return used
}

// transport returns the transport for routes with these settings. The caller holds mu. All transports together keep as
// many unused connections as the gateway has for its clients, because the files of the process are limited.
func (g *Gateway) transport(c connections) *unsent.Transport {
	t := g.transports[c]
	if t == nil {
		const pools = 2 // of a transport: those of requests with a key are its own
		unused := max(1, listen.Connections().Gateway/len(g.config.connections())/pools)
		t = unsent.NewTransport(&http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: c.timeout,
			DisableCompression: true, // compressed responses pass unchanged
			MaxIdleConns:       min(unused, 1_024), MaxIdleConnsPerHost: 256,
		}, c.idle, hasKey)
		g.transports[c] = t
	}
	return t
}

// dialTimeout bounds the time to connect to the service, and its TLS handshake.
const dialTimeout = 10 * time.Second

// table finds the route of a request.
type table struct {
	patterns *http.ServeMux // of *pathRoutes
	fallback *routeHandler  // nil: refuse
	policy   []byte
	config   *Config
	// strict is set if more than one rule is in effect, or if the upstream has a base path, because a path with two
	// readings could then avoid a rule.
	strict bool
}

// routeHandler serves a route. Its label is the route's name in the metrics.
type routeHandler struct {
	http.Handler

	label string
	cors  *cors.Cors // nil: left to the service
}

// pathRoutes are the routes of one path.
type pathRoutes struct {
	byMethod map[string]*routeHandler
	other    *routeHandler // for methods without a route: the first route's handler, which passes them on
}

// ServeHTTP is never called: the table uses http.ServeMux only for its lookup.
func (p *pathRoutes) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.other.ServeHTTP(w, r) }

// newTable returns the table of a configuration. The caller holds mu.
func (g *Gateway) newTable(c *Config) *table {
	t := &table{patterns: http.NewServeMux(), config: c}
	paths := map[string]*pathRoutes{}
	for _, r := range c.routes {
		h := &routeHandler{g.newRoute(c, r), r.label(), r.cors}
		p := paths[r.path]
		if p == nil {
			p = &pathRoutes{map[string]*routeHandler{}, h}
			paths[r.path] = p
			t.patterns.Handle(r.path, p) // Load has checked it
		}
		for _, method := range r.options.Methods {
			p.byMethod[method] = h
		}
	}
	if c.fallback != nil {
		t.fallback = &routeHandler{g.newRoute(c, c.fallback), c.fallback.label(), c.fallback.cors}
	}
	t.strict = len(c.routes) > 0 || c.fallback != nil && strings.Trim(c.fallback.upstream.Path, "/") != ""
	t.policy = c.policy()
	return t
}

// policyPath is the path of the policy document for clients.
const policyPath = "/.well-known/idempotency"

// policy returns the document at policyPath: the policy of the fallback, and those of the routes.
func (c *Config) policy() []byte {
	document := map[string]any{}
	if c.fallback != nil {
		document = c.fallback.policy()
	}
	var routes []any
	for _, r := range c.routes {
		routes = append(routes, map[string]any{"path": r.path, "policy": r.policy()})
	}
	if routes != nil {
		document["routes"] = routes
	}
	text, _ := json.Marshal(document) // texts and numbers always encode
	return append(text, '\n')
}

// policy returns what clients must know of a route.
func (r *route) policy() map[string]any {
	document := map[string]any{}
	text, _ := r.options.Policy() // Load has validated the options
	_ = json.Unmarshal(text, &document)
	if sources, ok := document["principal"].([]any); ok && r.header+r.claim != "" {
		sources[0] = "header:" + strings.ToLower(r.header)
		if r.claim != "" {
			sources[0] = "claim:" + r.claim
		}
	}
	return document
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	seen := &response{ResponseWriter: w, controls: http.NewResponseController(w)}
	_ = seen.controls.SetWriteDeadline(time.Time{})
	defer seen.end()
	route, clear := g.current.Load().find(r)
	label := "none"
	if route != nil {
		label = route.label
	}
	defer func() {
		took := time.Since(began)
		g.metrics.request(label, seen.status, took)
		g.options.Logger.InfoContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path, "route", label,
			"status", seen.status, "replayed", w.Header().Get(idempotency.HeaderReplayed), "key_hash",
			keyHash(r.Header),
			"took", took)
	}()
	if r.Body != nil && r.Body != http.NoBody {
		b := &body{ReadCloser: r.Body, controls: seen.controls}
		defer b.leave()
		// Use a copy, because net/http must find its own body in its own request.
		r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, b))
		r.Body = b
	}
	if route != nil && route.cors != nil {
		if route.cors.HandlerFunc(seen, r); preflightFor(r) != "" {
			return // the preflight has been answered
		}
		seen.cors = seen.Header().Clone()
	}
	leave, ok := g.enter(seen, r)
	if !ok { // before any of the body is read
		return
	}
	defer leave()
	listen.LetIn(r.Context())
	switch {
	case r.URL.Path == policyPath && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		seen.Header().Set("Content-Type", "application/json")
		_, _ = seen.Write(g.current.Load().policy) // the client may have disconnected
	case !clear:
		refuse(seen, r, http.StatusBadRequest, codeAmbiguous,
			"The path may be read in several ways; write it as its route has it. Nothing was done")
	case strings.ToUpper(r.Method) != r.Method: // some services ignore case
		refuse(seen, r, http.StatusBadRequest, codeMethod, "Methods are in upper case; nothing was done")
	case route == nil:
		refuse(seen, r, http.StatusNotFound, codeNoRoute, "No route of this gateway has this path; nothing was done")
	default:
		route.ServeHTTP(seen, r)
	}
}

// refuse answers an invalid request, so that it reaches no route.
func refuse(w http.ResponseWriter, r *http.Request, status int, code idempotency.Code, title string) {
	p := idempotency.Problem{Status: status, Code: code, Action: idempotency.FixRequest, Title: title}
	p.Write(w, r)
}

// refuseBusy answers a request for which there is no place at the moment.
func refuseBusy(w http.ResponseWriter, r *http.Request, status int, title string) {
	p := idempotency.Problem{
		Status: status, Code: codeBusy, Action: idempotency.SameKey, Title: title, RetryAfter: time.Second,
	}
	p.Write(w, r)
}

// keyHash returns the beginning of the hash under which the store keeps a key, or "" if there is no key. Logs contain
// the hash instead of the key, which may be a secret.
func keyHash(header http.Header) string {
	values := header.Values(idempotency.HeaderKey)
	if len(values) == 0 {
		return ""
	}
	key, err := idempotency.ParseHeader(header, false)
	if err != nil {
		key = strings.Join(values, "\n")
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:6])
}

// enter counts a request, or refuses it; leave ends the count.
func (g *Gateway) enter(w http.ResponseWriter, r *http.Request) (leave func(), ok bool) {
	leavePeer := func() {}
	if peer := g.current.Load().config.boundedPeer(r); peer != "" {
		if leavePeer, ok = g.peers.enter(peer, g.options.MaxPerPeer); !ok {
			refuseBusy(w, r, http.StatusTooManyRequests,
				"Too many requests from this address are under way; nothing was done")
			return nil, false
		}
	}
	select {
	case g.requests <- struct{}{}:
		return func() {
			<-g.requests
			leavePeer()
		}, true
	default:
		leavePeer()
		refuseBusy(w, r, http.StatusServiceUnavailable, "Too many requests are under way; nothing was done")
		return nil, false
	}
}

// admit counts a request of a party.
func (g *Gateway) admit(party string) (leave func(), ok bool) {
	return g.principals.enter(party, g.options.MaxPerPrincipal)
}

// trusts reports whether a request comes from a trusted proxy.
func (c *Config) trusts(r *http.Request) bool { return c.trustsAddress(peerOf(r)) }

func (c *Config) trustsAddress(address netip.Addr) bool {
	return slices.ContainsFunc(c.trusted, func(p netip.Prefix) bool { return p.Contains(address) })
}

// peerOf returns the address that a request comes from; it is invalid if the request has none.
func peerOf(r *http.Request) netip.Addr {
	peer, _ := netip.ParseAddrPort(r.RemoteAddr) // the zero value has no address
	return peer.Addr().Unmap().WithZone("")
}

// boundedPeer returns the peer whose limit a request counts against, or "" if there is no limit.
func (c *Config) boundedPeer(r *http.Request) string {
	address := peerOf(r)
	if !address.IsValid() || address.IsLoopback() || c.trustsAddress(address) {
		return ""
	}
	const network = 64 // bits: the usual size of a customer's network
	if prefix, err := address.Prefix(network); err == nil && address.Is6() {
		address = prefix.Addr()
	}
	return address.String()
}

// Gatherer returns the gateway's metrics.
func (g *Gateway) Gatherer() prometheus.Gatherer { return g.metrics.registry }
