// Package gateway is a reverse proxy before an HTTP service. A request with the header
// Idempotency-Key reaches the service once; its repeats get the first response.
//
// [Load] reads a configuration, [New] makes a gateway of it, [Gateway.Reload] gives it another one.
package gateway

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqledger/seqledger/client/idempotency"
)

// Options configure a gateway. Config and Store are required.
type Options struct {
	Config *Config
	// MaxRequests bounds the requests under way; 0 means 512. A request with a key takes up to
	// four times its bytes. Further ones are refused with 503.
	MaxRequests int
	// MaxPerPrincipal bounds the requests under way that have a key and one principal; 0 means
	// half of MaxRequests. Further ones are refused with 429.
	MaxPerPrincipal int
	// Store keeps the records, in Scope.
	Store idempotency.Store
	Scope idempotency.Scope
	// Journal keeps the results that the store does not take; it may be nil.
	Journal *idempotency.Journal
	// Logger gets a line for each request, with a hash in place of the key.
	Logger *slog.Logger
}

// Gateway is the handler. It is safe for concurrent use.
type Gateway struct {
	options  Options
	metrics  *metrics
	requests chan struct{} // has a token for each request under way

	mu         sync.Mutex                        // held by Reload and Close
	transports map[time.Duration]*http.Transport // by how long the service may take
	config     *Config
	current    atomic.Pointer[table]

	principals sync.Mutex
	underWay   map[string]int // requests with a key, by principal; at most MaxRequests entries
}

// New returns a gateway. The caller must call Close.
func New(o Options) *Gateway {
	o.MaxRequests = cmp.Or(o.MaxRequests, 512)
	o.MaxPerPrincipal = cmp.Or(o.MaxPerPrincipal, max(1, o.MaxRequests/2))
	g := &Gateway{
		options: o, requests: make(chan struct{}, o.MaxRequests), underWay: map[string]int{},
		transports: map[time.Duration]*http.Transport{},
	}
	g.metrics = newMetrics(g)
	g.Reload(o.Config)
	return g
}

// Reload makes requests that come from now on follow another configuration. Those under way end with
// the old one.
func (g *Gateway) Reload(c *Config) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.config
	g.config = c
	c.tokens.start(g.options.Logger)
	g.current.Store(g.newTable(c))
	used := map[time.Duration]bool{}
	for _, r := range append(slices.Clone(c.routes), c.fallback) {
		if r != nil {
			used[r.timeout] = true
		}
	}
	maps.DeleteFunc(g.transports, func(timeout time.Duration, t *http.Transport) bool {
		if !used[timeout] {
			t.CloseIdleConnections() // those in use close when they have been idle for a while
		}
		return !used[timeout]
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

// Close ends what the gateway has running besides its requests.
func (g *Gateway) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.config.tokens.stop()
	for _, t := range g.transports {
		t.CloseIdleConnections()
	}
}

// transport returns the transport of routes with a timeout. mu is held.
func (g *Gateway) transport(timeout time.Duration) *http.Transport {
	t := g.transports[timeout]
	if t == nil {
		t = &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: timeout, IdleConnTimeout: 90 * time.Second,
			DisableCompression: true, // what the service compresses passes as it is
			MaxIdleConns:       1_024, MaxIdleConnsPerHost: 256,
		}
		g.transports[timeout] = t
	}
	return t
}

// dialTimeout bounds a connection to the service, and its TLS handshake.
const dialTimeout = 10 * time.Second

// table finds the route of a request.
type table struct {
	patterns *http.ServeMux // of *pathRoutes
	fallback *routeHandler  // nil: refuse
	policy   []byte
}

// routeHandler serves a route. Its label is the route's in the metrics.
type routeHandler struct {
	http.Handler

	label string
}

// pathRoutes are the routes of one path.
type pathRoutes struct {
	byMethod map[string]*routeHandler
	other    *routeHandler // methods without a route: the first route's, which passes them on
}

// ServeHTTP is never called: the table uses only what http.ServeMux finds.
func (p *pathRoutes) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.other.ServeHTTP(w, r) }

// newTable returns the table of a configuration. mu is held.
func (g *Gateway) newTable(c *Config) *table {
	t := &table{patterns: http.NewServeMux()}
	paths := map[string]*pathRoutes{}
	for _, r := range c.routes {
		h := &routeHandler{g.newRoute(c, r), r.path}
		p := paths[r.path]
		if p == nil {
			p = &pathRoutes{map[string]*routeHandler{}, h}
			paths[r.path] = p
			t.patterns.Handle(r.path, p) // Load has tried it
		}
		for _, method := range r.options.Methods {
			p.byMethod[method] = h
		}
	}
	if c.fallback != nil {
		t.fallback = &routeHandler{g.newRoute(c, c.fallback), "other"}
	}
	t.policy = c.policy()
	return t
}

// find returns the route of a request, or nil. It looks at the path without dots and double
// slashes, so that another spelling does not lead around a route; the service gets the path as it
// came.
func (t *table) find(r *http.Request) *routeHandler {
	clean := path.Clean("/" + r.URL.Path)
	if strings.HasSuffix(r.URL.Path, "/") && clean != "/" {
		clean += "/"
	}
	target := *r.URL
	target.Path, target.RawPath = clean, ""
	found, _ := t.patterns.Handler(&http.Request{Method: http.MethodGet, Host: r.Host, URL: &target})
	p, ok := found.(*pathRoutes)
	if !ok { // no pattern, or a redirect to one
		return t.fallback
	}
	if h := p.byMethod[r.Method]; h != nil {
		return h
	}
	return p.other
}

// policyPath is where clients find the rules.
const policyPath = "/.well-known/idempotency"

// policy returns the document at policyPath: that of the fallback, and those of the routes.
func (c *Config) policy() []byte {
	document := map[string]any{}
	if c.fallback != nil {
		text, _ := c.fallback.options.Policy() // Load has validated the options
		_ = json.Unmarshal(text, &document)
	}
	var routes []any
	for _, r := range c.routes {
		text, _ := r.options.Policy()
		routes = append(routes, map[string]any{"path": r.path, "policy": json.RawMessage(text)})
	}
	if routes != nil {
		document["routes"] = routes
	}
	text, _ := json.Marshal(document) // texts and numbers always encode
	return append(text, '\n')
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	seen := &response{ResponseWriter: w, controls: http.NewResponseController(w)}
	_ = seen.controls.SetWriteDeadline(time.Time{})
	defer seen.deadline(0)
	route, label := g.current.Load().find(r), "none"
	if route != nil {
		label = route.label
	}
	defer func() {
		took := time.Since(began)
		g.metrics.request(label, seen.status, took)
		g.options.Logger.InfoContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path, "route", label,
			"status", seen.status, "replayed", w.Header().Get(idempotency.HeaderReplayed), "key_hash", keyHash(r.Header),
			"took", took)
	}()
	select {
	case g.requests <- struct{}{}:
		defer func() { <-g.requests }()
	default: // before anything of it is read
		w.Header().Set("Retry-After", "1")
		http.Error(seen, "too many requests are under way; nothing was done", http.StatusServiceUnavailable)
		return
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &body{ReadCloser: r.Body, controls: seen.controls}
	}
	switch {
	case r.URL.Path == policyPath && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		seen.Header().Set("Content-Type", "application/json")
		_, _ = seen.Write(g.current.Load().policy) // the client may be gone
	case route == nil:
		seen.Header().Set("Content-Type", "application/problem+json")
		seen.WriteHeader(http.StatusNotFound)
		_, _ = seen.Write([]byte(`{"type":"about:blank","title":"No route of this gateway has this path; nothing was done",` +
			`"status":404,"code":"route-unknown","retryable":false,"action":"fix-request"}` + "\n"))
	default:
		route.ServeHTTP(seen, r)
	}
}

// keyHash returns the beginning of the hash that the store keeps of a key, or "" without one.
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

// admit counts a request of a principal.
func (g *Gateway) admit(principal string) (leave func(), ok bool) {
	g.principals.Lock()
	defer g.principals.Unlock()
	if g.underWay[principal] >= g.options.MaxPerPrincipal {
		return nil, false
	}
	g.underWay[principal]++
	return func() {
		g.principals.Lock()
		defer g.principals.Unlock()
		if g.underWay[principal]--; g.underWay[principal] == 0 {
			delete(g.underWay, principal)
		}
	}, true
}

// trusts reports whether a request comes from a trusted proxy.
func (c *Config) trusts(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	address := peer.Addr().Unmap().WithZone("")
	return slices.ContainsFunc(c.trusted, func(p netip.Prefix) bool { return p.Contains(address) })
}

// Gatherer returns the gateway's metrics.
func (g *Gateway) Gatherer() prometheus.Gatherer { return g.metrics.registry }
