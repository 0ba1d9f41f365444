package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/seqledger/seqledger/internal/upgrade"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
	"github.com/seqledger/seqledger/server/console"
)

// Server serves one ledger.
type Server struct {
	options   Options
	metrics   *metrics
	refusals  *refusals
	handler   http.Handler
	passedOn  http.Handler // for calls that other nodes have checked, and pass on
	router    *router      // nil in a ledger on one node
	admission *admission.Controller
	ledger    atomic.Pointer[string] // its id, once it is known; it stays the same
	// admission.StallTimeout, admission.BodyTimeout, upgrade.PingEvery and cutOffAfter, except in tests.
	stall, late, pingEvery, cutOff time.Duration

	// draining ends when the server takes no new writes.
	draining   context.Context //nolint:containedctx // It is the server's own state, not a caller's.
	startDrain context.CancelFunc
	// closed ends when all connections are closed, because net/http does not track upgraded connections.
	closed context.Context //nolint:containedctx // As above.
	close  context.CancelFunc
}

// New returns a server of a ledger.
func New(o Options) (*Server, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.Logger = slog.New(requestLogger{o.Logger.Handler()})
	s := &Server{
		options: o, stall: admission.StallTimeout, late: admission.BodyTimeout, pingEvery: upgrade.PingEvery,
		cutOff: cutOffAfter,
	}
	var err error
	if s.admission, err = admission.New(s.admissionOptions()); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	o.Ledger.Cluster().WatchRoom(s.admission.DiskRoom)
	s.draining, s.startDrain = context.WithCancel(context.Background())
	s.closed, s.close = context.WithCancel(context.Background())
	s.metrics, s.refusals = newMetrics(s), new(refusals)
	if o.Ledger.Cluster().PeerTransport() != nil {
		s.router = newRouter(s, o.Ledger.Cluster())
	}
	mux := http.NewServeMux()
	s.mount(mux)
	s.mountReflection(mux)
	if o.MCP != nil {
		if err := s.mountMCP(mux); err != nil {
			return nil, err
		}
	}
	outer := http.NewServeMux()
	calls := s.authenticated(s.ofLedger(checkProtocol(mux)))
	api := s.fromBrowser(calls)
	if !o.NoConsole {
		// A visit, like a health check: its files need no credential.
		outer.Handle("GET "+console.Path, s.admission.Probe(console.Handler()))
		api = console.Redirect(api)
	}
	outer.Handle("/", api)
	s.mountHealth(outer)
	outer.Handle("GET /metrics", s.observed(s.admission.Probe(s.metrics.handler())))
	s.handler = withCall(false, s.admission.BeforeAuth(s.checkHost(noStore(s.crossOrigin(outer)))))
	s.passedOn = s.admission.BeforeAuth(calls)
	return s, nil
}

func (s *Server) admissionOptions() admission.Options {
	disk := func() (free, size uint64, err error) {
		usage, err := s.options.Ledger.DiskUsage()
		return usage.Free, usage.Size, err
	}
	return admission.Options{
		Requests: s.options.MaxRequests, Streams: s.options.MaxOpenStreams, Connections: s.options.MaxConnections,
		PrincipalKeys: s.options.PrincipalKeys,
		Shares:        s.options.Auth != nil, Logger: s.options.Logger,
		Disk: disk, DiskReserve: s.options.DiskReserve, StoredFile: s.options.StoredFile,
	}
}

// MayStore returns an error while the disk of the ledger has less free space than the reserve. A program that writes to
// the ledger itself asks before each write, as the server does.
func (s *Server) MayStore(ctx context.Context) error { return s.admission.MayWrite(ctx) }

// serviceNames returns the services for health checks and reflection: all of the API. Each is mounted whole, and the
// API says which there are.
func serviceNames() (names []string) {
	api := seqledgerv1.File_seqledger_v1_types_proto.Package()
	protoregistry.GlobalFiles.RangeFilesByPackage(api, func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			names = append(names, string(file.Services().Get(i).FullName()))
		}
		return true
	})
	return names
}

// noStore keeps answers out of caches.
func noStore(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Every answer describes the state at one moment, and a cache must not repeat it later.
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// mountReflection mounts gRPC reflection. Its streams are bounded by the time for a body, and end when the server
// drains.
func (s *Server) mountReflection(mux *http.ServeMux) {
	reflector := grpcreflect.NewStaticReflector(serviceNames()...)
	v1, handler := grpcreflect.NewHandlerV1(reflector, connect.WithReadMaxBytes(maxReflectionBytes))
	mux.Handle(v1, admission.BodyDeadline(s.endWithDrain(handler)))
	v1alpha, handler := grpcreflect.NewHandlerV1Alpha(reflector, connect.WithReadMaxBytes(maxReflectionBytes))
	mux.Handle(v1alpha, admission.BodyDeadline(s.endWithDrain(handler)))
}

// maxReflectionBytes is enough for any name.
const maxReflectionBytes = 64 << 10

// endWithDrain ends a handler that waits for its client when the server drains.
func (s *Server) endWithDrain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The response's controls must not be used after the handler.
		defer admission.AfterFunc(s.draining, func() { admission.InterruptRead(http.NewResponseController(w)) })()
		next.ServeHTTP(w, r)
	})
}
