package admission

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// StreamOptions configure how long a stream waits for its client.
type StreamOptions struct {
	// Stall is how long the client may leave a message unread. DrainStall is the same once Draining has ended; it is
	// short, so that a drain ends in order.
	Stall, DrainStall time.Duration
	// Late is how long the rest of a large message may take, and the message of a stream with a single request.
	Late time.Duration
	// Draining ends when the server drains.
	Draining context.Context //nolint:containedctx // It is the server's context, not a call's.
	// OneRequest reports that no message follows the first.
	OneRequest bool
}

func (o *StreamOptions) stall() time.Duration {
	if o.Draining.Err() != nil {
		return min(o.Stall, o.DrainStall)
	}
	return o.Stall
}

// StreamControls let a stream's handler control its connection, which Connect does not offer. They own the deadlines of
// the stream: there are none, because a stream may last long, except while the handler waits for the client.
type StreamControls struct {
	options  StreamOptions
	response *http.ResponseController
	body     *Body              // nil when there is none
	stop     context.CancelFunc // ends a wait of the body for memory
	sending  *StallTimer
	// requested ends what AwaitRequest has begun; nil when it has not.
	requested func()
	// drained reports that a drain has ended the wait for the request.
	drained atomic.Bool
}

// streamControlsKey finds the controls of a stream in its context.
type streamControlsKey struct{}

// StreamControlsOf returns the controls that WithStreamControls has put there.
func StreamControlsOf(ctx context.Context) *StreamControls {
	return ctx.Value(streamControlsKey{}).(*StreamControls) //nolint:forcetypeassert // Every stream has them.
}

// WithStreamControls passes the controls to the handler of a stream.
func WithStreamControls(o StreamOptions, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &StreamControls{options: o, response: http.NewResponseController(w)}
		c.sending = NewStallTimer(o.stall(), func() { _ = c.response.SetWriteDeadline(past) }) // as in Interrupt
		defer c.sending.Close()
		// Only a drain ends waits early.
		defer context.AfterFunc(o.Draining, func() { c.sending.Shorten(o.stall()) })()
		if body, ok := r.Body.(*Body); ok {
			ctx, stop := context.WithCancel(r.Context())
			defer stop()
			defer body.stream(ctx, o.Late, func() { InterruptRead(c.response) })()
			c.body, c.stop = body, stop
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), streamControlsKey{}, c)))
	})
}

// Begin removes the deadlines of an ordinary request. The handler calls it once the stream is admitted, and calls stop
// before it returns. A stream with a single request must receive it in time, and at once when the server drains.
func (c *StreamControls) Begin() (stop func()) {
	_ = c.response.SetWriteDeadline(time.Time{})
	_ = c.response.SetReadDeadline(time.Time{})
	if !c.options.OneRequest || c.body == nil {
		return func() {}
	}
	// The response's controls must not be used after this.
	c.requested = sync.OnceFunc(AfterFunc(c.options.Draining, func() {
		c.drained.Store(true)
		c.Interrupt()
	}))
	c.body.stall.Begin()
	return c.requested
}

// End sets the deadline for the end of the stream, which is sent when the handler has returned.
func (c *StreamControls) End() { _ = c.response.SetWriteDeadline(time.Now().Add(c.options.stall())) }

// Drained reports whether a drain has ended the wait for the request.
func (c *StreamControls) Drained() bool { return c.drained.Load() }

// Whole records that a message has arrived.
func (c *StreamControls) Whole() {
	if c.requested != nil {
		c.requested()
	}
	if c.body != nil {
		c.body.stall.End()
	}
}

// Grow charges the decoded size of the message.
func (c *StreamControls) Grow(bytes int64) error {
	if c.body == nil {
		return nil
	}
	return c.body.Grow(bytes)
}

// Release records that the message is no longer in memory.
func (c *StreamControls) Release() {
	if c.body != nil {
		c.body.Release()
	}
}

// Interrupt makes reads fail once what has arrived is read.
func (c *StreamControls) Interrupt() {
	if c.stop != nil {
		c.stop()
	}
	InterruptRead(c.response)
}

// Send sends a message unless the client leaves it unread for too long.
func (c *StreamControls) Send(message func() error) error {
	c.sending.Begin()
	defer c.sending.End()
	return message()
}

// InterruptRead makes reads of a request's body fail once what has arrived is read. The handler must not have returned.
// Only a response writer that is not net/http's own refuses that, and then there is no connection to wait for.
func InterruptRead(c *http.ResponseController) { _ = c.SetReadDeadline(past) }

// AfterFunc is context.AfterFunc whose stop waits for f if it is running.
func AfterFunc(ctx context.Context, f func()) (stop func()) {
	ended := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ended)
		f()
	})
	return func() {
		if !cancel() {
			<-ended
		}
	}
}
