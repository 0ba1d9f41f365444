// Package gateway is a reverse proxy before an HTTP service. A request with the header
// Idempotency-Key reaches the service once; its repeats get the first response.
package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
)

// Options configure a gateway.
type Options struct {
	// Upstream is the service: scheme, host and, optionally, a path that is put before that of
	// each request.
	Upstream *url.URL
	// Transport sends requests to the service; nil means one of its own.
	Transport *http.Transport
	// Timeout is how long the service may take until the header of its response; 0 means no
	// limit. The outcome of a request that took longer is unknown.
	Timeout time.Duration
	// MaxRequests bounds the requests under way; 0 means 512. A request with a key takes up to
	// four mebibytes. Further ones are refused with 503.
	MaxRequests int
	// Store keeps the records.
	Store idempotency.Store
	// Idempotency configures what has a key; see package idempotency.
	Idempotency idempotency.Options
	// Logger gets a line for each request, with a hash in place of the key.
	Logger *slog.Logger
}

// New returns the handler of a gateway. It panics if Options.Idempotency is invalid.
func New(o Options) http.Handler {
	transport := o.Transport
	if transport == nil {
		transport = new(http.Transport)
	}
	transport = transport.Clone()
	transport.ResponseHeaderTimeout = o.Timeout
	transport.DisableCompression = true // what the service compresses passes as it is
	transport.MaxIdleConnsPerHost = max(transport.MaxIdleConnsPerHost, 256)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(o.Upstream)
			r.SetXForwarded() // and nothing of what the client says of itself
		},
		Transport: once{transport},
		ModifyResponse: func(r *http.Response) error {
			idempotency.StripHeaders(r.Header)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { failed(w, r, err, o.Logger) },
		ErrorLog:     slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
	}
	return logged(bounded(idempotency.Middleware(o.Store, o.Idempotency)(proxy), cmp.Or(o.MaxRequests, 512)), o.Logger)
}

// bounded refuses requests beyond a number, before anything of them is read.
func bounded(next http.Handler, most int) http.Handler {
	places := make(chan struct{}, most)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests are under way; nothing was done", http.StatusServiceUnavailable)
		}
	})
}

// once keeps a transport from sending a request twice. net/http repeats a request whose connection
// breaks if it counts as idempotent, and the header Idempotency-Key makes every request without a
// body count so. But the service may have executed the first one.
type once struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (o once) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get(idempotency.HeaderKey) != "" || r.Header.Get("X-Idempotency-Key") != "" {
		r = r.Clone(r.Context())
		if r.GetBody = nil; r.Body == nil || r.Body == http.NoBody {
			r.Body = noBytes{}
		}
	}
	return o.next.RoundTrip(r)
}

// noBytes is a body that net/http does not know to be empty, and so cannot send again.
type noBytes struct{}

// Read implements io.Reader.
func (noBytes) Read([]byte) (int, error) { return 0, io.EOF }

// Close implements io.Closer.
func (noBytes) Close() error { return nil }

// failed answers a request to which the service gave no response. If no connection was made,
// nothing was executed, and the key is free again.
func failed(w http.ResponseWriter, r *http.Request, err error, logger *slog.Logger) {
	status := http.StatusBadGateway
	dial, isDial := errors.AsType[*net.OpError](err)
	var timeout net.Error
	switch {
	case isDial && dial.Op == "dial":
		if owner := idempotency.FromContext(r.Context()); owner != nil {
			owner.Leave(idempotency.ReleaseKey)
		}
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, os.ErrDeadlineExceeded):
		status = http.StatusGatewayTimeout
	case errors.Is(err, context.Canceled):
		status = 499 // the client has gone: only the log has this
	}
	logger.WarnContext(r.Context(), "the service gave no response", "path", r.URL.Path, "error", err)
	w.WriteHeader(status)
}

// logged writes a line for each request.
func logged(next http.Handler, logger *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		seen := &responseStatus{ResponseWriter: w}
		defer func() {
			key := ""
			if text := r.Header.Get(idempotency.HeaderKey); text != "" {
				sum := sha256.Sum256([]byte(text))
				key = hex.EncodeToString(sum[:6])
			}
			logger.InfoContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path, "status", seen.status,
				"replayed", w.Header().Get(idempotency.HeaderReplayed), "key_hash", key, "took", time.Since(began))
		}()
		next.ServeHTTP(seen, r)
	})
}

// responseStatus remembers the status of a response.
type responseStatus struct {
	http.ResponseWriter

	status int
}

// WriteHeader implements http.ResponseWriter.
func (s *responseStatus) WriteHeader(status int) {
	if s.status == 0 && status >= 200 || status == http.StatusSwitchingProtocols {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (s *responseStatus) Write(b []byte) (int, error) {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	return s.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (s *responseStatus) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Flush implements http.Flusher.
func (s *responseStatus) Flush() { _ = http.NewResponseController(s.ResponseWriter).Flush() }
