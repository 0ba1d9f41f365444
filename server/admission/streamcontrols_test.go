package admission

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// connection is a response whose deadlines end reads and writes, as those of a connection do.
type connection struct {
	http.ResponseWriter

	read, write time.Time
	cutRead     func() // called when the deadline of reads has passed
	cutWrite    func()
}

func newConnection() *connection { return &connection{ResponseWriter: httptest.NewRecorder()} }

func (c *connection) SetReadDeadline(t time.Time) error {
	c.read = t
	if !t.IsZero() && !t.After(time.Now()) && c.cutRead != nil {
		c.cutRead()
	}
	return nil
}

func (c *connection) SetWriteDeadline(t time.Time) error {
	c.write = t
	if !t.IsZero() && !t.After(time.Now()) && c.cutWrite != nil {
		c.cutWrite()
	}
	return nil
}

func streamOptions(draining context.Context) StreamOptions {
	return StreamOptions{Stall: time.Minute, DrainStall: time.Second, Late: 10 * time.Second, Draining: draining}
}

// serveStream runs a handler as a stream of a party, with a body, and returns its connection.
func serveStream(t *testing.T, o StreamOptions, content io.Reader, handler func(*StreamControls, *Body)) *connection {
	t.Helper()
	controller := newController(t, Options{Shares: true})
	w := newConnection()
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	var body *Body
	if content != nil {
		body = newBody(controller, partyOf(controller, "a", Limits{}), true, content)
		r.Body = body
	}
	WithStreamControls(o, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		handler(StreamControlsOf(r.Context()), body)
	})).ServeHTTP(w, r)
	return w
}

// A stream has no deadlines but while it waits for its client, and its end has one.
func TestStreamHasNoDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var at time.Time
		w := serveStream(t, streamOptions(t.Context()), nil, func(c *StreamControls, _ *Body) {
			defer c.Begin()()
			<-time.After(time.Hour)
			check.Is(t, c.Send(func() error { return nil }), nil)
			check.Is(t, c.Grow(1<<30), nil, "a stream without a body has nothing to charge")
			c.Whole()
			c.Release()
			at = time.Now()
			c.End()
		})
		if !w.read.IsZero() || !w.write.Equal(at.Add(time.Minute)) {
			t.Errorf("the deadlines are %v and %v, at %v", w.read, w.write, at)
		}
	})
}

// A client that leaves a message unread is cut off after the stall time, and after a shorter one when the server
// drains, even if the drain begins while the message waits.
func TestUnreadMessageIsCutOff(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ drainAfter, want time.Duration }{
		"no drain":           {time.Hour, time.Minute},
		"drained before":     {0, time.Second},
		"drained meanwhile":  {20 * time.Second, 21 * time.Second},
		"drained at the end": {59*time.Second + 500*time.Millisecond, time.Minute + 500*time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				draining, drain := context.WithCancel(t.Context())
				defer drain()
				began := time.Now()
				if test.drainAfter == 0 {
					drain()
				} else {
					time.AfterFunc(test.drainAfter, drain)
				}
				unread := make(chan struct{})
				controller := newController(t, Options{Shares: true})
				w := newConnection()
				w.cutWrite = func() { close(unread) }
				r := httptest.NewRequest(http.MethodPost, "/", nil)
				r.Body = newBody(controller, partyOf(controller, "a", Limits{}), true, strings.NewReader(""))
				handler := func(_ http.ResponseWriter, r *http.Request) {
					err := StreamControlsOf(r.Context()).Send(func() error {
						<-unread
						return io.ErrClosedPipe
					})
					if took := time.Since(began); !errors.Is(err, io.ErrClosedPipe) || took != test.want {
						t.Errorf("cut off after %v, want %v: %v", took, test.want, err)
					}
				}
				WithStreamControls(streamOptions(draining), http.HandlerFunc(handler)).ServeHTTP(w, r)
			})
		})
	}
}

// A stream of one request waits for it for a bounded time, and not at all when the server drains. Once the request is
// there, neither ends the stream.
func TestRequestOfAStreamIsAwaited(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		drainAfter, arrives, want time.Duration
		drained                   bool
	}{
		"it comes":             {time.Hour, time.Second, time.Second, false},
		"it does not come":     {time.Hour, time.Hour, 10 * time.Second, false},
		"the server drains":    {3 * time.Second, time.Hour, 3 * time.Second, true},
		"it drains afterwards": {30 * time.Second, time.Second, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				draining, drain := context.WithCancel(t.Context())
				defer drain()
				time.AfterFunc(test.drainAfter, drain)
				o := streamOptions(draining)
				o.OneRequest = true
				reader, writer := io.Pipe()
				time.AfterFunc(test.arrives, func() { _, _ = io.WriteString(writer, enveloped(0, "x")) })
				began := time.Now()
				controller := newController(t, Options{Shares: true})
				w := newConnection()
				w.cutRead = func() { _ = reader.CloseWithError(context.DeadlineExceeded) }
				r := httptest.NewRequest(http.MethodPost, "/", nil)
				r.Body = newBody(controller, partyOf(controller, "a", Limits{}), true, reader)
				handler := func(_ http.ResponseWriter, r *http.Request) {
					c := StreamControlsOf(r.Context())
					stop := c.Begin()
					_, err := io.ReadFull(r.Body, make([]byte, len(enveloped(0, "x"))))
					if took := time.Since(began); took != test.want || c.Drained() != test.drained ||
						(err == nil) != (test.want == test.arrives) {
						t.Errorf("after %v, drained %v: %v", took, c.Drained(), err)
					}
					if err == nil {
						c.Whole()
						<-time.After(time.Hour) // the stream goes on, whatever was due
						if c.Drained() || !w.read.IsZero() {
							t.Error("the wait for the request has ended a stream that has it")
						}
					}
					stop()
				}
				WithStreamControls(o, http.HandlerFunc(handler)).ServeHTTP(w, r)
				_ = reader.Close()
			})
		})
	}
}

// Operations of a few bytes each take more memory decoded, which is charged until it is released.
func TestDecodedSizeIsCharged(t *testing.T) {
	t.Parallel()
	serveStream(t, streamOptions(t.Context()), strings.NewReader(enveloped(0, "x")), func(c *StreamControls, b *Body) {
		check.Is(t, check.Err(io.ReadFull(b, make([]byte, len(enveloped(0, "x"))))), nil)
		share := b.party.Share
		if err := c.Grow(freeBytes); err != nil || share.used[MessageBytes].Used() != 0 {
			t.Errorf("a little is free: %v, %d bytes are charged", err, share.used[MessageBytes].Used())
		}
		if err := c.Grow(1 << 20); err != nil || share.used[MessageBytes].Used() < 1<<20 {
			t.Errorf("%v, %d bytes are charged", err, share.used[MessageBytes].Used())
		}
		c.Whole()
		c.Release()
		check.Equal(t, share.used[MessageBytes].Used(), 0, "%d bytes are charged at the end")
	})
}
