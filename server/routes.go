package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"mime"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server/admission"
)

// compressMinBytes is the size from which a response is compressed. Below it, compression would take most of the time
// of a response.
const compressMinBytes = 4 << 10

// mount registers a handler for every procedure. It does not use the generated constructors, so that requests can be
// decoded into a type that stores decoding errors (see wire.Request).
func (s *Server) mount(mux *http.ServeMux) {
	unary(s, mux, seqledgerv1connect.LedgerServiceWriteProcedure, writing, s.write)
	unary(s, mux, seqledgerv1connect.LedgerServiceOpenSessionProcedure, writing, s.openSession)
	unary(s, mux, seqledgerv1connect.LedgerServiceGetClientStateProcedure, reading, s.getClientState)
	unary(s, mux, seqledgerv1connect.LedgerServiceGetEntityProcedure, reading, s.getEntity)
	unary(s, mux, seqledgerv1connect.LedgerServiceListEntitiesProcedure, reading, s.listEntities)
	unary(s, mux, seqledgerv1connect.LedgerServiceListRelationshipsProcedure, reading, s.listRelationships)
	unary(s, mux, seqledgerv1connect.LedgerServiceGetTransactionProcedure, reading, s.getTransaction)
	unary(s, mux, seqledgerv1connect.LedgerServiceGetReceiptProcedure, reading, s.getReceipt)
	unary(s, mux, seqledgerv1connect.LedgerServiceGetBlockProcedure, reading, s.getBlock)
	unary(s, mux, seqledgerv1connect.LedgerServiceListBlocksProcedure, reading, s.listBlocks)
	unary(s, mux, seqledgerv1connect.AdminServiceGetStatusProcedure, reading, s.getStatus)
	unary(s, mux, seqledgerv1connect.AdminServiceListClientsProcedure, reading, s.listClients)
	unary(s, mux, seqledgerv1connect.AdminServiceListRefusalsProcedure, reading, s.listRefusals)
	unary(s, mux, seqledgerv1connect.AdminServiceUpdateConfigProcedure, writing, s.updateConfig)
	unary(s, mux, seqledgerv1connect.AdminServiceArchivePointProcedure, writing, s.archivePoint)
	// It does not count as reading, because only the leader knows the status of the other nodes.
	unary(s, mux, seqledgerv1connect.AdminServiceGetClusterProcedure, writing, s.getCluster)
	unary(s, mux, seqledgerv1connect.AdminServiceChangeClusterProcedure, writing, s.changeCluster)
	unary(s, mux, seqledgerv1connect.IdempotencyServiceReserveProcedure, writing, s.reserve)
	unary(s, mux, seqledgerv1connect.IdempotencyServiceCompleteProcedure, writing, s.complete)
	unary(s, mux, seqledgerv1connect.IdempotencyServiceRejectProcedure, writing, s.reject)
	unary(s, mux, seqledgerv1connect.IdempotencyServiceReleaseProcedure, writing, s.release)
	unary(s, mux, seqledgerv1connect.IdempotencyServiceHeartbeatProcedure, writing, s.heartbeat)
	unary(s, mux, seqledgerv1connect.IdempotencyServiceCheckpointProcedure, writing, s.checkpoint)
	unary(s, mux, seqledgerv1connect.IdempotencyServiceGetRecordProcedure, readingByPost, s.getRecord)
	unary(s, mux, seqledgerv1connect.IdempotencyServiceListRecordsProcedure, reading, s.listRecords)
	unary(s, mux, seqledgerv1connect.IdempotencyServicePurgeRecordProcedure, writing, s.purgeRecord)
	unary(s, mux, seqledgerv1connect.IdempotencyServiceResolveRecordProcedure, writing, s.resolveRecord)

	s.mountWriteBatch(mux)
	stream := seqledgerv1connect.LedgerServiceWriteStreamProcedure
	// Never compressed, because there are many results and they consist of hashes and ids, which do not compress.
	uncompressed := connect.WithCompressMinBytes(math.MaxInt)
	mux.Handle(stream, s.upgradable(onlyMethods(writing, s.streamByLeader(s.limitBody(writing, s.asStream(false,
		connect.NewBidiStreamHandler(stream, s.writeStream, append(s.handlerOptions(writing), uncompressed)...)))))))
	backup := seqledgerv1connect.AdminServiceBackupProcedure
	mux.Handle(backup, onlyMethods(writing, s.limitBody(reading, s.asStream(true,
		connect.NewServerStreamHandler(backup, s.backup, append(s.handlerOptions(reading), uncompressed)...)))))
	watch := seqledgerv1connect.LedgerServiceWatchProcedure
	mux.Handle(watch, onlyMethods(writing, s.limitBody(reading, s.asStream(true,
		connect.NewServerStreamHandler(watch, s.watch, s.handlerOptions(reading)...)))))
}

// onlyMethods refuses calls with methods other than POST and, for reads, GET. Connect would answer without a body.
func onlyMethods(level connect.IdempotencyLevel, next http.Handler) http.Handler {
	allowed := http.MethodPost
	if level == reading {
		allowed = "GET, POST"
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost || level == reading && r.Method == http.MethodGet {
			next.ServeHTTP(w, r)
			return
		}
		message := fmt.Sprintf("the method %.20s is not allowed here; send %s", r.Method, allowed)
		text, _ := json.Marshal(map[string]string{"code": "unimplemented", "message": message}) // texts never fail
		w.Header().Set("Allow", allowed)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusMethodNotAllowed)
		_, _ = w.Write(text)
	})
}

// asStream adds stream controls to a handler. oneRequest means that no message follows the first.
func (s *Server) asStream(oneRequest bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		admission.WithStreamControls(admission.StreamOptions{
			Stall: s.stall, DrainStall: s.options.DrainTimeout / 2, Late: s.late, Draining: s.draining,
			OneRequest: oneRequest,
		}, next).ServeHTTP(w, r)
	})
}

const (
	writing = connect.IdempotencyUnknown
	reading = connect.IdempotencyNoSideEffects // GET is allowed
	// readingByPost is for requests whose content must not appear in a URL.
	readingByPost = connect.IdempotencyIdempotent
)

// leaderReads lists the reads whose results depend on the time, so that two nodes would answer by two clocks, and those
// of what the leader alone makes.
var leaderReads = map[string]bool{
	seqledgerv1connect.LedgerServiceGetReceiptProcedure:       true,
	seqledgerv1connect.IdempotencyServiceGetRecordProcedure:   true,
	seqledgerv1connect.IdempotencyServiceListRecordsProcedure: true,
}

// maxReadRequestBytes is large enough for any key and page token. It is small, because a waiting read keeps its request
// in memory.
const maxReadRequestBytes = 64 << 10

// maxMessage returns the maximum size of one request message after decompression, in bytes.
func (s *Server) maxMessage(level connect.IdempotencyLevel) int {
	if level != writing {
		return min(maxReadRequestBytes, s.options.MaxRequestBytes)
	}
	return s.options.MaxRequestBytes
}

// codecs replaces Connect's own codecs: see package wire.
func codecs() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCodec(wire.BinaryCodec{}),
		connect.WithCodec(wire.JSONCodec{CodecName: "json"}),
		connect.WithCodec(wire.JSONCodec{CodecName: "json; charset=utf-8"}),
	)
}

func (s *Server) handlerOptions(level connect.IdempotencyLevel) []connect.HandlerOption {
	return []connect.HandlerOption{
		codecs(),
		connect.WithIdempotency(level),
		connect.WithReadMaxBytes(s.maxMessage(level)),
		connect.WithCompressMinBytes(compressMinBytes),
		compression(),
		connect.WithInterceptors(&observer{s}),
	}
}

// unary mounts a procedure with one request and one response.
func unary[P wire.Message[T], T, R any](
	s *Server, mux *http.ServeMux, procedure string, level connect.IdempotencyLevel,
	handle func(context.Context, P) (*R, error),
) {
	handler := func(ctx context.Context, r *connect.Request[wire.Request[T, P]]) (*connect.Response[R], error) {
		ctx, stale, err := withStaleRead(ctx, procedure, r.Header())
		if err != nil {
			return nil, err
		}
		answer, err := answerUnary(ctx, s, procedure, r.Msg, handle)
		if err != nil {
			return nil, err
		}
		response := connect.NewResponse(answer)
		if stale != nil {
			response.Header().Set(message.IndexHeader, strconv.FormatUint(stale.Index, 10))
		}
		return response, nil
	}
	var mounted http.Handler = connect.NewUnaryHandler(procedure, handler, s.handlerOptions(level)...)
	if procedure == seqledgerv1connect.LedgerServiceWriteProcedure {
		mounted = &directWrite{s, mounted, &observer{s}, connect.NewErrorWriter()}
	}
	mux.Handle(procedure, s.unaryRoad(procedure, level, mounted))
}

// unaryRoad is what the request of a unary procedure passes on its way to the handler, on every node.
func (s *Server) unaryRoad(procedure string, level connect.IdempotencyLevel, handler http.Handler) http.Handler {
	handler = s.limitBody(level, answered(level != writing, handler))
	if leaderOnly(procedure, level) {
		handler = s.byLeader(handler)
	}
	return onlyMethods(level, admission.BodyDeadline(handler))
}

// isAboutKeys reports whether a procedure is about keyed records.
func isAboutKeys(procedure string) bool {
	return strings.HasPrefix(procedure, "/"+seqledgerv1connect.IdempotencyServiceName+"/")
}

// leaderOnly reports whether only the leader can answer a unary procedure.
func leaderOnly(procedure string, level connect.IdempotencyLevel) bool {
	return level == writing || leaderReads[procedure]
}

// answerUnary authorizes and answers a request.
func answerUnary[P wire.Message[T], T, R any](
	ctx context.Context, s *Server, procedure string, request *wire.Request[T, P],
	handle func(context.Context, P) (*R, error),
) (*R, error) {
	if err := s.decode(ctx, request); err != nil {
		return nil, err
	}
	m, err := request.Get()
	about := subjectOf(m) // now, because the request may be released while the response is built
	if err != nil {
		return nil, aboutCommand(err, about)
	}
	if err := s.authorize(ctx, procedure, m); err != nil {
		return nil, aboutCommand(err, about)
	}
	callOf(ctx).releaseBody()
	answer, err := makeAnswer(ctx, s, procedure, m, handle)
	return answer, aboutCommand(err, about)
}

// observer wraps every call: it converts errors for clients, recovers panics, counts, and logs at debug level.
type observer struct{ server *Server }

// WrapUnary implements connect.Interceptor.
func (o *observer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (answer connect.AnyResponse, err error) {
		err = o.unary(ctx, request.Spec().Procedure, func() (err error) {
			answer, err = next(ctx, request)
			return err
		})
		if err != nil {
			return nil, err
		}
		return answer, nil
	}
}

// writes reports whether a procedure is a unary one that commits writes.
func writes(procedure string) bool {
	return procedure == seqledgerv1connect.LedgerServiceWriteProcedure ||
		procedure == seqledgerv1connect.LedgerServiceWriteBatchProcedure
}

// unary observes one call. It returns nil or a *connect.Error.
func (o *observer) unary(ctx context.Context, procedure string, call func() error) (err error) {
	began := time.Now()
	defer func() {
		if p := recover(); p != nil {
			err = o.server.panicked(ctx, procedure, p)
		}
		err = o.done(ctx, procedure, began, err)
	}()
	err = call()
	if err != nil && writes(procedure) && errors.Is(err, ctx.Err()) {
		// Connect and directWrite check the deadline before they call the handler, and that error would not say what to
		// do next.
		err = errors.Join(ledger.ErrOutcomeUnknown, err)
	}
	return err
}

// WrapStreamingHandler implements connect.Interceptor.
func (o *observer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		controls := admission.StreamControlsOf(ctx)
		// Last, because Connect writes the end of the stream after it.
		defer controls.End()
		began := time.Now()
		procedure := conn.Spec().Procedure
		defer func() {
			if p := recover(); p != nil {
				err = o.server.panicked(ctx, procedure, p)
			}
			err = o.done(ctx, procedure, began, err)
		}()
		leave, err := o.server.admitStream(ctx, procedure)
		if err != nil {
			return err
		}
		defer leave()
		defer controls.Begin()()
		open := o.server.metrics.watches
		if procedure == seqledgerv1connect.LedgerServiceWriteStreamProcedure {
			open = o.server.metrics.writeStreams
		}
		open.Inc()
		defer open.Dec()
		err = next(ctx, conn)
		if err != nil && controls.Drained() {
			return ledger.ErrDraining // the read failed because of it
		}
		return err
	}
}

// WrapStreamingClient implements connect.Interceptor; it is for clients.
func (o *observer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// done ends a call. It returns nil or a *connect.Error.
func (o *observer) done(ctx context.Context, procedure string, began time.Time, err error) error {
	took := time.Since(began)
	code := "ok"
	var failed *connect.Error
	if err != nil {
		if errors.Is(err, ledger.ErrQueueFull) {
			o.server.admission.EngineFull(ctx)
		}
		failed = connectError(ctx, o.server.options.Logger, err)
		code = failed.Code().String()
		o.server.countRefusal(procedure, failed, err)
	}
	o.server.metrics.request(procedure, code, took)
	if logger := o.server.options.Logger; logger.Enabled(ctx, slog.LevelDebug) { // boxing the values has a cost too
		logger.DebugContext(ctx, "request", "procedure", procedure, "code", code, "took", took)
	}
	if failed == nil {
		return nil
	}
	return failed
}

// countRefusal counts a refused command of a unary call. cause is the handler's error.
func (s *Server) countRefusal(procedure string, failed *connect.Error, cause error) {
	by, ok := methods[procedure]
	if !ok {
		return
	}
	var about subject
	if command, ok := errors.AsType[*commandError](cause); ok {
		about = command.about
	}
	for _, detail := range failed.Details() {
		value, err := detail.Value()
		if e, ok := value.(*seqledgerv1.WriteError); ok && err == nil {
			s.refused(by, e, about)
		}
	}
}

// panicked logs and counts a panic. Only its own request fails, because a bug in one call must not end the others.
func (s *Server) panicked(ctx context.Context, procedure string, value any) error {
	if err, ok := value.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(value) // net/http's way to abort a request
	}
	s.metrics.panics.Inc()
	s.options.Logger.ErrorContext(ctx, "a handler panicked",
		"procedure", procedure, "panic", value, "stack", string(debug.Stack()))
	return internalError(ctx)
}

// checkProtocol refuses what Connect would refuse with a message about Go.
func checkProtocol(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if problem := contentTypeProblem(r); problem != "" {
			w.Header().Set("Accept-Post", "application/json, application/proto")
			http.Error(w, problem, http.StatusUnsupportedMediaType)
			return
		}
		if err := protocolProblem(r); err != nil {
			answerError(w, r, withDetails(connect.CodeInvalidArgument, &seqledgerv1.WriteError{
				Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT, Message: err.Error(),
			}), http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// contentTypeProblem returns the mistake in the content type of a call, or "". Connect would answer without a body.
func contentTypeProblem(r *http.Request) string {
	if r.Method != http.MethodPost || !strings.HasPrefix(r.URL.Path, "/seqledger.v1.") {
		return ""
	}
	given := r.Header.Get("Content-Type")
	name, parameters, err := mime.ParseMediaType(given)
	charset := parameters["charset"]
	known := name == "application/json" || name == "application/proto" ||
		strings.HasPrefix(name, "application/connect+") || strings.HasPrefix(name, "application/grpc")
	if err == nil && known && (charset == "" || strings.EqualFold(charset, "utf-8")) {
		return ""
	}
	return fmt.Sprintf("the header Content-Type is %q, and must be application/json (in UTF-8) or application/proto, "+
		"or one of gRPC or gRPC-Web; with curl: -H 'content-type: application/json'", given)
}

// protocolProblem checks the header and the parameter for which Connect's own errors name Go functions.
func protocolProblem(r *http.Request) error {
	const maxDigits = 10
	if timeout := r.Header.Get("Connect-Timeout-Ms"); timeout != "" {
		if len(timeout) > maxDigits || strings.Trim(timeout, "0123456789") != "" {
			return errors.New("the header Connect-Timeout-Ms must be a whole number of milliseconds with at most " +
				"10 digits")
		}
	}
	if r.Method == http.MethodGet && r.URL.RawQuery != "" {
		query := r.URL.Query()
		message := strings.TrimRight(query.Get("message"), "=")
		if _, err := base64.RawURLEncoding.DecodeString(message); err != nil && query.Get("base64") == "1" {
			return fmt.Errorf("the parameter message must be base64url, because base64 is 1")
		}
	}
	return nil
}
