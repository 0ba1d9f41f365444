package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	connectcors "connectrpc.com/cors"
	"github.com/rs/cors"

	"github.com/seqledger/seqledger/internal/wire/message"
)

// forwardedHeaders are headers that a proxy adds to a forwarded request, beside those that begin with forwardedPrefix.
var forwardedHeaders = []string{"Forwarded", "X-Real-Ip", "X-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "Via"}

const forwardedPrefix = "X-Forwarded-"

// checkHost refuses requests whose Host is not this machine, and those that a proxy has forwarded, if nothing else
// protects the server. A foreign web page can make its own name resolve to 127.0.0.1 (DNS rebinding). The browser then
// sends that name as Host, which is the only difference from a local program. A proxy on this machine may set its own
// Host, and would let everyone who can reach it do everything. nginx adds no header unless it is told to, but speaks
// HTTP/1.0, which no client of this server does. A required credential protects, too, because a foreign page has none.
func (s *Server) checkHost(next http.Handler) http.Handler {
	if s.options.Auth != nil || s.options.Insecure {
		return next
	}
	return onlyIf(notLocal, s.admission.Visit, next)
}

// onlyIf refuses requests for which problem returns one. It calls refused before.
func onlyIf(problem func(*http.Request) string, refused func(context.Context), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text := problem(r); text != "" {
			refused(r.Context())
			http.Error(w, text, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// notOfProgram is notLocal for what a page must not ask for either, because it is expensive although the page cannot
// read the answer. A browser sends no Origin with an image or a script, but says that the page is of another site or
// port.
func notOfProgram(r *http.Request) (problem string) {
	if problem := notLocal(r); problem != "" {
		return problem
	}
	const refused = "a page of another origin may not ask for this"
	for _, origin := range r.Header["Origin"] {
		if !sameOrigin(origin, r) {
			return refused
		}
	}
	for _, site := range r.Header["Sec-Fetch-Site"] {
		if site == "cross-site" || site == "same-site" {
			return refused
		}
	}
	return ""
}

// sameOrigin reports whether an origin is that of the host of a request.
func sameOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// notLocal returns why checkHost refuses a request, or "".
func notLocal(r *http.Request) (problem string) {
	const (
		alone  = "this server answers only programs on this machine, and "
		advice = "give the server an auth file (--auth), or open it to everybody who can reach the proxy (--insecure)"
	)
	shown := "" // the first in the order of names, so that one request has one answer
	for name := range r.Header {
		proxied := slices.Contains(forwardedHeaders, name) || strings.HasPrefix(name, forwardedPrefix)
		if proxied && (shown == "" || name < shown) {
			shown = name
		}
	}
	if shown != "" {
		return alone + "the header " + shown + " shows that a proxy has forwarded the request: " + advice
	}
	if !r.ProtoAtLeast(1, 1) {
		return alone + "a request in HTTP/1.0 probably comes from a proxy: " + advice +
			"; a program must speak HTTP/1.1"
	}
	if !loopbackHost(r.Host) {
		return "this server answers only to a loopback Host: localhost, 127.0.0.0/8 or [::1]"
	}
	return ""
}

// loopbackHost reports whether a Host header, with or without a port, names this machine.
func loopbackHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	} else if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		name = host[1 : len(host)-1]
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	// An address with a zone belongs to an interface, so only plain addresses count.
	address, err := netip.ParseAddr(name)
	return err == nil && address.Zone() == "" && address.Unmap().IsLoopback()
}

// loopbackListener reports whether only this machine can reach a listener.
func loopbackListener(l net.Listener) bool {
	tcp, ok := l.Addr().(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// corsMaxAge is how long a browser may cache the answer of a preflight.
const corsMaxAge = 2 * time.Hour

// anyOrigin allows every origin.
const anyOrigin = "*"

// ValidateOrigins checks Options.CORSOrigins, for callers that want to check before New. It refuses values that a
// browser never sends, because they would never match.
func ValidateOrigins(origins []string, authenticated bool) error {
	for _, origin := range origins {
		if origin == anyOrigin {
			if authenticated {
				return fmt.Errorf(
					"server: the CORS origin * together with authentication would let every page use what it has " +
						"got hold of: name the origins")
			}
			continue
		}
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || origin != u.Scheme+"://"+u.Host ||
			strings.ContainsAny(u.Host, "*") || u.Host != strings.ToLower(u.Host) {
			return fmt.Errorf(
				"server: the CORS origin %q must be scheme://host or scheme://host:port in lower case, without "+
					"anything after it", origin)
		}
	}
	return nil
}

// crossOrigin lets pages of the allowed origins call. A preflight has no credential, so it is answered before
// authentication. Cookies are not credentials: the browser is never told to send them.
func (s *Server) crossOrigin(next http.Handler) http.Handler {
	if len(s.options.CORSOrigins) == 0 {
		return next
	}
	headers := append(connectcors.AllowedHeaders(), "Authorization", message.ReadHeader)
	if s.options.MCP != nil {
		headers = append(headers, "Mcp-Protocol-Version", "Mcp-Method", "Mcp-Name")
	}
	return cors.New(cors.Options{
		AllowedOrigins: slices.Clone(s.options.CORSOrigins),
		AllowedMethods: connectcors.AllowedMethods(),
		AllowedHeaders: headers,
		ExposedHeaders: append(connectcors.ExposedHeaders(), "WWW-Authenticate", "Retry-After", "X-Request-Id",
			message.IndexHeader),
		MaxAge: int(corsMaxAge / time.Second),
	}).Handler(next)
}
