package server

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
)

// requestIDHeader carries a request's id in both directions.
const requestIDHeader = "X-Request-Id"

// maxRequestID bounds an id that a client chose, because it appears in logs.
const maxRequestID = 64

// requestInfo is the data of one request that is independent of its procedure.
type requestInfo struct {
	id string
	// blamed is set once the cause of a failure is in the log: a stream may have
	// thousands of writes that fail for one reason.
	blamed atomic.Bool
}

type requestInfoKey struct{}

// withRequestID gives every request an id, its own or a new one, by which an
// operator finds in the log what a client was told.
func withRequestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info := &requestInfo{id: r.Header.Get(requestIDHeader)}
		if !validRequestID(info.id) {
			// Two requests with one id would be a nuisance but not a danger, so ids need not be
			// unpredictable.
			info.id = newRequestID()
		}
		w.Header().Set(requestIDHeader, info.id)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestInfoKey{}, info)))
	})
}

// newRequestID returns 16 hexadecimal digits.
func newRequestID() string {
	var id [8]byte
	binary.BigEndian.PutUint64(id[:], rand.Uint64())
	return hex.EncodeToString(id[:])
}

// validRequestID reports whether an id is 1 to 64 visible ASCII characters.
// Anything else could forge lines of a log.
func validRequestID(id string) bool {
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return id != "" && len(id) <= maxRequestID
}

// infoOf returns what belongs to the request of a context, or nil.
func infoOf(ctx context.Context) *requestInfo {
	info, _ := ctx.Value(requestInfoKey{}).(*requestInfo)
	return info
}

// withReference adds to a message where the log has more.
func withReference(ctx context.Context, message string) string {
	if info := infoOf(ctx); info != nil {
		return message + "; the server's log tells why, at request_id " + info.id
	}
	return message
}

// blame logs the cause of a failed request, once.
func blame(ctx context.Context, logger *slog.Logger, err error) {
	if info := infoOf(ctx); info != nil && info.blamed.Swap(true) {
		return
	}
	logger.ErrorContext(ctx, "a request failed", "error", err)
}

// requestLogger adds the request's id to every line about a request.
type requestLogger struct{ slog.Handler }

// Handle implements slog.Handler.
func (h requestLogger) Handle(ctx context.Context, r slog.Record) error {
	if info := infoOf(ctx); info != nil {
		r = r.Clone()
		r.AddAttrs(slog.String("request_id", info.id))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h requestLogger) WithAttrs(attrs []slog.Attr) slog.Handler {
	return requestLogger{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h requestLogger) WithGroup(name string) slog.Handler {
	return requestLogger{h.Handler.WithGroup(name)}
}
