package direct

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
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	// headerBytes is the size of a message's prefix: flags and the length.
	headerBytes = 5
	// Flags of a message.
	flagCompressed = 1
	flagEnd        = 2
	// maxMessageBytes is the longest message that a client accepts. A server's messages are far
	// smaller, and a bogus length must not allocate memory.
	maxMessageBytes = 64 << 20
	// answerTimeout is how long the server may take to switch. It is short because an
	// intermediary may drop a request that it does not understand, and the fallback to an
	// ordinary stream waits for this one.
	answerTimeout = time.Second
	// lookEvery is the interval of a client's checks. If it has sent nothing since the last one
	// it sends a keepalive; if it has received nothing for two intervals it ends the stream.
	lookEvery = 10 * time.Second
)

// ErrSilent ends a stream whose server has sent nothing, not even a keepalive.
var ErrSilent = errors.New("the server has sent no keepalive")

// RefusedError is the answer of a server that refuses the upgrade.
type RefusedError struct {
	// Status is the HTTP status, such as 505.
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

// Stream is the client's end of a connection. One goroutine may send while another receives.
// Close it after use.
type Stream struct {
	conn   io.ReadWriteCloser
	reader *bufio.Reader
	codec  Codec
	in     []byte      // of the receiver
	stop   func() bool // ends the goroutine that waits for the context
	// silent is set once the stream was ended because of a silent server.
	silent atomic.Bool
	// Since the last check.
	heard, sent atomic.Bool

	watching sync.Mutex // guards the fields below, for the checks
	watch    *time.Timer
	quiet    bool // nothing was received before the last check
	over     bool

	// sending guards the fields below: a keepalive may be due while a message is being sent.
	sending sync.Mutex
	out     []byte
}

// NewTransport returns a transport with transport's settings that can switch protocols, which
// HTTP/2 cannot.
func NewTransport(transport *http.Transport) *http.Transport {
	t := transport.Clone()
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.HTTP2 = nil
	// A clone of a transport for HTTP/2 would offer only HTTP/2.
	t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	if t.TLSClientConfig != nil {
		t.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	t.ResponseHeaderTimeout = answerTimeout
	return t
}

// Open requests an upgraded connection for the procedure at url. header is added to the
// request. The stream ends with ctx. The error is a [*RefusedError], that of ctx, or the
// transport's.
func Open(ctx context.Context, transport http.RoundTripper, url string,
	header http.Header, codec Codec) (*Stream, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return nil, err
	}
	if header != nil {
		request.Header = header.Clone()
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", Protocol)
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Connect-Protocol-Version", "1")
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	conn, ok := response.Body.(io.ReadWriteCloser)
	if response.StatusCode != http.StatusSwitchingProtocols || !ok ||
		!strings.EqualFold(response.Header.Get("Upgrade"), Protocol) {
		_ = response.Body.Close()
		return nil, &RefusedError{Status: response.StatusCode}
	}
	return newStream(ctx, conn, codec), nil
}

// newStream takes over a connection whose protocol is switched.
func newStream(ctx context.Context, conn io.ReadWriteCloser, codec Codec) *Stream {
	s := &Stream{conn: conn, reader: bufio.NewReaderSize(conn, readBytes), codec: codec}
	// The transport has handed over the connection and no longer watches ctx.
	s.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
	s.listen()
	return s
}

// listen starts the checks of the connection.
func (s *Stream) listen() {
	s.heard.Store(true)
	s.watching.Lock()
	defer s.watching.Unlock() // before the timer can fire
	s.watch = time.AfterFunc(lookEvery, func() {
		if s.look() && !s.sent.Swap(false) {
			s.signOfLife()
		}
	})
}

// look ends the stream if the server is silent. It reports whether the stream continues.
func (s *Stream) look() bool {
	s.watching.Lock()
	defer s.watching.Unlock()
	if s.over {
		return false
	}
	heard := s.heard.Swap(false)
	if !heard && s.quiet {
		s.silent.Store(true)
		_ = s.conn.Close()
		return false
	}
	s.quiet = !heard
	s.watch.Reset(lookEvery) // before anything that may block
	return true
}

// signOfLife sends an empty message, unless the sender is writing a message.
func (s *Stream) signOfLife() {
	if s.sending.TryLock() {
		defer s.sending.Unlock()
		_, _ = s.conn.Write(make([]byte, headerBytes)) // the receiver sees a failure
	}
}

// Send sends a message.
func (s *Stream) Send(m any) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	out := append(s.out[:0], 0, 0, 0, 0, 0)
	out, err := s.codec.MarshalAppend(out, m)
	if err != nil {
		return connect.NewError(connect.CodeInternal, err)
	}
	binary.BigEndian.PutUint32(out[1:], uint32(len(out)-headerBytes))
	if s.out = out; cap(out) > keptBytes {
		s.out = nil
	}
	_, err = s.conn.Write(out)
	s.sent.Store(true)
	return s.explain(err)
}

// Receive reads the next message into m. At the end of the stream the error is
// io.EOF, or the *connect.Error that the server ended it with.
func (s *Stream) Receive(m any) error {
	var header [headerBytes]byte
	if _, err := io.ReadFull(s.reader, header[:]); err != nil {
		return s.explain(noEnd(err))
	}
	s.heard.Store(true)
	size := int(binary.BigEndian.Uint32(header[1:]))
	if header[0]&flagCompressed != 0 || header[0]&^flagEnd != 0 || size > maxMessageBytes {
		return connect.NewError(connect.CodeInternal,
			fmt.Errorf("the server sent a message with flags %d and %d bytes", header[0], size))
	}
	if err := s.readMessage(size); err != nil {
		return s.explain(noEnd(err))
	}
	if header[0] == flagEnd {
		return endOf(s.in)
	}
	if err := s.codec.Unmarshal(s.in, m); err != nil {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	if cap(s.in) > keptBytes {
		s.in = nil
	}
	return nil
}

// readMessage reads a message of the given size. Memory for a long one is allocated as it
// arrives, because a length alone costs its sender nothing.
func (s *Stream) readMessage(size int) error {
	s.in = s.in[:0]
	for len(s.in) < size {
		more := min(size-len(s.in), readBytes)
		s.in = slices.Grow(s.in, more)
		n, err := io.ReadFull(s.reader, s.in[len(s.in):len(s.in)+more])
		if s.in = s.in[:len(s.in)+n]; err != nil {
			return err
		}
		s.heard.Store(true)
	}
	return nil
}

// Close ends the connection. Pending operations fail.
func (s *Stream) Close() error {
	s.stop()
	s.watching.Lock()
	s.over = true
	s.watch.Stop()
	s.watching.Unlock()
	return s.conn.Close()
}

// noEnd is the error of a connection that ended before the stream did.
func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// explain converts a failure of the connection to an error of the call.
func (s *Stream) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case s.silent.Load():
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
