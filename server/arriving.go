package server

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"connectrpc.com/connect"
)

// A message is gathered in memory until it is whole. The limit of one message
// times the limit of requests would be a hundred gigabytes, therefore all of
// them together have a limit too. The first bytes of each are free, so that
// ordinary requests get through while somebody fills the memory with large ones.

const (
	maxArrivingBytes = 256 << 20
	freeBytes        = 16 << 10
)

var errTooMuchArriving = errors.New("the server is receiving as much as it may: send it again later, or less at a time")

// arriving counts the bytes of messages that are not whole yet.
type arriving struct {
	limit int64
	bytes atomic.Int64
}

func (a *arriving) take(n int64) bool {
	if a.bytes.Add(n) > a.limit {
		a.bytes.Add(-n)
		return false
	}
	return true
}

// bodyKey finds the meteredBody of a request in its context.
type bodyKey struct{}

// meteredBody counts what is read from it until somebody says that it was
// taken.
type meteredBody struct {
	io.ReadCloser

	arriving *arriving
	read     int64 // of the present message
	taken    int64 // of arriving, for it
	// late ends the wait for the rest of a large message of a stream; nil for
	// other requests, which readWithin ends.
	late *lateness
}

// Read implements io.Reader.
func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if more := b.read - freeBytes - b.taken; more > 0 {
		if !b.arriving.take(more) {
			return 0, connect.NewError(connect.CodeResourceExhausted, errTooMuchArriving)
		}
		if b.taken == 0 && b.late != nil {
			b.late.expect()
		}
		b.taken += more
	}
	return n, err
}

// whole says that the message is decoded, or that there will be none. It is
// called by the goroutine that reads, or after it has ended.
func (b *meteredBody) whole() {
	if b.late != nil && b.taken > 0 {
		b.late.arrived()
	}
	b.arriving.bytes.Add(-b.taken)
	b.read, b.taken = 0, 0
}

// metered bounds what arrives for a handler.
func (s *Server) metered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		b := &meteredBody{ReadCloser: r.Body, arriving: &s.arriving}
		defer b.whole()
		r.Body = b
		next.ServeHTTP(w, r)
	})
}
