package gateway

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rs/cors"

	"github.com/seqledger/seqledger/server"
)

// A page of another origin may read only a response that says so. The headers for that (CORS) belong to
// one delivery and are not stored, so that a replay has none of the service's, and a refusal of the
// gateway's has none at all. A route with cors_origins therefore sets them itself, on every response, and
// answers the preflights; the service's own are dropped, because two would contradict each other.

// corsMaxAge is how long a browser may cache the answer to a preflight.
const corsMaxAge = 2 * time.Hour

// newCORS returns what sets the headers of a route, or nil if it leaves them to its service.
func newCORS(origins []string) *cors.Cors {
	if len(origins) == 0 {
		return nil
	}
	return cors.New(cors.Options{
		AllowedOrigins: origins,
		// What a page may do at all, the service decides, as for any other client.
		AllowedMethods: []string{
			http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
			http.MethodOptions,
		},
		AllowedHeaders: []string{"*"},
		ExposedHeaders: []string{
			"Content-Disposition", "Content-Encoding", "ETag", "Link", "Location", "Retry-After", "X-Request-Id",
		},
		// The origins are named one by one. With any origin, browsers take no credentials either way.
		AllowCredentials: !slices.Contains(origins, "*"),
		MaxAge:           int(corsMaxAge / time.Second),
	})
}

// preflightFor returns the method that a preflight asks for, or "" for any other request.
func preflightFor(r *http.Request) string {
	if r.Method != http.MethodOptions {
		return ""
	}
	return r.Header.Get("Access-Control-Request-Method")
}

// dropCORS removes the headers that a route sets itself from a response of its service.
func dropCORS(header http.Header) {
	for name := range header {
		if strings.HasPrefix(name, "Access-Control-") && name != "Access-Control-Expose-Headers" {
			delete(header, name)
		}
	}
}

// readOrigins reads cors_origins.
func (s *Settings) readOrigins(report func(field, format string, args ...any)) {
	if err := server.ValidateOrigins(s.CORSOrigins, !s.Shared); err != nil {
		report("cors_origins", "%s", strings.TrimPrefix(err.Error(), "server: "))
	}
}
