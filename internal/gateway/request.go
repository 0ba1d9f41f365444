package gateway

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/seqledger/seqledger/client/idempotency"
)

// The rule of a route must hold however a client spells its request. So a request that two programs may read
// differently is refused where it matters, and headers that only the gateway or a trusted proxy may send do not reach
// the service, even in other spellings that some services treat as the same.

// find returns the route of a request, or nil. It returns false if the service may read the path as a different one:
// the service gets the path unchanged, and must not see a path to which no rule was applied.
func (t *table) find(r *http.Request) (route *routeHandler, ok bool) {
	if !t.strict {
		return t.fallback, true
	}
	paths, ok := readings(r.URL)
	if !ok {
		return nil, false
	}
	found := t.lookUp(paths[0])
	for _, one := range paths[1:] {
		if t.lookUp(one) != found {
			return nil, false
		}
	}
	if found == nil {
		return t.fallback, true
	}
	// A preflight belongs to the route of the request that follows it.
	if h := found.byMethod[cmp.Or(preflightFor(r), r.Method)]; h != nil {
		return h, true
	}
	return found.other, true
}

// lookUp returns the routes of a path, or nil. It ignores a slash at the end unless there are routes for both, because
// many services do.
func (t *table) lookUp(p segments) *pathRoutes {
	if found := t.match(p); found != nil {
		return found
	}
	switch last := len(p) - 1; {
	case p[last] != "":
		return t.match(append(slices.Clip(p), ""))
	case last > 0:
		return t.match(p[:last])
	}
	return nil
}

// match returns the routes of exactly this path, or nil.
func (t *table) match(p segments) *pathRoutes {
	escaped := p.String()
	unescaped, err := url.PathUnescape(escaped)
	if err != nil {
		return nil
	}
	found, _ := t.patterns.Handler(&http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: unescaped, RawPath: escaped},
	})
	routes, _ := found.(*pathRoutes) // it may also be a redirect, or a refusal
	return routes
}

// segments are the segments of a path, without escapes. The last one is empty if the path ends with a slash.
type segments []string

// String returns the path, escaped. An empty segment in the middle, and one that is a slash, would not reach the
// patterns of http.ServeMux as they are: they become one that only a wildcard matches.
func (p segments) String() string {
	var path strings.Builder
	for i, segment := range p {
		if segment == "" && i < len(p)-1 || segment == "/" {
			segment = "\x00"
		}
		path.WriteString("/" + url.PathEscape(segment))
	}
	return path.String()
}

// each returns the path with every segment replaced by those that change returns.
func (p segments) each(change func(segment string) []string) segments {
	var changed segments
	for _, segment := range p {
		changed = append(changed, change(segment)...)
	}
	return changed
}

// respellings are the ways in which services read a path differently from how it is written, in the order in which they
// would be applied.
var respellings = []func(segments) segments{
	// An escape that is escaped itself is decoded once more.
	func(p segments) segments {
		return p.each(func(segment string) []string {
			if decoded, err := url.PathUnescape(segment); err == nil {
				segment = decoded
			}
			return []string{segment}
		})
	},
	// An escaped question mark or number sign ends the path.
	func(p segments) segments {
		for i, segment := range p {
			if end := strings.IndexAny(segment, "?#"); end >= 0 {
				return append(slices.Clone(p[:i]), segment[:end])
			}
		}
		return p
	},
	splitEscaped,
	// What follows a semicolon is a parameter of the segment.
	func(p segments) segments {
		return p.each(func(segment string) []string {
			name, _, _ := strings.Cut(segment, ";")
			return []string{name}
		})
	},
	splitEscaped, // services do this before or after they look for parameters
	// Dots and spaces at the end of a name do not count.
	func(p segments) segments {
		return p.each(func(segment string) []string {
			if cut := strings.TrimRight(segment, ". "); cut != "" {
				segment = cut
			}
			return []string{segment}
		})
	},
	// Repeated slashes are one.
	func(p segments) segments {
		var merged segments
		for i, segment := range p {
			if segment != "" || i == len(p)-1 {
				merged = append(merged, segment)
			}
		}
		return merged
	},
}

// splitEscaped takes an escaped slash for a slash.
func splitEscaped(p segments) segments {
	return p.each(func(segment string) []string { return strings.Split(segment, "/") })
}

// readings returns the paths that services may read from a URL, by every combination of the respellings. It returns
// false for a path that no client sends by chance, and that may lead anywhere: one with a dot segment, a backslash, a
// control character or bytes that are not UTF-8.
func readings(u *url.URL) (all []segments, ok bool) {
	var written segments
	for segment := range strings.SplitSeq(strings.TrimPrefix(u.EscapedPath(), "/"), "/") {
		decoded, err := url.PathUnescape(segment)
		if err != nil {
			return nil, false
		}
		written = append(written, decoded)
	}
	all = []segments{written}
	for _, respell := range respellings {
		for _, p := range all { // the range is over those before this respelling
			if other := respell(p); !slices.Equal(other, p) {
				all = append(all, other)
			}
		}
	}
	for _, p := range all {
		if slices.ContainsFunc(p, isHazard) {
			return nil, false
		}
	}
	return all, true
}

// isHazard reports whether a segment may lead anywhere.
func isHazard(segment string) bool {
	name := strings.ReplaceAll(segment, " ", "")
	return name == "." || name == ".." || !utf8.ValidString(segment) ||
		strings.ContainsFunc(segment, func(c rune) bool { return c < ' ' || c == 0x7f || c == '\\' })
}

// saidByProxies reports whether a header is one in which a proxy says where a request comes from, for whom it is, or
// which method and path it had: services believe it. See also idempotency.MethodHeaders.
func saidByProxies(name string) bool {
	return slices.ContainsFunc(proxyPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) ||
		slices.Contains(proxyHeaders, name)
}

var (
	proxyPrefixes = []string{"X-Forwarded-", "X-Original-", "X-Rewrite-", "X-Ssl-", "X-Envoy-"}
	proxyHeaders  = []string{
		"Forwarded", "Proxy", "X-Real-Ip", "X-Client-Ip", "Client-Ip", "X-Cluster-Client-Ip", "True-Client-Ip",
		"Cf-Connecting-Ip", "Fastly-Client-Ip", "Fly-Client-Ip", "X-Remote-Ip", "X-Remote-Addr", "X-Remote-User",
		"Remote-User", "X-Host", "X-Scheme", "X-Url-Scheme", "Front-End-Https",
	}
)

// principalHeader reports whether a header is the principal_header of a route. A service may have many routes, and
// believe it on each of them.
func (c *Config) principalHeader(name string) bool {
	return c.anyRoute(func(r *route) bool { return r.header != "" && strings.EqualFold(r.header, name) })
}

// anyRoute reports whether it is so for a route.
func (c *Config) anyRoute(is func(*route) bool) bool {
	return slices.ContainsFunc(c.routes, is) || c.fallback != nil && is(c.fallback)
}

// strip removes headers that the client may not send to a route.
func (c *Config) strip(r *http.Request, route *route) {
	trusted := c.trusts(r)
	delete(r.Header, "Proxy") // CGI would make it HTTP_PROXY, and no proxy sends it
	if !slices.Contains(route.options.Methods, r.Method) {
		for _, name := range idempotency.MethodHeaders {
			r.Header.Del(name)
		}
	}
	// A tunnel of HTTP/2 would lead to the service past all of this. Clients that offer it do without.
	if isH2C(r.Header) {
		r.Header.Del("Upgrade")
		r.Header.Del("Http2-Settings")
	}
	for name := range r.Header {
		if said := saidByProxies(name) || c.principalHeader(name); said && !trusted ||
			strings.Contains(name, "_") && c.imitated(name) {
			delete(r.Header, name)
		}
	}
}

// isH2C reports whether a request offers to go on in HTTP/2 without TLS.
func isH2C(header http.Header) bool {
	for _, value := range header["Upgrade"] {
		for protocol := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(protocol), "h2c") {
				return true
			}
		}
	}
	return false
}

// imitated reports whether a header with an underscore imitates one that the client may not send, because services that
// use CGI or WSGI do not distinguish _ from -.
func (c *Config) imitated(name string) bool {
	name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
	header := http.Header{name: nil}
	idempotency.StripHeaders(header)
	return len(header) == 0 || name == idempotency.HeaderKey || c.principalHeader(name) || saidByProxies(name) ||
		c.anyRoute(func(r *route) bool { return slices.Contains(r.identifying, name) }) ||
		slices.Contains(idempotency.MethodHeaders, name)
}

// keep restores the headers that the client's Connection header may have removed on the way to the service. No client
// may hide the key, what the gateway says about it, the principal, or what the gateway has compared.
func (r *route) keep(out, in http.Header) {
	for _, name := range append([]string{
		idempotency.HeaderKey, idempotency.HeaderAttempt, idempotency.HeaderFence, "Authorization",
		http.CanonicalHeaderKey(r.header),
	}, r.identifying...) {
		if values, ok := in[name]; ok && name != "" {
			out[name] = values
		}
	}
}
