package server

import (
	"errors"
	"fmt"
	"net"
	"net/http"
)

// Reasons of Serve to refuse a listener that other machines can reach.
var (
	// ErrNotLoopback: callers on other machines would not be authenticated.
	ErrNotLoopback = errors.New("the listener's address is not loopback, and there is no authentication")
	// ErrNotEncrypted: credentials would cross the network in clear.
	ErrNotEncrypted = errors.New("the listener's address is not loopback, and there is no TLS")
)

// checkListener refuses a listener that the options do not allow.
func (s *Server) checkListener(l net.Listener) error {
	if loopbackListener(l) || s.options.Insecure {
		return nil
	}
	if s.options.Auth == nil {
		return fmt.Errorf("%w: %s", ErrNotLoopback, l.Addr())
	}
	if s.options.TLS == nil {
		return fmt.Errorf("%w: %s", ErrNotEncrypted, l.Addr())
	}
	return nil
}

// accept serves the listener's connections.
func (s *Server) accept(hs *http.Server, l net.Listener) error {
	if s.options.TLS == nil {
		return hs.Serve(l)
	}
	return hs.ServeTLS(l, "", "") // the certificate is in the configuration
}

// checkHost refuses a foreign Host if nothing else protects the server. A required credential
// protects too, because a foreign web page has none.
func (s *Server) checkHost(next http.Handler) http.Handler {
	if s.options.Auth != nil || s.options.Insecure {
		return next
	}
	return s.loopbackOnly(next)
}
