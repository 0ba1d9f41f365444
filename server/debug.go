package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus"
)

// DebugHandler answers with profiles of the process (/debug/pprof/), the metrics, and /healthz
// and /readyz, for a check on this machine that has no certificate to show. Profiles reveal
// much about a process and are expensive, so they must not be reachable from other machines:
// the handler refuses a Host that is not loopback. The command line is not included, because it
// may have secrets.
func (s *Server) DebugHandler() http.Handler {
	mux := profiles(s.admission.Probe(s.metrics.handler()))
	s.mountHealth(mux)
	return s.loopbackOnly(noStore(mux))
}

// profiles answers with profiles of the process and with metrics.
func profiles(metrics http.Handler) *http.ServeMux {
	mux := http.NewServeMux()
	// Not by importing for its side effect, which would also mount them on
	// http.DefaultServeMux.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.Handle("GET /metrics", metrics)
	return mux
}

// ServeDebug answers DebugHandler's requests on a listener, which it closes, until ctx ends. It
// refuses a listener whose address is not loopback with ErrNotLoopback. Close the ledger only
// after it has returned.
func (s *Server) ServeDebug(ctx context.Context, listener net.Listener) error {
	err := serveDebug(ctx, listener, s.DebugHandler())
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastMoment)
	defer cancel()
	return errors.Join(err, s.admission.AwaitProbes(last))
}

// ServeProfiles is ServeDebug for a program with other metrics, and without health checks. Scrapes
// may be under way for a moment after it has returned.
func ServeProfiles(ctx context.Context, listener net.Listener, metrics prometheus.Gatherer) error {
	handler := noStore(profiles(metricsHandler(metrics)))
	return serveDebug(ctx, listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if problem := notLocal(r); problem != "" {
			http.Error(w, problem, http.StatusForbidden)
			return
		}
		handler.ServeHTTP(w, r)
	}))
}

// serveDebug answers on a loopback listener until ctx ends.
func serveDebug(ctx context.Context, listener net.Listener, handler http.Handler) error {
	if !loopbackListener(listener) {
		return errors.Join(fmt.Errorf("%w: %s", ErrNotLoopback, listener.Addr()), listener.Close())
	}
	hs := &http.Server{
		Handler: handler, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	closed := make(chan error, 1)
	// A profile may take another half minute, and is not needed any more.
	stop := context.AfterFunc(ctx, func() { closed <- hs.Close() })
	err := ignoreClosed(hs.Serve(listener))
	if !stop() {
		err = errors.Join(err, ignoreClosed(<-closed))
	}
	return err
}
