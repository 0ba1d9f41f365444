package server

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync/atomic"

	"github.com/seqledger/seqledger/server/admission"
	"github.com/seqledger/seqledger/server/auth"
)

// requestIDHeader carries a request's id in both directions.
const requestIDHeader = "X-Request-Id"

// maxRequestID bounds an id that a client chose, because it appears in logs.
const maxRequestID = 64

// call is what the handlers of one request share.
type call struct {
	// id is in the logs and in the answer, so that an operator finds in the log what a client was told.
	id string
	// here reports that this node must answer, whichever node leads.
	here bool
	// logged is set once the cause of a failure is in the log: a stream may have thousands of writes that fail for one
	// reason.
	logged atomic.Bool
	// caller is the credential; nil until it was authenticated.
	caller *auth.Credential
	// reads reports that the call changes nothing.
	reads bool
	// body is charged to the caller as it arrives; nil if the request has none.
	body *admission.Body
	// work ends the work of a read or the decoding of an agent's message, and memory the charge of a large answer. They
	// are nil until there is something to end.
	work, memory func()
}

type callKey struct{}

// callOf returns the call of a context, or nil.
func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// begin adds a new call to a request.
func (c *call) begin(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), callKey{}, c))
}

// withCall gives every request a call, with the client's id or a new one.
func withCall(here bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{id: r.Header.Get(requestIDHeader), here: here}
		if !validRequestID(c.id) {
			// Two requests with one id would be a nuisance but not a danger, so ids need not be unpredictable.
			c.id = newRequestID()
		}
		w.Header().Set(requestIDHeader, c.id)
		next.ServeHTTP(w, c.begin(r))
	})
}

// newRequestID returns 16 hexadecimal digits.
func newRequestID() string {
	var id [8]byte
	binary.BigEndian.PutUint64(id[:], rand.Uint64())
	return hex.EncodeToString(id[:])
}

// validRequestID reports whether an id is 1 to 64 visible ASCII characters. Anything else could forge lines of a log.
func validRequestID(id string) bool {
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return id != "" && len(id) <= maxRequestID
}

// endWork ends the work that others wait for. The answer may then take as long as its client needs.
func (c *call) endWork() {
	if c.work != nil {
		c.work()
	}
}

// releaseBody releases the memory of a request once it is decoded: the ledger's queue bounds the decoded writes.
func (c *call) releaseBody() {
	if c != nil && c.body != nil {
		c.body.Release()
	}
}

// withReference adds to a message where the log has more.
func withReference(ctx context.Context, message string) string {
	if c := callOf(ctx); c != nil {
		return message + "; see the server's log at request_id " + c.id
	}
	return message
}

// logOnce logs the cause of a failed request, once.
func logOnce(ctx context.Context, logger *slog.Logger, err error) {
	if c := callOf(ctx); c != nil && c.logged.Swap(true) {
		return
	}
	logger.ErrorContext(ctx, "a request failed", "error", err)
}

// requestLogger adds the request's id to every line about a request.
type requestLogger struct{ slog.Handler }

// Handle implements slog.Handler.
func (h requestLogger) Handle(ctx context.Context, r slog.Record) error {
	if c := callOf(ctx); c != nil {
		r = r.Clone()
		r.AddAttrs(slog.String("request_id", c.id))
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
