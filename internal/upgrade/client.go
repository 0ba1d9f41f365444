package upgrade

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/coder/websocket"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	// Flags of an envelope.
	flagCompressed = 1
	flagEnd        = 2
	// maxMessageBytes is the longest message that a client accepts. A server's messages are far smaller, and a bogus
	// length must not allocate memory.
	maxMessageBytes = 64 << 20
	// answerTimeout is how long the server may take to upgrade. It is short because an intermediary may drop a request
	// that it does not understand, and the fallback to an ordinary stream waits for this one.
	answerTimeout = time.Second
	// receiveEvery is the interval in which a client checks that it has received something. It ends the stream after
	// two intervals without anything.
	receiveEvery = 10 * time.Second
	// closeTimeout is how long a client's close frame may take to be sent.
	closeTimeout = time.Second
)

// ErrSilent ends a stream whose server has sent nothing, not even a ping.
var ErrSilent = errors.New("the server has sent no keepalive")

// RefusedError is the answer of a server that refuses the upgrade.
type RefusedError struct {
	// Status is the HTTP status, such as 405.
	Status int
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the server answered with status %d instead of switching to %s", e.Status, Protocol)
}

// Codec encodes and decodes messages.
type Codec interface {
	MarshalAppend(dst []byte, m any) ([]byte, error)
	Unmarshal(data []byte, m any) error
}

// ClientConn is the client's end of a connection. One goroutine may send while another receives. Close it after use.
type ClientConn struct {
	wire     clientWire
	messages messages
	reader   *bufio.Reader // of messages: a read of a message costs more than one of a buffer
	codec    Codec
	in       []byte // of the receiver
	// silent is set once the stream was ended because of a silent server.
	silent atomic.Bool
	close  context.CancelFunc // ends watch
	header http.Header

	sending sync.Mutex // guards out
	out     []byte
}

// NewTransport returns a transport with transport's settings that can switch protocols, which HTTP/2 cannot.
func NewTransport(transport *http.Transport) *http.Transport {
	t := transport.Clone()
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.HTTP2 = nil
	// Otherwise a clone of a transport for HTTP/2 would offer only HTTP/2.
	t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	if t.TLSClientConfig != nil {
		t.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	t.ResponseHeaderTimeout = answerTimeout
	return t
}

// Dial requests an upgraded connection for the procedure at url. header is added to the request. The stream ends with
// ctx. The error wraps a [*RefusedError], that of ctx, or the transport's.
func Dial(ctx context.Context, transport http.RoundTripper, url string,
	header http.Header, codec Codec) (*ClientConn, error) {
	c := &ClientConn{codec: codec}
	h := &handshake{RoundTripper: transport, wire: &c.wire}
	//nolint:bodyclose // The library closes the body, which is the connection.
	ws, response, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		// No redirect is followed, so that a credential reaches the configured server alone.
		HTTPClient: &http.Client{
			Transport:     h,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		HTTPHeader: header, Subprotocols: []string{Protocol}, CompressionMode: websocket.CompressionDisabled,
		OnPingReceived: c.wire.out.mayPong,
	})
	switch {
	case err != nil && response == nil:
		return nil, err
	case err != nil:
		return nil, &RefusedError{Status: response.StatusCode}
	case ws.Subprotocol() != Protocol:
		_ = ws.CloseNow()
		return nil, &RefusedError{Status: response.StatusCode}
	}
	ws.SetReadLimit(maxMessageBytes)
	c.messages = messages{ws: ws, limit: maxMessageBytes}
	c.reader = bufio.NewReaderSize(&c.messages, readBytes)
	c.header = response.Header
	closed, cancel := context.WithCancel(ctx)
	c.close = cancel
	go c.watch(closed) // ends with Close, or with ctx
	return c, nil
}

// Header returns the header with which the server has agreed.
func (c *ClientConn) Header() http.Header { return c.header }

// handshake is the transport of one request, below whose answer it puts a clientWire.
type handshake struct {
	http.RoundTripper

	wire *clientWire
}

// RoundTrip implements http.RoundTripper.
func (h *handshake) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := h.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if conn, ok := response.Body.(io.ReadWriteCloser); ok && response.StatusCode == http.StatusSwitchingProtocols {
		h.wire.out.open(conn)
		h.wire.conn = conn
		response.Body = h.wire
		return response, nil
	}
	// Otherwise the library would read the body of a refusal, which may never end.
	_ = response.Body.Close()
	return response, nil
}

// clientWire is the connection below a ClientConn.
type clientWire struct {
	conn io.ReadWriteCloser
	out  outbox
	// received is set by each read and cleared by each check.
	received atomic.Bool
}

// Read implements io.Reader.
func (w *clientWire) Read(p []byte) (int, error) {
	n, err := w.conn.Read(p)
	w.received.Store(true)
	return n, err
}

// Write implements io.Writer.
func (w *clientWire) Write(p []byte) (int, error) { return w.out.Write(p) }

// Close implements io.Closer.
func (w *clientWire) Close() error { return w.conn.Close() }

// watch closes the connection when ctx ends, because the transport has handed it over and no longer does so, or when
// the server is silent.
func (c *ClientConn) watch(ctx context.Context) {
	ticker := time.NewTicker(receiveEvery)
	defer ticker.Stop()
	defer func() { _ = c.wire.Close() }()
	for idle := 0; idle < 2; idle++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if c.wire.received.Swap(false) {
			idle = -1
		}
	}
	c.silent.Store(true)
}

// Send sends a message in one envelope.
func (c *ClientConn) Send(m any) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	out := append(c.out[:0], 0, 0, 0, 0, 0)
	out, err := c.codec.MarshalAppend(out, m)
	if err != nil {
		return connect.NewError(connect.CodeInternal, err)
	}
	binary.BigEndian.PutUint32(out[1:], uint32(len(out)-headerBytes))
	if c.out = out; cap(out) > keptBytes {
		c.out = nil
	}
	return c.explain(c.wire.out.send(c.messages.ws, out))
}

// Receive reads the next message into m. At the end of the stream the error is io.EOF, or the *connect.Error that the
// server ended it with.
func (c *ClientConn) Receive(m any) error {
	var header [headerBytes]byte
	if _, err := io.ReadFull(c.reader, header[:]); err != nil {
		return c.explain(noEnd(err))
	}
	size := int(binary.BigEndian.Uint32(header[1:]))
	if header[0]&flagCompressed != 0 || header[0]&^flagEnd != 0 || size > maxMessageBytes {
		return connect.NewError(connect.CodeInternal,
			fmt.Errorf("the server sent a message with flags %d and %d bytes", header[0], size))
	}
	if err := c.readMessage(size); err != nil {
		return c.explain(noEnd(err))
	}
	if header[0] == flagEnd {
		return endOf(c.in)
	}
	if err := c.codec.Unmarshal(c.in, m); err != nil {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	if cap(c.in) > keptBytes {
		c.in = nil
	}
	return nil
}

// readMessage reads a message of the given size. Memory for a long one is allocated as it arrives, because a length
// alone costs its sender nothing.
func (c *ClientConn) readMessage(size int) error {
	c.in = c.in[:0]
	for len(c.in) < size {
		more := min(size-len(c.in), readBytes)
		c.in = slices.Grow(c.in, more)
		n, err := io.ReadFull(c.reader, c.in[len(c.in):len(c.in)+more])
		if c.in = c.in[:len(c.in)+n]; err != nil {
			return err
		}
	}
	return nil
}

// closeFrame is a client's close frame with StatusNormalClosure.
var closeFrame = []byte{0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8}

// Close ends the connection. Pending operations fail.
func (c *ClientConn) Close() error {
	defer c.close()
	// Not the library's Close, because it would wait for the server's close frame, and for a Receive.
	if c.sending.TryLock() { // otherwise a frame is half sent
		defer c.sending.Unlock()
		bound := time.AfterFunc(closeTimeout, func() { _ = c.wire.Close() })
		defer bound.Stop()
		_, _ = c.wire.out.Write(closeFrame)
		_ = c.wire.out.flush()
	}
	return c.messages.ws.CloseNow()
}

// noEnd is the error of a connection that ended before the stream did.
func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// explain converts a failure of the connection to an error of the call.
func (c *ClientConn) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case c.silent.Load():
		err = ErrSilent
	}
	return connect.NewError(connect.CodeUnavailable, err)
}

// endOf reads the end of a stream.
func endOf(data []byte) error {
	var end struct {
		Error *struct {
			Code    string
			Message string
			Details []struct{ Type, Value string }
		}
	}
	if err := json.Unmarshal(data, &end); err != nil {
		return connect.NewError(connect.CodeInternal, fmt.Errorf("the end of the stream is not JSON: %w", err))
	}
	if end.Error == nil {
		return io.EOF
	}
	code := connect.CodeUnknown
	_ = code.UnmarshalText([]byte(end.Error.Code)) // an unknown code stays unknown
	result := connect.NewWireError(code, errors.New(end.Error.Message))
	for _, d := range end.Error.Details {
		value, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(d.Value, "="))
		if err != nil {
			continue // an invalid detail does not affect the code
		}
		detail, err := connect.NewErrorDetail(&anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type, Value: value})
		if err == nil {
			result.AddDetail(detail)
		}
	}
	return result
}
