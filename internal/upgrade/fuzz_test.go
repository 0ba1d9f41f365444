package upgrade

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// canned is a connection whose other side has sent everything already.
type canned struct {
	net.Conn
	*bytes.Reader
}

func (c canned) Read(p []byte) (int, error)       { return c.Reader.Read(p) }
func (canned) Write(p []byte) (int, error)        { return len(p), nil }
func (canned) Close() error                       { return nil }
func (canned) CloseWrite() error                  { return nil }
func (canned) SetDeadline(time.Time) error        { return nil }
func (canned) SetReadDeadline(time.Time) error    { return nil }
func (canned) SetWriteDeadline(t time.Time) error { return nil }

// switched is a transport whose server switches to WebSocket on a connection.
type switched struct{ conn io.ReadWriteCloser }

func (s switched) RoundTrip(r *http.Request) (*http.Response, error) {
	accept := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return &http.Response{
		StatusCode: http.StatusSwitchingProtocols, Body: s.conn, Request: r,
		Header: http.Header{
			"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, ProtocolHeader: {Protocol},
			"Sec-Websocket-Accept": {base64.StdEncoding.EncodeToString(accept[:])},
		},
	}, nil
}

// over returns the client's end of a connection.
func over(t testing.TB, conn io.ReadWriteCloser) *ClientConn {
	t.Helper()
	c := must.Get(Dial(t.Context(), switched{conn}, "http://localhost/", nil, prototest.Codec{}))(t)
	return c
}

// fromServer is a server's binary message: its frame is not masked.
func fromServer(data []byte) []byte {
	return append([]byte{prototest.FrameBinary, byte(len(data))}, data...)
}

// FuzzReceive reads whatever a server may send. Every stream ends with an error that tells the client what to do, and
// no length becomes memory by itself.
func FuzzReceive(f *testing.F) {
	message := func(flags byte, text string) []byte { return fromServer(prototest.Envelope(flags, []byte(text))) }
	f.Add(message(0, ""))
	f.Add(append(message(0, "\x0a\x00"), message(flagEnd, "{}")...))
	f.Add(message(flagEnd,
		`{"error":{"code":"unavailable","message":"m","details":[{"type":"seqledger.v1.WriteError","value":"CAE"}]}}`))
	f.Add(message(flagEnd, `{"error":{"code":"no such","details":[{"type":"","value":"*"}]}}`))
	f.Add(message(flagCompressed, "x"))
	f.Add(fromServer([]byte{0, 0xff, 0xff, 0xff, 0xff}))
	f.Add(fromServer([]byte{0, 3, 0, 0, 0, 1}))
	f.Add([]byte{0x82, 127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0})
	f.Add([]byte{0x89, 0, 0x8a, 0, 0x88, 2, 3, 0xe8})
	f.Fuzz(func(t *testing.T, data []byte) {
		c := over(t, canned{Reader: bytes.NewReader(data)})
		defer func() { _ = c.Close() }()
		for range len(data)/headerBytes + 1 {
			err := c.Receive(new(seqledgerv1.WriteStreamResponse))
			if err == nil {
				continue
			}
			if _, ok := errors.AsType[*connect.Error](err); !ok && !errors.Is(err, io.EOF) {
				t.Fatalf("%v is neither an error of the call nor its end", err)
			}
			if cap(c.in) > 2*len(data)+2*keptBytes {
				t.Fatalf("%d bytes of memory for %d of data", cap(c.in), len(data))
			}
			return
		}
		t.Fatal("more messages than bytes")
	})
}

// fakeWriter gives its connection away as net/http does: without deadlines.
type fakeWriter struct{ conn net.Conn }

func (fakeWriter) Header() http.Header                  { return make(http.Header) }
func (f fakeWriter) Write(p []byte) (int, error)        { return f.conn.Write(p) }
func (f fakeWriter) WriteHeader(int)                    { _, _ = f.conn.Write([]byte("HTTP/1.1 101 OK\r\n\r\n")) }
func (f fakeWriter) SetWriteDeadline(t time.Time) error { return f.conn.SetWriteDeadline(t) }

func (f fakeWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return f.conn, bufio.NewReadWriter(bufio.NewReader(f.conn), bufio.NewWriter(f.conn)),
		f.conn.SetDeadline(time.Time{})
}

// request asks for an upgraded connection.
func request(t testing.TB) *http.Request {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://localhost"+seqledgerv1connect.LedgerServiceWriteStreamProcedure, nil))(t)
	r.Header = http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, ProtocolHeader: {Protocol},
	}
	return r
}

// FuzzFrames serves whatever a client may send. It ends with what the client sends, and no malformed frame makes the
// handler read an envelope that was not sent.
func FuzzFrames(f *testing.F) {
	frame := prototest.Frame
	one := prototest.Enveloped(frameOf("c", 1))
	f.Add(frame(prototest.FrameBinary, one))
	f.Add(slices.Concat(frame(2, one[:3]), frame(prototest.FramePing, nil), frame(0x80, one[3:])))
	f.Add(slices.Concat(frame(prototest.FrameBinary, slices.Concat(one, prototest.Envelope(flagEnd, []byte("{}"))))))
	f.Add(frame(prototest.FrameText, one))
	f.Add(slices.Concat(frame(prototest.FrameClose, []byte{3, 0xe8}), frame(prototest.FrameBinary, one)))
	f.Add(append(prototest.FrameHeader(prototest.FrameBinary, 1<<62), one...))
	f.Add([]byte{0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	f.Add([]byte{0x89, 0xfe, 0, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		_, handler := seqledgerv1connect.NewLedgerServiceHandler(new(service))
		done := make(chan struct{})
		// Ends with the data; the test waits for it.
		go func() {
			defer close(done)
			Handler(testOptions(context.Background()), handler).ServeHTTP(
				fakeWriter{canned{Reader: bytes.NewReader(data)}}, request(t))
		}()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatal("the handler waits for more than there is")
		}
	})
}
