package server

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	connectcors "connectrpc.com/cors"
	"github.com/rs/cors"
)

// corsMaxAge is how long a browser may cache the answer of a preflight.
const corsMaxAge = 2 * time.Hour

// anyOrigin stands for every origin.
const anyOrigin = "*"

// ValidateOrigins checks Options.CORSOrigins, for callers that want to check before New. It
// refuses values that a browser never sends, because they would never match.
func ValidateOrigins(origins []string, authenticated bool) error {
	for _, origin := range origins {
		if origin == anyOrigin {
			if authenticated {
				return fmt.Errorf(
					"server: the CORS origin * together with authentication would let every page use what it has got hold of: " +
						"name the origins")
			}
			continue
		}
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || origin != u.Scheme+"://"+u.Host ||
			strings.ContainsAny(u.Host, "*") || u.Host != strings.ToLower(u.Host) {
			return fmt.Errorf(
				"server: the CORS origin %q must be scheme://host or scheme://host:port in lower case, without anything "+
					"behind it", origin)
		}
	}
	return nil
}

// crossOrigin lets pages of the allowed origins call. A preflight has no credential, so it is
// answered before authentication. Cookies are not credentials: the browser is never told to
// send them.
func (s *Server) crossOrigin(next http.Handler) http.Handler {
	if len(s.options.CORSOrigins) == 0 {
		return next
	}
	return cors.New(cors.Options{
		AllowedOrigins: slices.Clone(s.options.CORSOrigins),
		AllowedMethods: connectcors.AllowedMethods(),
		AllowedHeaders: append(connectcors.AllowedHeaders(), "Authorization"),
		ExposedHeaders: append(connectcors.ExposedHeaders(), "WWW-Authenticate", "Retry-After", "X-Request-Id"),
		MaxAge:         int(corsMaxAge / time.Second),
	}).Handler(next)
}
