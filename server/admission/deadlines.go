package admission

import (
	"context"
	"io"
	"net/http"
	"time"
)

const (
	// BodyTimeout is how long a client may take to send the body of a request that is not a stream, or the rest of a
	// large message of a stream.
	BodyTimeout = 30 * time.Second
	// answerTimeout is how long a request that is not a stream may take from its first byte to the last of its answer,
	// once its caller is known.
	answerTimeout = 5 * time.Minute
	// readTimeout is how long the answer to a read may take, from when it is ready.
	readTimeout = 30 * time.Second
	// StallTimeout is how long a stream may leave a message unread.
	StallTimeout = 2 * time.Minute
)

// past is a deadline that ends a wait at once.
var past = time.Unix(1, 0)

// deadlines are the deadlines of one request. Those of a stream are in StreamControls; no other code sets deadlines.
// Only a response writer that is not net/http's own refuses them, and then there is no connection to wait for.
//
// Over HTTP/1.1 a request without a body gets no deadline for reads: net/http already reads ahead to detect that the
// client has disconnected, and would take the end of a deadline for that.
type deadlines struct {
	controls *http.ResponseController
	hasBody  bool
}

func newDeadlines(w http.ResponseWriter, r *http.Request) deadlines {
	return deadlines{http.NewResponseController(w), r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0}
}

// visit sets the deadlines of a request of an unknown caller: for its answer, and for the body, because net/http reads
// and drops one before it sends an answer.
func (d *deadlines) visit() {
	_ = d.controls.SetWriteDeadline(time.Now().Add(visitAnswer))
	if d.hasBody {
		_ = d.controls.SetReadDeadline(time.Now().Add(visitBody))
	}
}

// admitted sets the deadlines of a request of a known caller. The deadline of a small answer stays after the handler
// has returned, because its end is written then; over HTTP/1.1 the next request moves it.
func (d *deadlines) admitted() {
	_ = d.controls.SetWriteDeadline(time.Now().Add(answerTimeout))
	if d.hasBody {
		_ = d.controls.SetReadDeadline(time.Now().Add(BodyTimeout))
	}
}

// cut ends all reads and writes.
func (d *deadlines) cut() {
	_ = d.controls.SetReadDeadline(past)
	_ = d.controls.SetWriteDeadline(past)
}

// Answering sets the deadline for the answer to a read, which may be large.
func Answering(ctx context.Context) {
	if v, ok := ctx.Value(visitKey{}).(*visit); ok {
		_ = v.deadlines.controls.SetWriteDeadline(time.Now().Add(readTimeout))
	}
}

// BodyDeadline removes the body's deadline at the end of the body. Otherwise it might pass while the request is being
// answered and end it: over HTTP/1.1, a failed read means that the client has disconnected.
func BodyDeadline(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v, ok := r.Context().Value(visitKey{}).(*visit); ok && v.deadlines.hasBody {
			r.Body = &timedBody{r.Body, v}
		}
		next.ServeHTTP(w, r)
	})
}

// timedBody is a body with a deadline.
type timedBody struct {
	io.ReadCloser
	visit *visit
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		// A transport that passes the body on may read its end when the handler has returned.
		b.visit.mu.Lock()
		defer b.visit.mu.Unlock()
		if !b.visit.ended {
			_ = b.visit.deadlines.controls.SetReadDeadline(time.Time{})
		}
	}
	return n, err
}
