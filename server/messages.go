package server

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server/admission"
)

// This file applies package admission's memory bounds to the messages of requests and answers.

// tooLargeError refuses a message that has more bytes than any write may have. Connect's own answer,
// resource_exhausted, would make clients repeat it endlessly.
func tooLargeError(largest int) error {
	field := &machine.FieldError{
		Field: "operations", Problem: fmt.Sprintf("must be fewer: a message has at most %d bytes", largest),
	}
	return withDetails(connect.CodeInvalidArgument, &seqledgerv1.WriteError{
		Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT,
		Message: fieldMessage(field), Field: field.Field,
	})
}

// limitBody charges the messages of requests to their callers as they arrive.
func (s *Server) limitBody(level connect.IdempotencyLevel, next http.Handler) http.Handler {
	largest := s.maxMessage(level)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		o := admission.BodyOptions{
			Largest: int64(largest), Enveloped: isEnveloped(r), Compressed: isCompressed(r),
			Refused: func(err error) error { return connectError(r.Context(), s.options.Logger, err) },
			TooLarge: func() error {
				return connect.NewError(connect.CodeInvalidArgument,
					fmt.Errorf("a request of this method has at most %d bytes", largest))
			},
		}
		switch r.URL.Path {
		case seqledgerv1connect.LedgerServiceWriteProcedure, seqledgerv1connect.LedgerServiceWriteBatchProcedure:
			o.Write = true
			fallthrough
		case seqledgerv1connect.LedgerServiceWriteStreamProcedure:
			o.TooLarge = func() error { return tooLargeError(largest) }
		}
		body := s.admission.NewBody(r, s.party(r.Context()), o)
		defer body.Release()
		callOf(r.Context()).body = body
		r.Body = body
		next.ServeHTTP(w, r)
	})
}

// decode decodes a message if that is not done, in turn with other large ones.
func (s *Server) decode(ctx context.Context, m interface {
	Pending() bool
	Decode()
}) error {
	if !m.Pending() {
		return nil
	}
	done, err := s.admission.Decode(ctx, s.party(ctx))
	if err == nil {
		defer done()
		m.Decode()
	}
	return err
}

// isEnveloped reports whether a body is a sequence of messages.
func isEnveloped(r *http.Request) bool {
	kind := strings.ToLower(r.Header.Get("Content-Type"))
	return strings.HasPrefix(kind, "application/grpc") || strings.HasPrefix(kind, "application/connect+")
}

// isCompressed reports whether a body is compressed as a whole.
func isCompressed(r *http.Request) bool {
	encoding := r.Header.Get("Content-Encoding")
	return encoding != "" && !strings.EqualFold(encoding, "identity")
}

// answered ends what a unary call has taken for its answer: the work of a read as soon as the answer is sent, because a
// slow client must not keep other reads waiting, and the memory when the handler ends.
func answered(reads bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := callOf(r.Context())
		c.reads = reads
		defer func() {
			c.endWork()
			if c.memory != nil {
				c.memory()
			}
		}()
		next.ServeHTTP(unaryAnswer{w, c}, r)
	})
}

// unaryAnswer is the writer of the answer to a unary call. It keeps the answer in the buffer of net/http until the
// handler has returned, if it fits in there: a client that does not read its answers must not keep its requests open.
type unaryAnswer struct {
	http.ResponseWriter
	call *call
}

// Write implements io.Writer.
func (a unaryAnswer) Write(p []byte) (int, error) {
	a.call.endWork()
	return a.ResponseWriter.Write(p)
}

// Flush implements http.Flusher. The end of the handler flushes. Connect's handler flushes over gRPC.
func (unaryAnswer) Flush() {}

// Unwrap is for http.ResponseController.
func (a unaryAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// makeAnswer calls a handler, and charges its answer.
func makeAnswer[P wire.Message[T], T, R any](
	ctx context.Context, s *Server, procedure string, m P, handle func(context.Context, P) (*R, error),
) (*R, error) {
	switch {
	case callOf(ctx).reads:
		return makeReadAnswer(ctx, s, procedure, m, handle)
	case isAboutKeys(procedure):
	default:
		return handle(ctx, m) // its answer is small
	}
	// Only a Reserve is refused before its work: a Complete or a Heartbeat must not fail because other answers are not
	// read. Each call may be repeated, so that its answer can be refused.
	if _, reserves := any(m).(*seqledgerv1.ReserveRequest); reserves {
		if err := s.admission.MayAnswer(ctx, s.party(ctx), keyed.MaxResponse); err != nil {
			return nil, err
		}
	}
	answer, err := handle(ctx, m)
	if err == nil {
		err = s.chargeAnswer(ctx, sizeOf(answer))
	}
	return answer, err
}

// makeReadAnswer is makeAnswer for a read, which first waits for other reads. It is authorized again after the wait and
// after the work, because the caller must be allowed to see the answer when it is sent.
func makeReadAnswer[P wire.Message[T], T, R any](
	ctx context.Context, s *Server, procedure string, m P, handle func(context.Context, P) (*R, error),
) (answer *R, err error) {
	party, largest := s.party(ctx), largestAnswer(m)
	if callOf(ctx).work, err = s.admission.Read(ctx, party, largest == wire.MaxPageBytes); err != nil {
		return nil, err
	}
	// After the wait, because the answers before this one may have used up the share meanwhile.
	if err := s.admission.MayAnswer(ctx, party, largest); err != nil {
		return nil, err
	}
	if err := s.authorize(ctx, procedure, m); err != nil {
		return nil, err
	}
	answer, err = handle(ctx, m)
	if ended := s.caller(ctx).Check(); ended != nil {
		return nil, ended
	}
	if err == nil {
		err = s.chargeAnswer(ctx, sizeOf(answer))
	}
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// chargeAnswer charges an answer of the given size until the handler ends.
func (s *Server) chargeAnswer(ctx context.Context, size int) (err error) {
	if callOf(ctx).memory, err = s.admission.Answer(ctx, s.party(ctx), size); err == nil {
		admission.Answering(ctx)
	}
	return err
}

// largestAnswer returns how many bytes the answer to a read may have.
func largestAnswer(m any) int {
	switch m := m.(type) {
	case *seqledgerv1.GetStatusRequest:
		return 0
	case *seqledgerv1.GetEntityRequest:
		return machine.MaxValueBytes
	case *seqledgerv1.GetClientStateRequest:
		if !m.IncludeReceipts {
			return 0
		}
	}
	return wire.MaxPageBytes
}

// sizeOf returns how many bytes an answer has, in binary.
func sizeOf(answer any) int {
	m, ok := answer.(proto.Message)
	if !ok {
		return 0
	}
	return proto.Size(m)
}

// compressPiece is how many bytes are compressed before other goroutines may run. A page takes tens of milliseconds,
// too long for a write that is about to be answered.
const compressPiece = 32 << 10

// compressor is a gzip writer that yields to other goroutines.
type compressor struct{ *gzip.Writer }

// Write implements io.Writer.
func (c compressor) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		var written int
		written, err = c.Writer.Write(p[:min(len(p), compressPiece)])
		n, p = n+written, p[written:]
		runtime.Gosched()
	}
	return n, err
}

// compression answers with the fastest gzip, because it takes a third of the default level's time, and the result is
// hardly larger.
func compression() connect.HandlerOption {
	return connect.WithCompression("gzip",
		func() connect.Decompressor { return new(gzip.Reader) },
		func() connect.Compressor {
			w, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
			if err != nil {
				panic(err) // there is no such level
			}
			return compressor{w}
		})
}
