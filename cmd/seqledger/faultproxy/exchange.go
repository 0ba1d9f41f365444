package faultproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// NewTransport returns a transport to the server. It leaves compressed answers as they are, because a proxy that
// unpacked them would have to change their headers too.
func NewTransport(protocols *http.Protocols) *http.Transport {
	return &http.Transport{Protocols: protocols, DisableCompression: true}
}

const (
	// HeaderBytes is the length of what precedes each message of a stream: a byte of flags and four of length.
	HeaderBytes = 5
	// MaxMessageBytes bounds a message. It is more than the server takes, so that the server refuses what is too long,
	// and not the proxy.
	MaxMessageBytes = 8 << 20
)

// ReadEnvelope reads one message of a stream, header and all. The error is io.EOF at the end of the stream and
// io.ErrUnexpectedEOF within a message.
func ReadEnvelope(r io.Reader) ([]byte, error) {
	header := make([]byte, HeaderBytes)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(header[1:])
	if length > MaxMessageBytes {
		return nil, fmt.Errorf("a message of %d bytes, at most %d are expected", length, MaxMessageBytes)
	}
	envelope := append(header, make([]byte, length)...)
	_, err := io.ReadFull(r, envelope[HeaderBytes:])
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // a truncated message is not the end
	}
	return envelope, err
}

// Front is the side of a proxy that clients connect to.
type Front struct {
	// Address is host:port, on the loopback.
	Address string

	server *http.Server
	served chan struct{} // closed when the server has ended

	mu       sync.Mutex
	closed   bool
	requests sync.WaitGroup // grows under mu while closed is false
}

// Listen serves a handler on a free port of the loopback until Close.
func Listen(handler http.Handler, protocols *http.Protocols) (*Front, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &Front{Address: listener.Addr().String(), served: make(chan struct{})}
	f.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f.begin()
			defer f.requests.Done()
			handler.ServeHTTP(w, r)
		}),
		Protocols: protocols, ReadHeaderTimeout: time.Minute,
		ErrorLog: log.New(io.Discard, "", 0), // broken connections are expected
	}
	// Ended by Close, which waits for it.
	go func() {
		defer close(f.served)
		_ = f.server.Serve(listener)
	}()
	return f, nil
}

// begin counts a request. A connection that was read just before Close may start its handler after it, when
// nothing may be added to the requests that Close waits for; so it is broken here.
func (f *Front) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		Abort()
	}
	f.requests.Add(1)
}

// Close breaks all connections and waits for the handlers, because http.Server.Close does not.
func (f *Front) Close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	_ = f.server.Close()
	<-f.served
	f.requests.Wait()
}

// Protocols are HTTP/1.1, cleartext HTTP/2, or both.
func Protocols(http1, http2 bool) *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(http1)
	p.SetUnencryptedHTTP2(http2)
	return p
}

// Abort ends the handler that calls it so that the client sees a broken connection.
func Abort() { panic(http.ErrAbortHandler) }
