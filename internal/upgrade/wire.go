package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"connectrpc.com/connect"
	"github.com/coder/websocket"
)

// Protocol is the WebSocket sub-protocol.
const Protocol = "seqledger.v1"

const (
	// headerBytes is the size of an envelope's prefix: flags and the length.
	headerBytes = 5
	// readBytes fits a frame of some fifty small writes, so that one read gets it.
	readBytes = 16 << 10
	// keptBytes is the largest buffer that is kept for the next message.
	keptBytes = 256 << 10
	// maxPongs bounds the pongs that wait for a peer that does not read, which must not fill memory.
	maxPongs = 16
)

// outbox is the sending half of a connection. The WebSocket library writes frames to it, which never blocks, and one
// system call then sends a whole message. If the library wrote to the connection itself, a pong after a message that
// the peer does not read would fail after five seconds, and the connection with it: a server whose disk is slow stops
// reading for longer.
type outbox struct {
	conn io.Writer
	held atomic.Bool // a message is being written, and its writer flushes
	// sending has an element while bytes are written to conn. It is a lock before mu, and a channel so that tests with
	// a clock that jumps can wait for it.
	sending chan struct{}

	mu     sync.Mutex
	unsent []byte // at most one message, a ping and maxPongs pongs
	pongs  int    // in unsent, at most
	failed error  // conn no longer has whole frames
}

func (o *outbox) open(conn io.Writer) { o.conn, o.sending = conn, make(chan struct{}, 1) }

// Write implements io.Writer for the library.
func (o *outbox) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unsent = append(o.unsent, p...)
	if !o.held.Load() {
		// Sends a control frame. Ends at the latest with the connection. There are no more than unsent has control
		// frames.
		go func() { _ = o.flush() }()
	}
	return len(p), o.failed
}

// flush sends what was written.
func (o *outbox) flush() error {
	o.sending <- struct{}{}
	defer func() { <-o.sending }()
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.failed == nil && len(o.unsent) > 0 {
		next := o.unsent
		o.unsent, o.pongs = nil, 0
		o.mu.Unlock()
		// mu is free during the write, so that the library's Write never waits for the peer.
		_, err := o.conn.Write(next)
		o.mu.Lock()
		if o.failed = err; o.unsent == nil && cap(next) <= keptBytes {
			o.unsent = next[:0]
		}
	}
	return o.failed
}

// send sends a binary message. Calls must not overlap.
func (o *outbox) send(ws *websocket.Conn, message []byte) error {
	o.held.Store(true)
	err := ws.Write(context.Background(), websocket.MessageBinary, message)
	o.held.Store(false)
	if err != nil {
		return err
	}
	return o.flush()
}

// isEmpty reports whether everything was sent.
func (o *outbox) isEmpty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.unsent) == 0
}

// mayPong reports whether a ping is answered. A peer that sends pings and does not read must not fill memory.
func (o *outbox) mayPong(context.Context, []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pongs++
	return o.pongs <= maxPongs
}

// messages reads the contents of binary messages as one sequence of bytes.
type messages struct {
	ws    *websocket.Conn
	limit int64 // of one message

	message io.Reader // the current one, or nil
	size    int64     // what was read of it
	// failed is why no more can be read, because a failed read may have lost its place among the frames.
	failed error
	// code is the close code of a refused message, or 0.
	code websocket.StatusCode
}

// Read implements io.Reader.
func (m *messages) Read(p []byte) (n int, err error) {
	for n == 0 && len(p) > 0 && m.failed == nil {
		if m.message == nil {
			m.next()
			continue
		}
		n, err = m.message.Read(p)
		m.size += int64(n)
		switch {
		case m.size > m.limit:
			m.refuse(websocket.StatusMessageTooBig, "a WebSocket message has at most %d bytes", m.limit)
			return 0, m.failed
		case errors.Is(err, io.EOF):
			m.message = nil
		case err != nil:
			m.failed = err
		}
	}
	if n > 0 {
		return n, nil
	}
	return 0, m.failed
}

// next begins the next message.
func (m *messages) next() {
	kind, reader, err := m.ws.Reader(context.Background())
	switch {
	case err != nil:
		m.failed = err
	case kind != websocket.MessageBinary:
		m.refuse(websocket.StatusUnsupportedData, "a WebSocket message must be binary")
	default:
		m.message, m.size = reader, 0
	}
}

// refuse ends reading because of a message.
func (m *messages) refuse(code websocket.StatusCode, format string, args ...any) {
	m.code, m.failed = code, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}
