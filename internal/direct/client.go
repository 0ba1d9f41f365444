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
	// headerBytes stand before each message: flags and the length.
	headerBytes = 5
	// Flags of a message.
	flagCompressed = 1
	flagEnd        = 2
	// maxMessageBytes is the longest message that a client takes. A server's are
	// far below, and a length that is none must not become memory.
	maxMessageBytes = 64 << 20
	// answerTimeout is how long the server may take to switch. It is short because
	// something before the server may swallow what it does not know, and the ordinary
	// way waits behind this one.
	answerTimeout = time.Second
	// lookEvery is how often a client looks whether it has sent nothing, and then
	// gives a sign of life; and whether it has heard nothing, twice in a row, and
	// then gives up.
	lookEvery = 10 * time.Second
)

// ErrSilent ends a stream whose server has sent nothing, not even that it is there.
var ErrSilent = errors.New("the server has given no sign of life")

// RefusedError is the answer of a server that does not give its connection away.
type RefusedError struct {
	// Status is that of HTTP, such as 505.
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

// Stream is the client's end of a connection. One goroutine may send while one
// receives. Close it when done.
type Stream struct {
	conn   io.ReadWriteCloser
	reader *bufio.Reader
	codec  Codec
	in     []byte      // of the receiver
	stop   func() bool // ends the watch over the context
	// silent is set once the server was given up.
	silent atomic.Bool
	// Since the last look.
	heard, sent atomic.Bool

	watching sync.Mutex // guards the rest of the watch over the server
	watch    *time.Timer
	quiet    bool // nothing was heard before the last look
	over     bool

	// sending guards what follows: a sign of life may be asked for while a
	// message is under way.
	sending sync.Mutex
	out     []byte
}

// NewTransport makes a transport of transport's settings that can switch
// protocols, which HTTP/2 cannot.
func NewTransport(transport *http.Transport) *http.Transport {
	t := transport.Clone()
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.HTTP2 = nil
	// The clone of a transport that was set up for HTTP/2 would offer that alone.
	t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	if t.TLSClientConfig != nil {
		t.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	t.ResponseHeaderTimeout = answerTimeout
	return t
}

// Open asks for a connection for the procedure at url. header is added to the
// request. The stream ends with ctx. The error is a [*RefusedError], that of ctx,
// or the transport's.
func Open(ctx context.Context, transport http.RoundTripper, url string, header http.Header, codec Codec) (*Stream, error) {
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
	if response.StatusCode != http.StatusSwitchingProtocols || !ok || !strings.EqualFold(response.Header.Get("Upgrade"), Protocol) {
		_ = response.Body.Close()
		return nil, &RefusedError{Status: response.StatusCode}
	}
	return newStream(ctx, conn, codec), nil
}

// newStream takes over a connection whose protocol is switched.
func newStream(ctx context.Context, conn io.ReadWriteCloser, codec Codec) *Stream {
	s := &Stream{conn: conn, reader: bufio.NewReaderSize(conn, readBytes), codec: codec}
	// The transport has handed the connection over and looks at ctx no more.
	s.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
	s.listen()
	return s
}

// listen watches over the connection.
func (s *Stream) listen() {
	s.heard.Store(true)
	s.watching.Lock()
	defer s.watching.Unlock() // before the timer can come
	s.watch = time.AfterFunc(lookEvery, func() {
		if s.look() && !s.sent.Swap(false) {
			s.signOfLife()
		}
	})
}

// look gives up on a server that stays silent, and tells whether it has not.
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

// signOfLife sends an empty message. When the sender is inside a write, that is
// sign enough.
func (s *Stream) signOfLife() {
	if s.sending.TryLock() {
		defer s.sending.Unlock()
		_, _ = s.conn.Write(make([]byte, headerBytes)) // what fails shows to the receiver
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
		return connect.NewError(connect.CodeInternal, fmt.Errorf("the server sent a message with flags %d and %d bytes", header[0], size))
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

// readMessage reads a message of so many bytes. What is long gets memory as it
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

// Close ends the connection. Whatever waits on it fails.
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

// explain makes a failure of the connection an error of the call.
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
	_ = code.UnmarshalText([]byte(end.Error.Code)) // one that we do not know stays unknown
	result := connect.NewWireError(code, errors.New(end.Error.Message))
	for _, d := range end.Error.Details {
		value, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(d.Value, "="))
		if err != nil {
			continue // takes nothing away from the code
		}
		detail, err := connect.NewErrorDetail(&anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type, Value: value})
		if err == nil {
			result.AddDetail(detail)
		}
	}
	return result
}
