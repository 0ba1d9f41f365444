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

// tooLargeError refuses a message that has more bytes than any write may have. Connect's own
// answer, resource_exhausted, would make clients repeat it for ever.
func tooLargeError(largest int) error {
	field := &machine.FieldError{
		Field: "operations", Problem: fmt.Sprintf("must be fewer: a message has at most %d bytes", largest),
	}
	return withDetails(connect.CodeInvalidArgument, &seqledgerv1.WriteError{
		Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT,
		Message: fieldMessage(field), Field: field.Field,
	})
}

// bodyKey finds the body of a compressed request or of a WriteBatch in its context.
type bodyKey struct{}

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
			Refused: func(err error) error { return accessError(err) },
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
		if o.Compressed || r.URL.Path == seqledgerv1connect.LedgerServiceWriteBatchProcedure {
			r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
		}
		r.Body = body
		next.ServeHTTP(w, r)
	})
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

// releaseBody releases the memory of such a request once it is decoded: the ledger's
// queue bounds the decoded writes.
func releaseBody(ctx context.Context) {
	if body, ok := ctx.Value(bodyKey{}).(*admission.Body); ok {
		body.Release()
	}
}

// unflushed wraps Connect's handler of a unary call, which flushes over gRPC.
func unflushed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isEnveloped(r) {
			w = unflushedAnswer{w}
		}
		next.ServeHTTP(w, r)
	})
}

// unflushedAnswer keeps the answer to a unary call in the buffer of net/http until the handler has returned, if it fits
// in there: a client that does not read its answers must not keep the places of its requests.
type unflushedAnswer struct{ http.ResponseWriter }

// Flush implements http.Flusher. The end of the handler flushes.
func (unflushedAnswer) Flush() {}

// Unwrap is for http.ResponseController.
func (a unflushedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// readAnswer is the writer of the answer to one read. It releases the place of the read as soon
// as the answer is ready: a slow client must not block a place for other reads. The memory of
// the answer is charged until the handler ends.
type readAnswer struct {
	http.ResponseWriter

	done    func() // releases the place; nil until it is taken
	release func() // releases the memory; nil until it is taken
}

// Write implements io.Writer.
func (a *readAnswer) Write(p []byte) (int, error) {
	a.leavePlace()
	return a.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (a *readAnswer) Flush() { _ = http.NewResponseController(a.ResponseWriter).Flush() }

// Unwrap is for http.ResponseController.
func (a *readAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *readAnswer) leavePlace() {
	if a.done != nil {
		a.done()
	}
}

type readAnswerKey struct{}

// leavePlace releases the place of a read that has ended its work.
func leavePlace(ctx context.Context) {
	if a, ok := ctx.Value(readAnswerKey{}).(*readAnswer); ok {
		a.leavePlace()
	}
}

// withReadAnswer wraps the procedures that only read.
func withReadAnswer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &readAnswer{ResponseWriter: w}
		defer func() {
			a.leavePlace()
			if a.release != nil {
				a.release()
			}
		}()
		next.ServeHTTP(a, r.WithContext(context.WithValue(r.Context(), readAnswerKey{}, a)))
	})
}

// makeAnswer calls a handler. A read first waits for a place. It is authorized again after the
// wait and after the work, because the caller must be allowed to see the answer when it is
// sent.
func makeAnswer[P wire.Message[T], T, R any](
	ctx context.Context, s *Server, procedure string, m P, handle func(context.Context, P) (*R, error),
) (*R, error) {
	a, ok := ctx.Value(readAnswerKey{}).(*readAnswer)
	if !ok {
		return makeWriteAnswer(ctx, s, m, handle)
	}
	party := s.party(ctx)
	var err error
	largest := largestAnswer(m)
	if a.done, err = s.admission.Read(ctx, party, largest == wire.MaxPageBytes); err != nil {
		return nil, err
	}
	// After the wait, because the answers before this one may have taken the room meanwhile.
	if err := s.admission.MayAnswer(ctx, party, largest); err != nil {
		return nil, err
	}
	if err := s.authorize(ctx, procedure, m); err != nil {
		return nil, err
	}
	answer, err := handle(ctx, m)
	if ended := s.caller(ctx).Check(); ended != nil {
		return nil, ended
	}
	if err != nil {
		return nil, err
	}
	if a.release, err = s.admission.Answer(ctx, party, sizeOf(answer)); err != nil {
		return nil, err
	}
	admission.Answering(ctx)
	return answer, nil
}

// answerRoom has the memory of an answer to a call that changes something.
type answerRoom struct {
	release func() // nil until the memory is taken
}

type answerRoomKey struct{}

// withAnswerRoom wraps the procedures that change something and may answer with much: a response
// that was stored before. Its memory is charged until the handler ends, because its client may not
// read it.
func withAnswerRoom(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := new(answerRoom)
		defer func() {
			if a.release != nil {
				a.release()
			}
		}()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), answerRoomKey{}, a)))
	})
}

// makeWriteAnswer is makeAnswer for a call that changes something. It may be repeated, so that its
// answer can be refused.
func makeWriteAnswer[P wire.Message[T], T, R any](
	ctx context.Context, s *Server, m P, handle func(context.Context, P) (*R, error),
) (*R, error) {
	a, ok := ctx.Value(answerRoomKey{}).(*answerRoom)
	if !ok {
		return handle(ctx, m)
	}
	party := s.party(ctx)
	// Only a Reserve is refused before its work: a Complete or a Heartbeat must not fail because
	// other answers are not read.
	if _, reserves := any(m).(*seqledgerv1.ReserveRequest); reserves {
		if err := s.admission.MayAnswer(ctx, party, keyed.MaxResponse); err != nil {
			return nil, err
		}
	}
	answer, err := handle(ctx, m)
	if err != nil {
		return nil, err
	}
	if a.release, err = s.admission.Answer(ctx, party, sizeOf(answer)); err == nil {
		admission.Answering(ctx)
	}
	return answer, err
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

// compressPiece is how many bytes are compressed before other goroutines may run. A page takes
// tens of milliseconds, too long for a write that is about to be answered.
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

// compression answers with the fastest gzip, because it takes a third of the default level's time, and
// the result is hardly larger.
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
