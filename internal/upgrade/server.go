package upgrade

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	// PingEvery is the interval of a server's pings.
	PingEvery = 5 * time.Second
	// receiveLimit is how long a server waits for a message or a pong.
	receiveLimit = time.Minute
	// endTimeout is how long a client may leave the answer to its request, or the end of its stream, unread.
	endTimeout = 10 * time.Second
	// lingerLimit is how long the end of a stream may take to reach a client that is still sending, because closing at
	// once would make the kernel throw it away.
	lingerLimit = time.Second
	// controlBytes fits any control frame, so that the library writes it in one piece.
	controlBytes = 256
	// ProtocolHeader has the sub-protocols that a client offers.
	ProtocolHeader = "Sec-Websocket-Protocol"
)

// Options configure a Handler.
type Options struct {
	// Closed ends the upgraded connections.
	Closed context.Context //nolint:containedctx // It is the server's context, not a call's.
	// MaxMessageBytes bounds the envelope of a message; several in one message have it together.
	MaxMessageBytes int64
	// PingEvery is the interval of pings.
	PingEvery time.Duration
}

// Handler upgrades the connection of a request that asks for it, and serves it with next. Other requests pass
// unchanged.
func Handler(o Options, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !IsRequested(r) {
			next.ServeHTTP(w, r)
			return
		}
		if !slices.Contains(Tokens(r.Header, ProtocolHeader), Protocol) {
			http.Error(w, "offer the WebSocket sub-protocol "+Protocol, http.StatusBadRequest)
			return
		}
		// A client that does not read the answer must not keep this goroutine.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(endTimeout))
		c := &serverConn{in: bufio.NewReaderSize(nil, readBytes), header: make(http.Header)}
		var err error
		c.messages.ws, err = websocket.Accept(hijacker{w, c}, r, &websocket.AcceptOptions{
			Subprotocols: []string{Protocol}, CompressionMode: websocket.CompressionDisabled,
			InsecureSkipVerify: true, // the server has checked the origin
			OnPingReceived:     c.wire.out.mayPong,
		})
		if err != nil {
			return // Accept has answered
		}
		c.messages.limit = o.MaxMessageBytes + headerBytes
		c.messages.ws.SetReadLimit(c.messages.limit)
		c.serve(o, r, next)
	})
}

// serve serves an upgraded connection until the handler and the connection have ended.
func (c *serverConn) serve(o Options, r *http.Request, next http.Handler) {
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), upgradedKey{}, true))
	var pings sync.WaitGroup
	pings.Go(func() { c.keepalive(ctx, o.PingEvery) })
	// Deferred before the cancel below, so that it runs after it.
	defer pings.Wait()
	defer func() {
		cancel()
		_ = c.messages.ws.CloseNow()
		_ = c.wire.Conn.Close()
	}()
	defer context.AfterFunc(o.Closed, func() {
		cancel()
		_ = c.wire.Conn.Close()
	})()
	inner := r.WithContext(ctx)
	inner.Method, inner.ContentLength = http.MethodPost, -1
	body := &serverBody{Reader: bufio.NewReader(c), c: c}
	inner.Body = &StreamBody{ReadCloser: body}
	inner.Header = r.Header.Clone()
	for _, name := range []string{
		"Connection", "Upgrade", ProtocolHeader, "Sec-Websocket-Key", "Sec-Websocket-Version",
		"Sec-Websocket-Extensions",
	} {
		inner.Header.Del(name) // they are about the connection, and the stream has one
	}
	inner.Header.Set("Content-Type", "application/connect+proto")
	inner.Header.Set("Connect-Protocol-Version", "1")
	// Connect requires HTTP/2 because HTTP/1.1 cannot send in both directions at once. This connection can.
	inner.Proto, inner.ProtoMajor, inner.ProtoMinor = "HTTP/2.0", 2, 0
	next.ServeHTTP(c, inner)
	body.release()
	c.end()
}

// serverBody is the body of the request. It is buffered, because a read of the connection costs more.
type serverBody struct {
	*bufio.Reader

	c        *serverConn
	mu       sync.Mutex // held during a Read
	released bool
}

// Read implements io.Reader.
func (b *serverBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.released {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.Reader.Read(p)
}

// Close implements io.Closer: it ends reads.
func (b *serverBody) Close() error { return b.c.wire.Close() }

// release ends the handler's use of the connection. A proxy may return while its transport still reads the body, and
// two readers must not share the library's buffer.
func (b *serverBody) release() {
	if !b.mu.TryLock() {
		_ = b.Close()
		b.mu.Lock()
	}
	b.released = true
	b.mu.Unlock()
}

// upgradedKey marks the context of a stream on an upgraded connection.
type upgradedKey struct{}

// IsUpgraded reports whether a stream has an upgraded connection.
func IsUpgraded(ctx context.Context) bool { return ctx.Value(upgradedKey{}) != nil }

// IsRequested reports whether a request asks for a WebSocket.
func IsRequested(r *http.Request) bool {
	is := func(name, token string) bool {
		return slices.ContainsFunc(Tokens(r.Header, name), func(t string) bool { return strings.EqualFold(t, token) })
	}
	return r.ProtoMajor == 1 && r.Method == http.MethodGet && is("Connection", "Upgrade") && is("Upgrade", "websocket")
}

// Tokens returns the elements of a header's lists, because an intermediary may have joined or added some.
func Tokens(h http.Header, name string) (all []string) {
	for _, list := range h[name] {
		for token := range strings.SplitSeq(list, ",") {
			all = append(all, strings.Trim(token, " \t"))
		}
	}
	return all
}

// hijacker gives the library the connection of a request, below which there is a serverWire.
type hijacker struct {
	http.ResponseWriter

	c *serverConn
}

// Hijack implements http.Hijacker.
func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	// Never use net/http's reader: net/http would end the request's context with the first failed read, and with it the
	// answers to accepted writes.
	early, _ := buffered.Peek(buffered.Reader.Buffered())
	w := &h.c.wire
	w.out.open(conn)
	w.Conn, w.reader = conn, io.MultiReader(bytes.NewReader(bytes.Clone(early)), conn)
	// The library makes the reader read from what is returned here.
	return w, bufio.NewReadWriter(h.c.in, bufio.NewWriterSize(w, controlBytes)), nil
}

// serverWire is the connection below a serverConn.
type serverWire struct {
	net.Conn

	out    outbox
	reader io.Reader // of the connection, and before it what net/http has read

	mu sync.Mutex
	// fixed: the handler has set a deadline for reads, which a keepalive must not move.
	fixed   bool
	renewed time.Time
}

// Read implements net.Conn.
func (w *serverWire) Read(p []byte) (int, error) {
	w.renew()
	return w.reader.Read(p)
}

// renew extends the deadline of reads now and then, because each change costs as much as a small read.
func (w *serverWire) renew() {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.fixed && now.Sub(w.renewed) > receiveLimit/8 {
		w.renewed = now
		_ = w.Conn.SetReadDeadline(now.Add(receiveLimit))
	}
}

// SetReadDeadline implements net.Conn. Without a deadline the client must still be heard.
func (w *serverWire) SetReadDeadline(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fixed, w.renewed = !t.IsZero(), time.Time{}
	return w.Conn.SetReadDeadline(t)
}

// Write implements net.Conn.
func (w *serverWire) Write(p []byte) (int, error) { return w.out.Write(p) }

// Close ends reads. The library closes the connection as soon as it has answered a close frame; what was written must
// be sent first, so the connection ends with the handler, and must not end before.
func (w *serverWire) Close() error { return w.SetReadDeadline(time.Unix(1, 0)) }

// serverConn is the server's end of a connection, as a handler sees it: the body of the request and the writer of the
// answer.
type serverConn struct {
	wire     serverWire
	in       *bufio.Reader // of the library; belongs to the reading goroutine
	messages messages
	header   http.Header
	// unsent holds what was written since the last Flush, so that envelopes are sent in one message. It belongs to the
	// writing goroutine.
	unsent bytes.Buffer
	failed error
}

// keepalive sends pings until ctx ends. A pong counts as any other data that is received.
func (c *serverConn) keepalive(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		// Otherwise the client will hear from the server without a ping.
		if c.wire.out.isEmpty() {
			// Not ctx, because its end would close the connection before the end of the stream is sent.
			limited, cancel := context.WithTimeout(context.Background(), every)
			_ = c.messages.ws.Ping(limited)
			cancel()
		}
	}
}

// Read implements io.Reader for the request's body. It does not wait for more than has arrived, as the library does,
// because a message is charged to its caller as it arrives.
func (c *serverConn) Read(p []byte) (int, error) {
	if c.messages.failed == nil && c.in.Buffered() == 0 {
		if _, err := c.in.Peek(1); err != nil {
			c.messages.failed = err
		}
	}
	n, err := c.messages.Read(p[:min(len(p), max(1, c.in.Buffered()))])
	if err != nil && (websocket.CloseStatus(err) >= 0 || errors.Is(err, io.EOF)) {
		err = io.EOF
	}
	return n, err
}

// SetReadDeadline is for http.ResponseController.
func (c *serverConn) SetReadDeadline(t time.Time) error { return c.wire.SetReadDeadline(t) }

// SetWriteDeadline is for http.ResponseController.
func (c *serverConn) SetWriteDeadline(t time.Time) error { return c.wire.SetWriteDeadline(t) }

// Header implements http.ResponseWriter.
func (c *serverConn) Header() http.Header { return c.header }

// errNotStream is the error of writes after an answer other than 200.
var errNotStream = errors.New("upgrade: the handler has refused the request after the upgrade")

// WriteHeader implements http.ResponseWriter. The headers have already been sent, and the last envelope has the result
// of a stream. An answer that does not belong to Connect's streaming protocol cannot be sent any more, and ends the
// connection.
func (c *serverConn) WriteHeader(status int) {
	if status != http.StatusOK && c.failed == nil {
		c.failed, c.messages.code = errNotStream, websocket.StatusInternalError
	}
}

// Write implements http.ResponseWriter.
func (c *serverConn) Write(p []byte) (int, error) {
	if c.failed != nil {
		return 0, c.failed
	}
	return c.unsent.Write(p)
}

// FlushError sends what was written.
func (c *serverConn) FlushError() error {
	if c.failed == nil && c.unsent.Len() > 0 {
		c.failed = c.wire.out.send(c.messages.ws, c.unsent.Bytes())
	}
	if c.unsent.Reset(); c.unsent.Cap() > keptBytes {
		c.unsent = bytes.Buffer{}
	}
	return c.failed
}

// Flush implements http.Flusher. The next Write returns a failure.
func (c *serverConn) Flush() { _ = c.FlushError() }

// end sends the rest and a close frame, and waits for the client to close its side.
func (c *serverConn) end() {
	_ = c.wire.SetWriteDeadline(time.Now().Add(endTimeout))
	_ = c.FlushError()
	linger := time.Now().Add(lingerLimit)
	_ = c.wire.SetReadDeadline(linger)
	code := c.messages.code
	if code == 0 {
		code = websocket.StatusNormalClosure
	}
	// If a failed read has lost its place among the frames, the client's close frame is not found, and its side ends
	// with the connection.
	answered := c.messages.ws.Close(code, "")
	half, ok := c.wire.Conn.(interface{ CloseWrite() error })
	if c.wire.out.flush() != nil || answered == nil || !ok || half.CloseWrite() != nil {
		return
	}
	_ = c.wire.SetReadDeadline(linger)
	_, _ = io.Copy(io.Discard, c.wire.reader)
}
