package server

import (
	"io"
	"net/http"
	"time"
)

// bodyTimeout is how long a client may take to send the body of a request that
// is no stream. Without it, clients that send nothing would hold all the places
// of the gate for ever.
const bodyTimeout = 30 * time.Second

// readWithin makes reads of a request's body fail after a time.
func readWithin(limit time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !hasBody(r) {
			next.ServeHTTP(w, r)
			return
		}
		controls := http.NewResponseController(w)
		// Only a writer that is not net/http's own refuses, and then there is no
		// connection to wait for.
		if controls.SetReadDeadline(time.Now().Add(limit)) == nil {
			if body, ok := r.Body.(*meteredBody); ok {
				body.restart = func() { _ = controls.SetReadDeadline(time.Now().Add(limit)) }
			}
			r.Body = &timedBody{r.Body, controls}
		}
		next.ServeHTTP(w, r)
	})
}

// hasBody tells whether a body may be given a deadline. Without a body, net/http
// reads on already to learn that the client has gone; a deadline would look to
// it like that.
func hasBody(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
}

// timedBody takes the deadline away at the end of the body. Otherwise one that
// passes while the request is being answered would end it: over HTTP/1.1, a
// failed read means that the client has gone.
type timedBody struct {
	io.ReadCloser
	controls *http.ResponseController
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.controls.SetReadDeadline(time.Time{})
	}
	return n, err
}
