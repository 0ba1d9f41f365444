package server

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
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
	stall    func() time.Duration
	// oneRequest says that nothing comes after the first message.
	oneRequest bool
	// requested ends what awaitRequest has begun; nil when it has not.
	requested func()
	// drained says that a drain has cut the wait for the request short.
	drained atomic.Bool
}

// withControls hands the handler of a stream its controls. oneRequest says that
// nothing comes after the first message.
func (s *Server) withControls(oneRequest bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &controls{response: http.NewResponseController(w), stall: s.stallLimit, oneRequest: oneRequest}
		c.sending = newLateness(s.stallLimit(), func() { _ = c.response.SetWriteDeadline(past) }) // as below
		defer c.sending.close()
		// Only a drain is in a hurry.
		defer context.AfterFunc(s.draining, func() { c.sending.shorten(s.stallLimit()) })()
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

// stallLimit is how long a client may leave a message unread. In a drain it is
// short enough for the rest to be orderly.
func (s *Server) stallLimit() time.Duration {
	if s.isDraining() {
		return min(s.stall, s.options.DrainTimeout/2)
	}
	return s.stall
}

// awaitRequest is for streams that begin with their only request: whoever does
// not send it, or is late when the server drains, loses his place. stop is
// called before the handler returns.
func (c *controls) awaitRequest(draining context.Context) (stop func()) {
	if !c.oneRequest || c.body == nil {
		return func() {}
	}
	ended := make(chan struct{})
	cancel := context.AfterFunc(draining, func() {
		defer close(ended)
		c.drained.Store(true)
		c.interrupt()
	})
	c.requested = sync.OnceFunc(func() {
		if !cancel() {
			<-ended // because the response's controls must not be used after this
		}
	})
	c.body.late.expect()
	return c.requested
}

// mayLast takes away the deadlines of a request that is no stream. The lateness
// of the body and of what is sent takes their place.
func (c *controls) mayLast() {
	_ = c.response.SetWriteDeadline(time.Time{})
	_ = c.response.SetReadDeadline(time.Time{})
}

// mustEnd sets the deadline for the end of the stream, which is sent when the
// handler has returned.
func (c *controls) mustEnd() { _ = c.response.SetWriteDeadline(time.Now().Add(c.stall())) }

// controlsOf returns the controls that withControls has put there.
func controlsOf(ctx context.Context) *controls {
	return ctx.Value(controlsKey{}).(*controls) //nolint:forcetypeassert // Every stream is mounted with them.
}

// whole says that a message has arrived.
func (c *controls) whole() {
	if c.requested != nil {
		c.requested()
	}
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
