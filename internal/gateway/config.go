package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rs/cors"
	"go.yaml.in/yaml/v3"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/address"
	"github.com/seqledger/seqledger/internal/yamlfile"
	"github.com/seqledger/seqledger/server/auth"
)

// File is the source of a gateway's configuration.
type File struct {
	// Default applies to requests that no route matches, if it has an Upstream, and provides the defaults of each
	// route.
	Default Settings
	// TrustedProxies are the networks, in CIDR notation, whose PrincipalHeader and X-Forwarded-* are trusted.
	TrustedProxies []string
	// Path is the file name used in error messages. Routes and JWT are its sections; either may be nil.
	Path        string
	Routes, JWT *yaml.Node
	// Listen is the address of the gateway itself, which cannot be an upstream; it may be empty.
	Listen string
	// MaxTTL is the longest time for which the store keeps what has ended; 0 for as long as it is asked to.
	MaxTTL time.Duration
}

// checkTimes reports what a route wants to keep for longer than the store does.
func (f *File) checkTimes(s *idempotency.Settings, report func(field, format string, args ...any)) {
	for _, kept := range []struct {
		field string
		time  time.Duration
	}{{"ttl", s.TTL}, {"rejected_ttl", s.RejectedTTL}, {"forget_after", s.ForgetAfter}} {
		if f.MaxTTL > 0 && kept.time > f.MaxTTL {
			report(kept.field, "must be at most %v, because the store deletes what is older", f.MaxTTL)
		}
	}
}

// SettingError is a mistake in [File.Default] or TrustedProxies.
type SettingError struct {
	Field   string // as in the file, for example rejected_ttl
	Problem string
}

// Error implements error.
func (e *SettingError) Error() string { return e.Field + ": " + e.Problem }

// Config is a valid configuration.
type Config struct {
	routes   []*route
	fallback *route // nil: requests that no route matches are refused
	trusted  []netip.Prefix
	tokens   *tokens // nil: there is no section jwt
}

// Routes returns the number of routes.
func (c *Config) Routes() int { return len(c.routes) }

// route says how the requests for a path are handled.
type route struct {
	path     string // a pattern of http.ServeMux, or "" for the fallback
	upstream *url.URL
	connections

	header, claim string   // of the principal; at most one is set
	identifying   []string // canonical names of the headers that are compared
	check         *replayCheck
	cors          *cors.Cors // nil: left to the service
	options       idempotency.Options
}

// serves returns the route of a pattern and a method, which may be the fallback, or nil.
func (c *Config) serves(path, method string) *route {
	for _, r := range c.routes {
		if r.path == path && slices.Contains(r.options.Methods, method) {
			return r
		}
	}
	return c.fallback
}

// warnOfNewIdentities logs what changes whether a request repeats one from before: its principal, or which part of the
// body is compared.
func (c *Config) warnOfNewIdentities(logger *slog.Logger, old *Config) {
	said := map[string]bool{}
	for _, r := range slices.Concat(old.routes, c.routes, []*route{cmp.Or(c.fallback, old.fallback)}) {
		if r == nil {
			continue
		}
		for _, method := range r.options.Methods {
			was, is := old.serves(r.path, method), c.serves(r.path, method)
			if was == nil || is == nil || said[r.label()] {
				continue
			}
			if problem := is.newIdentity(was); problem != "" {
				said[r.label()] = true
				logger.Warn(problem, "route", r.label())
			}
		}
	}
}

// newIdentity returns what a request that repeats one from before looks like to r, in place of another route; "" for
// the same.
func (r *route) newIdentity(old *route) string {
	switch o, was := &r.options, &old.options; {
	case r.header != old.header || r.claim != old.claim || o.Shared != was.Shared ||
		o.VisitorHeader != was.VisitorHeader || !slices.Equal(o.Identity, was.Identity):
		return "the principal of a route has changed: a request from before that is repeated now runs again"
	case o.Fingerprint != was.Fingerprint || !slices.Equal(o.Pointers, was.Pointers) ||
		!slices.Equal(o.RequestHeaders, was.RequestHeaders):
		return "the fingerprint of a route has changed: a repeat of a request from before does not look like it"
	}
	return ""
}

// label is the name of the route in the metrics.
func (r *route) label() string { return cmp.Or(r.path, "other") }

// replayCheck is the request sent to the service before a replay.
type replayCheck struct{ method, path string }

// maxRoutes bounds the routes of a file, because each has its own counters.
const maxRoutes = 1000

// Load reads a configuration. The error joins a [*SettingError] or a [*yamlfile.Error] for each mistake.
func Load(f *File) (*Config, error) {
	c, r := new(Config), yamlfile.NewReader(f.Path)
	var problems []error
	report := func(field, format string, args ...any) {
		problems = append(problems, &SettingError{field, fmt.Sprintf(format, args...)})
	}
	for _, text := range f.TrustedProxies {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			report("trusted_proxies", "%q must be a network in CIDR notation, such as 10.0.0.0/8", yamlfile.Clip(text))
		}
		c.trusted = append(c.trusted, prefix.Masked())
	}
	for _, section := range []*yaml.Node{f.Routes, f.JWT} {
		if section == nil {
			continue
		}
		if alias := yamlfile.FindAlias(section); alias != nil {
			r.Fail(alias, "", "anchors and aliases (& and *name) are not taken here")
			return nil, r.Err()
		}
	}
	if f.JWT != nil {
		c.tokens = readTokens(r, f.JWT, filepath.Dir(f.Path))
	}
	if fallback := f.Default.route(report); f.Default.Upstream != "" {
		f.checkTimes(&fallback.options.Settings, report)
		c.fallback = fallback
		c.identify(fallback)
		if fallback.claim != "" && f.JWT == nil {
			report("principal_claim", "needs the section jwt of a configuration file, which says whose tokens are "+
				"taken")
		}
	}
	if f.Default.PrincipalHeader != "" && len(f.TrustedProxies) == 0 {
		report("principal_header", "%s", needsProxies)
	}
	if f.Routes != nil {
		c.readRoutes(r, f)
	}
	if f.Default.Upstream == "" && f.Routes == nil {
		report("upstream", "is required, for every path or in each route of a configuration file")
	}
	for _, one := range append([]*route{c.fallback}, c.routes...) {
		if one != nil && one.upstream != nil && isItself(f.Listen, one.upstream) {
			report("upstream", "%s is this gateway, which listens on %s: name the service", one.upstream, f.Listen)
			break
		}
	}
	return c, errors.Join(append(problems, r.Err())...)
}

// isItself reports whether a URL leads to a program that listens on an address. A name that cannot be resolved leads
// nowhere.
func isItself(listen string, u *url.URL) bool {
	own, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil || own.Port == 0 || !strings.HasSuffix(address.Of(u), fmt.Sprintf(":%d", own.Port)) {
		return false
	}
	to, err := net.ResolveTCPAddr("tcp", address.Of(u))
	if err != nil {
		return false
	}
	if len(own.IP) > 0 && !own.IP.IsUnspecified() {
		return to.IP.Equal(own.IP) || to.IP.IsUnspecified() && own.IP.IsLoopback()
	}
	local, err := net.InterfaceAddrs()
	isLocal := func(a net.Addr) bool {
		network, ok := a.(*net.IPNet)
		return ok && network.IP.Equal(to.IP)
	}
	return err == nil && (to.IP.IsLoopback() || to.IP.IsUnspecified() || slices.ContainsFunc(local, isLocal))
}

const needsProxies = "needs trusted_proxies: the networks of those that set it, because a client could set it, too"

// routeFields are the fields of a route.
var routeFields = []string{
	"path", "methods", "upstream", "upstream_timeout", "upstream_idle_timeout", "required", "strict", "open",
	"fingerprint", "pointers", "max_body", "ttl", "rejected_ttl", "forget_after", "wait", "lease", "on_lease_expired",
	"server_errors", "effect_free", "stored", "stored_headers", "replay_status", "mismatch_status", "fresh_fields",
	"replay_check", "cors_origins",
	"principal_header", "principal_claim", "shared", "principal", "request_headers", "visitor_header",
}

// identify sets who sends the requests of a route, and which headers that depends on.
func (c *Config) identify(r *route) {
	r.options.Principal = c.principal(r)
	if r.check != nil {
		r.options.AllowReplay = func(*http.Request) (bool, error) { return false, nil } // newRoute sets the real one
	}
	r.identifying, _ = r.options.ComparedHeaders() // Settings.identity has reported the error
}

// readRoutes reads the section routes.
func (c *Config) readRoutes(r *yamlfile.Reader, f *File) {
	if f.Routes.Kind != yaml.SequenceNode || len(f.Routes.Content) == 0 || len(f.Routes.Content) > maxRoutes {
		r.Fail(f.Routes, "routes", "must be a list of 1 to %d routes", maxRoutes)
		return
	}
	lines := map[string]int{} // by path and method
	patterns, tried := http.NewServeMux(), map[string]bool{}
	for i, n := range f.Routes.Content {
		o := r.Object(n, fmt.Sprintf("routes[%d]", i), routeFields...)
		if n.Kind != yaml.MappingNode {
			continue
		}
		before := r.Failures()
		s := readSettings(o, f.Default)
		report := func(field, format string, args ...any) { o.Fail(field, format, args...) }
		one := s.route(report)
		f.checkTimes(&one.options.Settings, report)
		c.identify(one)
		if one.path = o.Text("path"); one.path != "" && !tried[one.path] {
			// Once for each path, because it may come again with other methods, and the mux would call that a conflict.
			tried[one.path] = true
			if problem := tryPattern(patterns, one.path); problem != "" {
				o.Fail("path", "%s", problem)
			}
		}
		if s.Upstream == "" {
			o.Fail("upstream", "is required, here or before the routes")
		}
		if one.claim != "" && f.JWT == nil {
			o.Fail("principal_claim", "needs the section jwt, which says whose tokens are taken")
		}
		if o.Has("principal_header") && len(f.TrustedProxies) == 0 {
			o.Fail("principal_header", "%s", needsProxies)
		}
		if r.Failures() > before {
			continue
		}
		for _, method := range one.options.Methods {
			name := one.path + " " + method
			if line := lines[name]; line > 0 {
				o.Fail("methods", "%s of this path was given at line %d already", method, line)
			}
			lines[name] = n.Line
		}
		c.routes = append(c.routes, one)
	}
}

// tryPattern adds a pattern and returns the mistake in it, or "".
func tryPattern(mux *http.ServeMux, pattern string) (problem string) {
	if !strings.HasPrefix(pattern, "/") {
		return "must begin with a slash, such as /orders, /orders/{id} or /orders/ with everything below it"
	}
	defer func() {
		if cause := recover(); cause != nil { // http.ServeMux panics on a bad pattern
			problem = fmt.Sprintf("%q: %s", yamlfile.Clip(pattern), patternProblem(fmt.Sprint(cause)))
		}
	}()
	mux.Handle(pattern, http.NotFoundHandler())
	return ""
}

// patternProblem shortens the message of http.ServeMux, because it names lines of this program rather than of the file.
func patternProblem(text string) string {
	if _, rest, found := strings.Cut(text, "conflicts with pattern "); found {
		other, _, _ := strings.Cut(rest, " (registered")
		return "matches some paths that " + other + " matches, too, and neither is more specific"
	}
	if _, rest, found := strings.Cut(text, "parsing "); found {
		if _, reason, found := strings.Cut(rest, ": "); found {
			return reason
		}
	}
	return text
}

// readTokens reads the section jwt.
func readTokens(r *yamlfile.Reader, n *yaml.Node, dir string) *tokens {
	t := new(tokens)
	o := r.Object(n, "jwt", "issuer", "audience", "algorithms", "jwks", "leeway")
	v := auth.ReadVerifier(r, o, func(name string) ([]byte, error) {
		if strings.Contains(name, "://") {
			t.url = name
			return fetchJWKS(context.Background(), name)
		}
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return auth.ReadFile(name, nil)
	})
	t.verifier.Store(v)
	return t
}
