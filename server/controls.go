package server

import (
	"context"
	"net/http"
	"time"
)

// controlsKey finds the controls of a stream in its context.
type controlsKey struct{}

// controls are what a stream's handler can do to its connection, which Connect
// has no way to do.
type controls struct {
	response *http.ResponseController
	body     *meteredBody
	sending  *lateness
}

// withControls hands the handler of a stream its controls.
func withControls(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &controls{response: http.NewResponseController(w)}
		c.sending = newLateness(stallTimeout, func() { _ = c.response.SetWriteDeadline(past) }) // as below
		defer c.sending.close()
		_ = c.response.SetWriteDeadline(time.Time{}) // a stream may last
		if body, ok := r.Body.(*meteredBody); ok {
			body.late = newLateness(bodyTimeout, func() { interruptRead(c.response) })
			defer body.late.close()
			c.body = body
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), controlsKey{}, c)))
	})
}

// controlsOf returns the controls that withControls has put there.
func controlsOf(ctx context.Context) *controls {
	return ctx.Value(controlsKey{}).(*controls) //nolint:forcetypeassert // Every stream is mounted with them.
}

// whole says that a message has arrived.
func (c *controls) whole() {
	if c.body != nil {
		c.body.whole()
	}
}

// send sends a message unless the client leaves it unread for too long.
func (c *controls) send(message func() error) error {
	c.sending.expect()
	defer c.sending.arrived()
	return message()
}

// past ends what waits at once.
var past = time.Unix(1, 0)

// interruptRead makes reads of the request's body fail once what has arrived
// is read. The handler must not have returned.
func interruptRead(c *http.ResponseController) {
	// Only a writer that is not net/http's own refuses, and then there is no
	// connection to wait for.
	_ = c.SetReadDeadline(past)
}
