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
	stop     context.CancelFunc // ends a wait of the body for room
	sending  *lateness
}

// withControls hands the handler of a stream its controls.
func (s *Server) withControls(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &controls{response: http.NewResponseController(w)}
		c.sending = newLateness(s.stall, func() { _ = c.response.SetWriteDeadline(past) }) // as below
		defer c.sending.close()
		_ = c.response.SetWriteDeadline(time.Time{}) // a stream may last
		if body, ok := r.Body.(*meteredBody); ok {
			var stop context.CancelFunc
			body.ctx, stop = context.WithCancel(body.ctx)
			defer stop()
			body.late = newLateness(s.late, func() { interruptRead(c.response) })
			defer body.late.close()
			c.body, c.stop = body, stop
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

// release says that nothing is kept of the message any more.
func (c *controls) release() {
	if c.body != nil {
		c.body.release()
	}
}

// interrupt makes reads fail once what has arrived is read.
func (c *controls) interrupt() {
	if c.stop != nil {
		c.stop()
	}
	interruptRead(c.response)
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
