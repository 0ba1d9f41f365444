package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqledger/seqledger/internal/listen"
)

// DebugHandler answers with profiles of the process (/debug/pprof/), the metrics, and /healthz and /readyz, for a check
// on this machine that has no certificate to show. Profiles reveal much about a process and are expensive, so they must
// not be reachable from other machines: the handler refuses a Host that is not loopback, and what a page of another
// origin asks for. The command line is not included, because it may have secrets.
func (s *Server) DebugHandler() http.Handler {
	mux := profiles(s.admission.Probe(s.metrics.handler()))
	s.mountHealth(mux)
	return onlyIf(notOfProgram, s.admission.Visit, noStore(mux))
}

// profiles answers with profiles of the process and with metrics.
func profiles(metrics http.Handler) *http.ServeMux {
	mux := http.NewServeMux()
	// Not by importing for its side effect, which would also mount them on http.DefaultServeMux.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.Handle("GET /metrics", metrics)
	return mux
}

// ServeDebug answers DebugHandler's requests on a listener, which it closes, until ctx ends. It refuses a listener
// whose address is not loopback with ErrNotLoopback. Close the ledger only after it has returned.
func (s *Server) ServeDebug(ctx context.Context, listener net.Listener) error {
	err := serveDebug(ctx, listener, s.DebugHandler(), s.options.Logger)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastMoment)
	defer cancel()
	return errors.Join(err, s.admission.AwaitProbes(last))
}

// ServeProfiles is ServeDebug for a program with other metrics, and without health checks. Scrapes may be under way for
// a moment after it has returned.
func ServeProfiles(ctx context.Context, listener net.Listener, metrics prometheus.Gatherer) error {
	handler := noStore(profiles(metricsHandler(metrics)))
	handler = onlyIf(notOfProgram, func(context.Context) {}, handler)
	return serveDebug(ctx, listener, handler, slog.New(slog.DiscardHandler))
}

// debugTimeout is how long a request of the debug port may take, including a profile of some minutes.
const debugTimeout = 10 * time.Minute

// inTime sets deadlines for an answer that is not read, and for a body, which net/http reads and drops before it sends
// the answer.
func inTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		controls := http.NewResponseController(w)
		_ = controls.SetWriteDeadline(time.Now().Add(debugTimeout))
		if r.Body != http.NoBody { // without one, net/http would take the deadline for the end of the client
			_ = controls.SetReadDeadline(time.Now().Add(listen.HeaderTimeout))
		}
		next.ServeHTTP(w, r)
	})
}

// serveDebug answers on a loopback listener until ctx ends.
func serveDebug(ctx context.Context, listener net.Listener, handler http.Handler, logger *slog.Logger) error {
	if !loopbackListener(listener) {
		return errors.Join(fmt.Errorf("%w: %s", ErrNotLoopback, listener.Addr()), listener.Close())
	}
	hs := listen.Server(inTime(handler), maxHeaderBytes, logger)
	hs.BaseContext = func(net.Listener) context.Context { return ctx }
	closed := make(chan error, 1)
	// A profile may take another half minute, and is not needed any more.
	stop := context.AfterFunc(ctx, func() { closed <- hs.Close() })
	err := ignoreClosed(listen.Serve(hs, listener, listen.Connections().Debug))
	if !stop() {
		err = errors.Join(err, ignoreClosed(<-closed))
	}
	return err
}
