// Package unsent tells whether an HTTP request that failed may have reached a server, and sends requests so that this
// question seldom arises.
package unsent

import (
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// Watch returns a request to send in place of r, and a function that reports whether a connection was found for it.
// Until then nothing of the request has left: the name was not resolved, the server did not accept, TLS failed, or a
// proxy did not connect.
//
// A later point, such as the first written header, would be no proof. The goroutine that writes to a connection may
// still be about to begin when the transport gives the request up.
func Watch(r *http.Request) (watched *http.Request, connected func() bool) {
	var found atomic.Bool
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { found.Store(true) },
	})
	return r.WithContext(ctx), found.Load
}
