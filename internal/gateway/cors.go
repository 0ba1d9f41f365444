package gateway

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rs/cors"

	"github.com/seqledger/seqledger/server"
)

// A page of another origin may read a response only if the response allows it. The headers for that (CORS) belong to
// one delivery and are not stored. So a replay has none of the service's headers, and a refusal by the gateway has none
// at all. A route with cors_origins therefore sets them itself, on every response, and answers the preflights. It drops
// the service's own headers, because the two would contradict each other.

// corsMaxAge is how long a browser may cache the answer to a preflight.
const corsMaxAge = 2 * time.Hour

// newCORS returns a handler that sets the headers of a route, or nil if the route leaves them to its service. stored
// are further headers that replays of the route have.
func newCORS(origins, stored []string) *cors.Cors {
	if len(origins) == 0 {
		return nil
	}
	return cors.New(cors.Options{
		AllowedOrigins: origins,
		// The service decides what a page may do, as for any other client.
		AllowedMethods: []string{
			http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
			http.MethodOptions,
		},
		AllowedHeaders: []string{"*"},
		ExposedHeaders: append([]string{
			"Content-Disposition", "Content-Encoding", "Content-Location", "ETag", "Link", "Location",
			"Operation-Location", "Retry-After", "X-Request-Id",
		}, stored...),
		// Credentials require that the origins are listed one by one. If any origin is allowed, browsers reject
		// credentials anyway.
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

// dropCORS removes, from a response of the service, the headers that a route sets itself.
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
