package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// How slow a client may be. A request takes its place among those under way until it ends, so that
// clients that send or read next to nothing would fill the gateway. What counts is the time that the
// gateway waits for the client, and not the service's.
const (
	slowest  = 4 << 10          // bytes per second
	patience = 20 * time.Second // besides
)

// errSlowBody is the error of a body that comes slower than that.
var errSlowBody = fmt.Errorf("the body of the request comes too slowly: %w", os.ErrDeadlineExceeded)

// body is the body of a request with a deadline.
type body struct {
	io.ReadCloser
	controls *http.ResponseController

	waited time.Duration // for the client, in Read
	bytes  int64
}

// Read implements io.Reader. The deadline is removed after each call, because net/http takes the
// end of a deadline behind the body for a client that has disconnected. It stays when the body was
// too slow, so that net/http does not wait for the rest.
func (b *body) Read(p []byte) (int, error) {
	began := time.Now()
	allowed := patience + time.Duration(b.bytes)*time.Second/slowest
	_ = b.controls.SetReadDeadline(began.Add(allowed - b.waited))
	n, err := b.ReadCloser.Read(p)
	b.waited += time.Since(began)
	b.bytes += int64(n)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, errSlowBody
	}
	_ = b.controls.SetReadDeadline(time.Time{})
	return n, err
}

// response is a response with a deadline for each write. It notes the status.
type response struct {
	http.ResponseWriter
	controls *http.ResponseController

	status int
}

// WriteHeader implements http.ResponseWriter.
func (s *response) WriteHeader(status int) {
	if s.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		s.status = status
	}
	s.deadline(0)
	s.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (s *response) Write(b []byte) (int, error) {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	s.deadline(len(b))
	return s.ResponseWriter.Write(b)
}

// deadline sets the time until which the client must have read n bytes more. ServeHTTP removes the
// deadline of the connection's request before, and sets the one of what is written at its end. Only a response
// writer that is not net/http's own refuses it, and then there is no connection to wait for.
func (s *response) deadline(n int) {
	_ = s.controls.SetWriteDeadline(time.Now().Add(patience + time.Duration(n)*time.Second/slowest))
}

// Unwrap is for http.ResponseController.
func (s *response) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// FlushError is for http.ResponseController.
func (s *response) FlushError() error {
	s.deadline(0)
	return s.controls.Flush()
}

// Flush implements http.Flusher.
func (s *response) Flush() { _ = s.FlushError() }
