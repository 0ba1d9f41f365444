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
	"strconv"
	"strings"
	"time"

	"github.com/rs/cors"
	"go.yaml.in/yaml/v3"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/address"
	"github.com/seqledger/seqledger/internal/yamlfile"
	"github.com/seqledger/seqledger/server/auth"
)

// Settings are what the flags set for every request, and what a route in the file sets for its own requests.
type Settings struct {
	// Upstream is the service: an http or https URL, with an optional path that is prepended to that of each request.
	Upstream string
	// Timeout is how long the service may take until it sends the response header; 0 means no limit. If it takes
	// longer, the outcome of the request is unknown.
	Timeout time.Duration
	// IdleTimeout is how long an unused connection to the service is kept, at most; 0 keeps none. The service may
	// announce a shorter time, and requests with a key only get a connection that was used a moment ago.
	IdleTimeout time.Duration

	Methods                []string // for which a key is honored
	Required, Strict, Open bool     // see [idempotency.Options]
	Fingerprint            string   // raw, jcs, pointers or none
	Pointers               []string
	MaxBody                int64 // bytes
	TTL, RejectedTTL, Wait time.Duration
	Lease                  time.Duration
	OnLeaseExpired         string // indeterminate or takeover
	// ServerErrors are indeterminate, release or store, for all responses of 500 or more, or for a status: 503=release.
	ServerErrors   []string
	EffectFree     []string
	Stored         string // response or outcome
	StoredHeaders  []string
	ReplayStatus   string // original or 200
	MismatchStatus string // 422 or 409
	FreshFields    []string
	// ReplayCheck is a method and a path, such as "GET /may", to which the service answers 2xx if a caller may see a
	// stored response; empty disables the check.
	ReplayCheck string

	// CORSOrigins are the origins, such as https://shop.example, whose pages may read the responses; if empty, the
	// service decides.
	CORSOrigins []string

	// At most one of these says who sends a request: a header set by a trusted proxy, a claim of a session token, or
	// Shared for all callers together. The default is the Authorization header.
	PrincipalHeader, PrincipalClaim string
	Shared                          bool
	// Principal lists what tells the senders of requests apart; see [idempotency.Options.Identity]. Nil means
	// authorization, unless another setting says who sends a request, and host.
	Principal []string
	// RequestHeaders and VisitorHeader are as in [idempotency.Options].
	RequestHeaders []string
	VisitorHeader  string
}

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
	check         *check
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

// check is the request sent to the service before a replay.
type check struct{ method, path string }

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
	"fingerprint", "pointers",
	"max_body", "ttl", "rejected_ttl", "wait", "lease", "on_lease_expired", "server_errors", "effect_free", "stored",
	"stored_headers", "replay_status", "mismatch_status", "fresh_fields", "replay_check", "cors_origins",
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
		one := s.route(func(field, format string, args ...any) { o.Fail(field, format, args...) })
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

// readSettings reads the fields of a route; absent fields keep their values in s.
func readSettings(o *yamlfile.Object, s Settings) Settings {
	list := func(name string, to *[]string) {
		if o.Has(name) {
			*to = append([]string{}, o.Texts(name, 100)...) // empty is not absent
		}
	}
	s.Upstream = o.Optional("upstream", s.Upstream)
	s.Timeout = o.Duration("upstream_timeout", s.Timeout)
	s.IdleTimeout = o.Duration("upstream_idle_timeout", s.IdleTimeout)
	list("methods", &s.Methods)
	s.Required, s.Strict = o.Bool("required", s.Required), o.Bool("strict", s.Strict)
	s.Open, s.Shared = o.Bool("open", s.Open), o.Bool("shared", s.Shared)
	s.Fingerprint = o.Optional("fingerprint", s.Fingerprint)
	list("pointers", &s.Pointers)
	if o.Has("max_body") {
		s.MaxBody = int64(o.Count("max_body", 1, maxBody))
	}
	s.TTL, s.RejectedTTL = o.Duration("ttl", s.TTL), o.Duration("rejected_ttl", s.RejectedTTL)
	s.Wait, s.Lease = o.Duration("wait", s.Wait), o.Duration("lease", s.Lease)
	s.OnLeaseExpired = o.Optional("on_lease_expired", s.OnLeaseExpired)
	if o.Has("server_errors") {
		s.ServerErrors = o.Pairs("server_errors")
	}
	list("effect_free", &s.EffectFree)
	s.Stored = o.Optional("stored", s.Stored)
	list("stored_headers", &s.StoredHeaders)
	s.ReplayStatus = o.Optional("replay_status", s.ReplayStatus)
	s.MismatchStatus = o.Optional("mismatch_status", s.MismatchStatus)
	list("fresh_fields", &s.FreshFields)
	s.ReplayCheck = o.Optional("replay_check", s.ReplayCheck)
	list("cors_origins", &s.CORSOrigins)
	if o.Has("principal_header") || o.Has("principal_claim") || o.Has("shared") {
		s.PrincipalHeader, s.PrincipalClaim = "", ""
		s.Shared = o.Bool("shared", false)
		// The setting says who sends a request, in place of the credential.
		s.Principal = slices.DeleteFunc(slices.Clone(s.Principal), isCredential)
	}
	s.PrincipalHeader = o.Optional("principal_header", s.PrincipalHeader)
	s.PrincipalClaim = o.Optional("principal_claim", s.PrincipalClaim)
	list("principal", &s.Principal)
	list("request_headers", &s.RequestHeaders)
	s.VisitorHeader = o.Optional("visitor_header", s.VisitorHeader)
	return s
}

// maxBody is the upper limit for the max_body of a route, because the body of a keyed request is held in memory.
const maxBody = 64 << 20

// route returns the route for the settings and reports their mistakes.
func (s *Settings) route(report func(field, format string, args ...any)) *route {
	choice := func(field, value string, words ...string) string {
		if !slices.Contains(words, value) {
			report(field, "must be %s, is %q", strings.Join(words, " or "), yamlfile.Clip(value))
		}
		return value
	}
	o := idempotency.Options{
		Settings: idempotency.Settings{TTL: s.TTL, RejectedTTL: s.RejectedTTL, Wait: s.Wait, Lease: s.Lease},
		Required: s.Required, Strict: s.Strict, Open: s.Open, Shared: s.Shared, Pointers: s.Pointers,
		MaxBody: s.MaxBody, FreshFields: s.FreshFields, RequestHeaders: s.RequestHeaders,
		VisitorHeader: s.VisitorHeader, StoredHeaders: s.StoredHeaders,
	}
	// 0 disables the wait here and means the default there, so that it has to be negative.
	if s.Wait == 0 {
		o.Wait = -1
	}
	o.Fingerprint = map[string]idempotency.FingerprintMode{
		"raw": idempotency.FingerprintRaw, "jcs": idempotency.FingerprintJCS,
		"pointers": idempotency.FingerprintPointers, "none": idempotency.FingerprintNone,
	}[choice("fingerprint", s.Fingerprint, "raw", "jcs", "pointers", "none")]
	if choice("on_lease_expired", s.OnLeaseExpired, "indeterminate", "takeover") == "takeover" {
		o.OnLeaseExpired = idempotency.TakeOver
	}
	o.OutcomeOnly = choice("stored", s.Stored, "response", "outcome") == "outcome"
	if choice("replay_status", s.ReplayStatus, "original", "200") == "200" {
		o.ReplayStatus = http.StatusOK
	}
	o.MismatchStatus = http.StatusUnprocessableEntity
	if choice("mismatch_status", s.MismatchStatus, "422", "409") == "409" {
		o.MismatchStatus = http.StatusConflict
	}
	s.readMethods(report, &o)
	s.readStatuses(report, &o)
	s.readServerErrors(report, &o)
	s.checkTimes(report)
	one := &route{
		upstream: s.upstreamURL(report), connections: connections{s.Timeout, s.IdleTimeout},
		header: s.PrincipalHeader, claim: s.PrincipalClaim,
		options: o, check: s.readCheck(report),
	}
	s.checkPrincipal(report)
	one.options.Identity = s.identity(report)
	s.checkPointers(report)
	s.readOrigins(report)
	one.cors = newCORS(s.CORSOrigins)
	return one
}

// upstreamURL returns the URL of the service, or nil.
func (s *Settings) upstreamURL(report func(field, format string, args ...any)) *url.URL {
	if s.Upstream == "" {
		return nil
	}
	upstream, err := url.Parse(s.Upstream)
	switch {
	case err != nil || upstream.Host == "" || upstream.Scheme != "http" && upstream.Scheme != "https":
		report("upstream", "must be an http or https URL, such as http://127.0.0.1:8080")
	case upstream.RawQuery != "" || upstream.Fragment != "" || upstream.User != nil:
		report("upstream", "must not have a user, a query or a fragment")
	}
	return upstream
}

func (s *Settings) readMethods(report func(field, format string, args ...any), o *idempotency.Options) {
	if len(s.Methods) == 0 {
		report("methods", "must have one method")
	}
	for _, method := range s.Methods {
		method = strings.ToUpper(method)
		switch {
		case method == http.MethodHead || method == http.MethodOptions:
			report("methods", "%s has no effects to repeat", method)
		case method == "" || method == http.MethodConnect || strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "":
			report("methods", "%q must be a method, such as POST", yamlfile.Clip(method))
		}
		o.Methods = append(o.Methods, method)
	}
}

// readStatuses reads effect_free.
func (s *Settings) readStatuses(report func(field, format string, args ...any), o *idempotency.Options) {
	for _, text := range s.EffectFree {
		status, err := strconv.Atoi(text)
		if _, wrong := (idempotency.Options{ReleaseStatuses: []int{status}}).Policy(); err != nil || wrong != nil {
			report("effect_free", "%q must be one of 401, 403, 407, 408, 409, 423, 425, 429", yamlfile.Clip(text))
		}
		o.ReleaseStatuses = append(o.ReleaseStatuses, status)
	}
}

// readServerErrors reads server_errors: a word for all statuses, and words for single ones.
func (s *Settings) readServerErrors(report func(field, format string, args ...any), o *idempotency.Options) {
	words := map[string]idempotency.Disposition{
		"indeterminate": idempotency.LeaveUnknown, "release": idempotency.ReleaseKey, "store": idempotency.StoreResult,
	}
	o.StatusErrors = map[int]idempotency.Disposition{}
	given := map[string]bool{}
	for _, text := range s.ServerErrors {
		status, word, found := strings.Cut(text, "=")
		if !found {
			status, word = "default", text
		}
		disposition, ok := words[word]
		number, err := strconv.Atoi(status)
		switch {
		case !ok:
			report("server_errors", "must be indeterminate or release or store, is %q", yamlfile.Clip(word))
		case given[status]:
			report("server_errors", "%s was given already", yamlfile.Clip(status))
		case status == "default":
			o.ServerErrors = disposition
		case err != nil || number < 500 || number > 599:
			report("server_errors", "%q must be a status of 500 to 599, or default", yamlfile.Clip(status))
		default:
			o.StatusErrors[number] = disposition
		}
		given[status] = true
	}
	for _, name := range s.StoredHeaders {
		if _, err := (idempotency.Options{StoredHeaders: []string{name}}).Policy(); err != nil {
			report("stored_headers", "%q must be the name of a header that belongs to a response, and not to one "+
				"delivery of it, as cookies, credentials and those of CORS do", yamlfile.Clip(name))
		}
	}
}

func (s *Settings) checkTimes(report func(field, format string, args ...any)) {
	within := func(field string, d, least, most time.Duration) {
		if d < least || d > most {
			report(field, "must be from %v to %v, is %v", least, most, d)
		}
	}
	within("wait", s.Wait, 0, idempotency.MaxWait)
	within("lease", s.Lease, idempotency.MinLease, idempotency.MaxLease)
	within("ttl", s.TTL, idempotency.MinTTL, idempotency.MaxTTL)
	within("rejected_ttl", s.RejectedTTL, idempotency.MinTTL, idempotency.MaxTTL)
	within("upstream_timeout", s.Timeout, 0, 24*time.Hour)
	within("upstream_idle_timeout", s.IdleTimeout, 0, 10*time.Minute)
	if s.MaxBody < 1 || s.MaxBody > maxBody {
		report("max_body", "must be 1 to %d bytes", maxBody)
	}
}

func (s *Settings) readCheck(report func(field, format string, args ...any)) *check {
	if s.ReplayCheck == "" {
		return nil
	}
	method, path, found := strings.Cut(s.ReplayCheck, " ")
	if target, err := url.Parse(path); !found || err != nil || !strings.HasPrefix(path, "/") || target.Host != "" ||
		method != http.MethodGet && method != http.MethodHead && method != http.MethodPost {
		report("replay_check", "must be GET, HEAD or POST, a space and a path, such as GET /may-read")
	}
	return &check{method, path}
}

func (s *Settings) checkPrincipal(report func(field, format string, args ...any)) {
	if s.PrincipalHeader != "" && s.PrincipalClaim != "" {
		report("principal_claim", "and principal_header: give one of them")
	}
	if s.Shared && s.PrincipalHeader+s.PrincipalClaim != "" {
		report("shared", "means that all callers are one principal; leave out principal_header and principal_claim")
	}
	if strings.ContainsFunc(s.PrincipalHeader, func(c rune) bool {
		return c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
	}) {
		report("principal_header", "must be the name of a header, such as X-User")
	}
}

// identity returns what tells the senders of requests apart.
func (s *Settings) identity(report func(field, format string, args ...any)) []string {
	list := s.Principal
	switch known := s.Shared || s.PrincipalHeader+s.PrincipalClaim != ""; {
	case list == nil && known:
		list = []string{idempotency.IdentityHost}
	case list == nil:
		list = []string{idempotency.IdentityAuthorization, idempotency.IdentityHost}
	case known && slices.ContainsFunc(list, isCredential):
		report("principal", "must not have authorization where principal_header, principal_claim or shared says who "+
			"sends a request")
		return list
	}
	o := idempotency.Options{
		Identity: list, Shared: s.Shared, RequestHeaders: s.RequestHeaders, VisitorHeader: s.VisitorHeader,
	}
	if s.PrincipalHeader+s.PrincipalClaim != "" {
		o.Shared, o.Principal = false, func(context.Context, http.Header) (string, error) { return "", nil }
	}
	if s.ReplayCheck != "" {
		o.AllowReplay = func(*http.Request) (bool, error) { return false, nil }
	} else if slices.Contains(list, idempotency.IdentityAuthorizationID) {
		report("principal", "authorization-id is no secret: it needs a replay_check, which asks the service whether a "+
			"caller may see a stored response")
		return list
	}
	if _, err := o.Policy(); err != nil {
		field, problem := "principal", err.Error()
		if wrong, ok := errors.AsType[*idempotency.InvalidError](err); ok {
			problem = wrong.Problem
			field = cmp.Or(map[string]string{
				"RequestHeaders": "request_headers", "VisitorHeader": "visitor_header",
			}[wrong.Field], field)
		}
		report(field, "%s", problem)
	}
	return list
}

// isCredential reports whether an element of a list of principals says who sends a request.
func isCredential(word string) bool {
	word = strings.ToLower(word)
	return word == idempotency.IdentityAuthorization || word == idempotency.IdentityAuthorizationID
}

func (s *Settings) checkPointers(report func(field, format string, args ...any)) {
	if (s.Fingerprint == "pointers") != (len(s.Pointers) > 0) {
		report("pointers", "belong to fingerprint pointers, which needs one at least")
	}
	each := func(field string, pointers []string) {
		for _, pointer := range pointers {
			if _, err := (idempotency.Options{FreshFields: []string{pointer}}).Policy(); err != nil {
				report(field, "%q must be a JSON pointer, such as /requestId", yamlfile.Clip(pointer))
			}
		}
	}
	each("pointers", s.Pointers)
	each("fresh_fields", s.FreshFields)
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
