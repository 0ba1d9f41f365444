package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

// How slow a client may be. A request occupies its place among the requests in flight until it ends, so clients that
// send or read almost nothing could fill the gateway. Only the time that the gateway waits for the client counts, not
// the service's time.
const (
	slowest  = 4 << 10          // bytes per second
	patience = 20 * time.Second // in addition to the time at that rate
	// patienceRefused is that for a body of which nothing was wanted.
	patienceRefused = 5 * time.Second
)

// errSlowBody is the error of a body that arrives too slowly.
var errSlowBody = fmt.Errorf("the body of the request comes too slowly: %w", os.ErrDeadlineExceeded)

// body is a request body with a deadline.
type body struct {
	io.ReadCloser
	controls *http.ResponseController

	until  atomic.Int64  // deadline of the current Read in Unix nanoseconds, or 0
	waited time.Duration // time spent waiting for the client in Read
	bytes  int64
	begun  atomic.Bool
	ended  atomic.Bool // at its end or by an error; a transport may briefly go on reading after the handler
}

// Read implements io.Reader. It removes the deadline after each call, because net/http takes a deadline that expires
// after the body for a client that has disconnected. If the body was too slow, the deadline stays, so that net/http
// does not wait for the rest.
func (b *body) Read(p []byte) (int, error) {
	began := time.Now()
	b.begun.Store(true)
	allowed := patience + time.Duration(b.bytes)*time.Second/slowest
	deadline := began.Add(allowed - b.waited)
	b.until.Store(deadline.UnixNano())
	_ = b.controls.SetReadDeadline(deadline)
	n, err := b.ReadCloser.Read(p)
	b.waited += time.Since(began)
	b.bytes += int64(n)
	b.ended.Store(err != nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, errSlowBody
	}
	b.until.Store(0)
	_ = b.controls.SetReadDeadline(time.Time{})
	return n, err
}

// bodyKey is the context key of a request's body.
type bodyKey struct{}

// tooSlow reports whether the body of a request has arrived too slowly. It checks the deadline itself, because net/http
// ends the request's context before Read returns.
func tooSlow(ctx context.Context) bool {
	b, ok := ctx.Value(bodyKey{}).(*body)
	return ok && b.until.Load() != 0 && time.Now().UnixNano() >= b.until.Load()
}

// leave sets a deadline for the rest of a body that the request did not need, because net/http reads some of it before
// it sends the response.
func (b *body) leave() {
	wait := patience
	if !b.begun.Load() {
		wait = patienceRefused
	}
	if !b.ended.Load() {
		_ = b.controls.SetReadDeadline(time.Now().Add(wait))
	}
}

// response is a ResponseWriter with a deadline for each write. It records the status.
type response struct {
	http.ResponseWriter
	controls *http.ResponseController

	status   int
	cors     http.Header // of each response
	informed bool        // an informational response was sent
}

// WriteHeader implements http.ResponseWriter.
func (s *response) WriteHeader(status int) {
	if s.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		s.status = status
		if s.informed { // httputil.ReverseProxy has then removed all headers
			for name, values := range s.cors {
				s.Header()[name] = append(slices.Clone(values), s.Header()[name]...)
			}
		}
	}
	s.informed = s.informed || status < 200
	s.deadline(0)
	s.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (s *response) Write(b []byte) (int, error) {
	if s.status == 0 {
		s.WriteHeader(http.StatusOK)
	}
	s.deadline(len(b))
	return s.ResponseWriter.Write(b)
}

// deadline sets the time by which the client must have read n more bytes. ServeHTTP clears the deadline that the
// connection's previous request left. Only a response writer other than net/http's refuses it, and then there is no
// connection to wait for.
func (s *response) deadline(n int) {
	_ = s.controls.SetWriteDeadline(time.Now().Add(patience + time.Duration(n)*time.Second/slowest))
}

// end sets the deadline for what net/http writes after the handler. net/http may first wait for a body; see body.leave.
func (s *response) end() { _ = s.controls.SetWriteDeadline(time.Now().Add(2 * patience)) }

// Unwrap is for http.ResponseController.
func (s *response) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// FlushError is for http.ResponseController.
func (s *response) FlushError() error {
	s.deadline(0)
	return s.controls.Flush()
}

// Flush implements http.Flusher.
func (s *response) Flush() { _ = s.FlushError() }
