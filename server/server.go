package server

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"golang.org/x/sync/semaphore"

	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// Server serves one ledger.
type Server struct {
	options  Options
	metrics  *metrics
	handler  http.Handler
	requests gate // everything that is under way
	streams  gate // WriteStreams, Watches and Backups
	probes   gate // health checks and metrics
	overload overload
	open     gate // connections
	arriving *arriving
	reads    *semaphore.Weighted // that make or send an answer
	// stallTimeout and bodyTimeout, but for tests.
	stall, late time.Duration

	// draining ends when nothing new is taken any more.
	draining   context.Context //nolint:containedctx // It is the server's own state, not a caller's.
	startDrain context.CancelFunc
	// closed ends when connections are closed whatever is under way on them:
	// net/http does not know those that belong to one stream.
	closed context.Context //nolint:containedctx // As above.
	close  context.CancelFunc
}

// New returns a server of a ledger.
func New(o Options) (*Server, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.Logger = slog.New(requestLogger{o.Logger.Handler()})
	s := &Server{options: o, reads: semaphore.NewWeighted(maxReads), stall: stallTimeout, late: bodyTimeout, arriving: newArriving()}
	s.draining, s.startDrain = context.WithCancel(context.Background())
	s.closed, s.close = context.WithCancel(context.Background())
	s.metrics = newMetrics(s)
	mux := http.NewServeMux()
	s.mount(mux)
	s.mountReflection(mux)
	outer := http.NewServeMux()
	outer.Handle("/", withRequestID(s.bounded(s.authenticated(answerWithin(answerTimeout, mux)))))
	s.mountHealth(outer)
	outer.Handle("GET /metrics", s.probe(s.authenticated(s.observing(answerWithin(answerTimeout, s.metrics.handler())))))
	s.handler = lettingIn(s.checkHost(uncached(s.crossOrigin(outer))))
	return s, nil
}

// Handler returns everything that the server answers, for an http.Server that
// speaks HTTP/1.1 and cleartext HTTP/2. Serve uses the same. Drain ends the
// write streams that have their connections to themselves; the Shutdown and Close
// of an http.Server do not know them.
func (s *Server) Handler() http.Handler { return s.handler }

// serviceNames are the services that health checks and reflection know.
func serviceNames() []string {
	return []string{seqledgerv1connect.LedgerServiceName, seqledgerv1connect.AdminServiceName}
}

// uncached keeps answers out of caches.
func uncached(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Every answer is about the state of one moment.
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// probe lets those who watch over the process in however much is under way:
// otherwise a busy server would be taken for a dead one, and restarted. They
// are counted, because Serve must not return while one looks at the ledger.
func (s *Server) probe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.probes.enter(math.MaxInt)
		defer s.probes.leave()
		next.ServeHTTP(w, r)
	})
}

// bounded refuses what is too much.
func (s *Server) bounded(next http.Handler) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.requests.enter(s.options.MaxRequests) {
			s.full(r.Context(), gateRequests)
			if refuse.IsSupported(r) {
				_ = refuse.Write(w, r, connect.NewError(connect.CodeResourceExhausted, errTooManyRequests))
				return
			}
			http.Error(w, errTooManyRequests.Error(), http.StatusServiceUnavailable)
			return
		}
		defer s.requests.leave()
		next.ServeHTTP(w, r)
	})
}

// full accounts for a request that a gate refused.
func (s *Server) full(ctx context.Context, gate string) {
	s.metrics.gates.WithLabelValues(gate).Inc()
	s.overload.refuse(ctx, s.options.Logger, "too many "+gate)
}

// mountReflection answers the tools that ask which procedures there are. They
// keep a stream open as long as its body may take, and a drain ends it.
func (s *Server) mountReflection(mux *http.ServeMux) {
	reflector := grpcreflect.NewStaticReflector(serviceNames()...)
	v1, handler := grpcreflect.NewHandlerV1(reflector, connect.WithReadMaxBytes(maxReflectionBytes))
	mux.Handle(v1, readWithin(bodyTimeout, s.endWithDrain(handler)))
	v1alpha, handler := grpcreflect.NewHandlerV1Alpha(reflector, connect.WithReadMaxBytes(maxReflectionBytes))
	mux.Handle(v1alpha, readWithin(bodyTimeout, s.endWithDrain(handler)))
}

// maxReflectionBytes is room for any name.
const maxReflectionBytes = 64 << 10

// endWithDrain makes a handler that waits for its client stop when the server
// drains.
func (s *Server) endWithDrain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ended := make(chan struct{})
		stop := context.AfterFunc(s.draining, func() {
			defer close(ended)
			interruptRead(http.NewResponseController(w))
		})
		next.ServeHTTP(w, r)
		if !stop() {
			<-ended // because the response's controls must not be used after this
		}
	})
}
