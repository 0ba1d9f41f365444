package gateway

import (
	"cmp"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

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
	var found *pathRoutes
	paths, ok := readings(r.URL)
	for i, one := range paths {
		p := t.lookUp(one)
		if i > 0 && p != found {
			return nil, false
		}
		found = p
	}
	switch {
	case !ok:
		return nil, false
	case found == nil:
		return t.fallback, true
	}
	// A preflight belongs to the route of the request that follows it.
	if h := found.byMethod[cmp.Or(preflightFor(r), r.Method)]; h != nil {
		return h, true
	}
	return found.other, true
}

// lookUp returns the routes of a path in its escaped form, or nil. It ignores a trailing slash unless there are routes
// for both, because many services do.
func (t *table) lookUp(escaped string) *pathRoutes {
	if p := t.match(escaped); p != nil {
		return p
	}
	if cut, found := strings.CutSuffix(escaped, "/"); found {
		return t.match(cut)
	}
	return t.match(escaped + "/")
}

func (t *table) match(escaped string) *pathRoutes {
	unescaped, err := url.PathUnescape(escaped)
	if err != nil {
		return nil
	}
	found, _ := t.patterns.Handler(&http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: unescaped, RawPath: escaped},
	})
	p, _ := found.(*pathRoutes) // it may also be a redirect, or a refusal
	return p
}

// readings returns the paths, in escaped form, that services may read from a URL: with double slashes merged or not,
// with an escaped slash as a slash or as a letter, and with or without what follows a semicolon. It returns false for a
// path that no client sends by chance, and that may lead anywhere: one with a dot segment, a backslash or a control
// character.
func readings(u *url.URL) (paths []string, ok bool) {
	decoded, escaped := "/"+strings.TrimPrefix(u.Path, "/"), "/"+strings.TrimPrefix(u.EscapedPath(), "/")
	if strings.ContainsFunc(decoded, func(c rune) bool { return c < ' ' || c == 0x7f || c == '\\' }) {
		return nil, false
	}
	for segment := range strings.SplitSeq(decoded, "/") {
		name, _, _ := strings.Cut(segment, ";")
		if name == "." || name == ".." {
			return nil, false
		}
	}
	merged := (&url.URL{Path: merge(decoded)}).EscapedPath()
	paths = append(paths, merged)
	if !strings.Contains(decoded, "//") && !strings.Contains(decoded, ";") && decoded == escaped {
		return paths, true // almost always
	}
	parts := strings.Split(merge(decoded), "/")
	for i, part := range parts {
		parts[i], _, _ = strings.Cut(part, ";")
	}
	// An empty segment matches no literal segment of a route, and matches every {name}.
	literal := escaped
	for strings.Contains(literal, "//") {
		literal = strings.ReplaceAll(literal, "//", "/%00/")
	}
	return append(paths, (&url.URL{Path: strings.Join(parts, "/")}).EscapedPath(), merge(escaped), literal), true
}

// merge replaces repeated slashes by one.
func merge(p string) string {
	clean := path.Clean(p)
	if strings.HasSuffix(p, "/") && clean != "/" {
		clean += "/"
	}
	return clean
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
	is := func(r *route) bool { return r != nil && r.header != "" && strings.EqualFold(r.header, name) }
	return slices.ContainsFunc(c.routes, is) || is(c.fallback)
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

// imitated reports whether a header with an underscore imitates one that the client may not send, because services
// behind CGI or WSGI do not distinguish _ from -.
func (c *Config) imitated(name string) bool {
	name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
	header := http.Header{name: nil}
	idempotency.StripHeaders(header)
	return len(header) == 0 || name == idempotency.HeaderKey || c.principalHeader(name) || saidByProxies(name) ||
		slices.Contains(idempotency.MethodHeaders, name)
}

// keep restores the headers that the client's Connection header may have removed on the way to the service. No client
// may hide the key, what the gateway says about it, or the principal.
func (r *route) keep(out, in http.Header) {
	for _, name := range []string{
		idempotency.HeaderKey, idempotency.HeaderAttempt, idempotency.HeaderFence, "Authorization",
		http.CanonicalHeaderKey(r.header),
	} {
		if values, ok := in[name]; ok && name != "" {
			out[name] = values
		}
	}
}
