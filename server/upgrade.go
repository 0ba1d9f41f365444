package server

import (
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/seqledger/seqledger/internal/upgrade"
)

// upgradable gives a WriteStream its upgraded connection if the client asks for one. The connection ends at this node,
// also if the leader is another one: the stream is passed on like any other.
func (s *Server) upgradable(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.nameLeader(w.Header())
		upgrade.Handler(upgrade.Options{
			Closed: s.closed, MaxMessageBytes: int64(s.maxMessage(writing)), PingEvery: s.pingEvery,
		}, next).ServeHTTP(w, r)
	})
}

// fromBrowser checks what a browser says of a WebSocket, which no preflight precedes: the page's origin, and a
// credential among the sub-protocols, because a page cannot set headers.
func (s *Server) fromBrowser(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !upgrade.IsRequested(r) {
			next.ServeHTTP(w, r)
			return
		}
		if !s.allowsOrigin(r) {
			s.admission.Visit(r.Context())
			http.Error(w, "a page of this origin may not open a WebSocket here: "+
				"name the origin with --cors-origin", http.StatusForbidden)
			return
		}
		header, err := moveCredential(r.Header)
		if err != nil {
			s.admission.Visit(r.Context())
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		moved := *r
		moved.Header = header
		next.ServeHTTP(w, &moved)
	})
}

// allowsOrigin reports whether the page that a request comes from, if any, is of this host or of an allowed origin.
func (s *Server) allowsOrigin(r *http.Request) bool {
	for _, origin := range r.Header["Origin"] {
		if !sameOrigin(origin, r) &&
			!slices.Contains(s.options.CORSOrigins, origin) && !slices.Contains(s.options.CORSOrigins, anyOrigin) {
			return false
		}
	}
	return true
}

// bearerPrefix precedes the credential in a sub-protocol.
const bearerPrefix = "bearer."

func isBearer(protocol string) bool { return strings.HasPrefix(protocol, bearerPrefix) }

// moveCredential returns the header of a request with the credential among the sub-protocols, if there is one, in the
// header Authorization instead. From then on it is checked, and kept out of logs, like any other. The error does not
// contain the credential.
func moveCredential(h http.Header) (http.Header, error) {
	offered := upgrade.Tokens(h, upgrade.ProtocolHeader)
	i := slices.IndexFunc(offered, isBearer)
	if i < 0 {
		return h, nil
	}
	credential, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimPrefix(offered[i], bearerPrefix))
	offered = slices.Delete(offered, i, i+1)
	switch {
	case err != nil || len(credential) == 0:
		return nil, errors.New("the sub-protocol bearer. must have the credential behind the dot, " +
			"in base64url without padding")
	case len(h["Authorization"]) > 0:
		return nil, errors.New("there is a credential in the header Authorization and another one among the " +
			"sub-protocols: send one of them")
	case slices.ContainsFunc(offered, isBearer):
		return nil, errors.New("there is more than one credential among the sub-protocols: send one of them")
	}
	h = h.Clone()
	h.Set("Authorization", "Bearer "+string(credential))
	h.Set(upgrade.ProtocolHeader, strings.Join(offered, ", "))
	return h, nil
}
