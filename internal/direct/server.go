package direct

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Protocol is the protocol's name in the Upgrade header.
const Protocol = "seqledger-direct"

const (
	// contentType is the content type of Connect's streaming protocol, which only needs HTTP
	// bodies.
	contentType = "application/connect+proto"
	// readBytes fits a frame of some fifty small writes, so that one read gets it.
	readBytes = 16 << 10
	// SignEvery is the interval after which an idle server sends an empty message. The client
	// waits more than twice as long.
	SignEvery = 5 * time.Second
	// silenceLimit is how long a server waits for a message or a keepalive. A client sends one
	// every lookEvery.
	silenceLimit = time.Minute
	// headTimeout is how long a client may leave the answer to its request unread.
	headTimeout = 10 * time.Second
	// lingerLimit is how long the end of a stream may take to reach a client that
	// is still sending: closing at once would make the kernel throw it away.
	lingerLimit = time.Second
)

// Handler upgrades the connection of a request that asks for it, and serves it with next. Other
// requests pass unchanged. When closed ends, so do the upgraded connections.
func Handler(closed context.Context, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !asksFor(r) {
			next.ServeHTTP(w, r)
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil { // not net/http's writer: answer without an upgrade
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		// Do not use net/http's request body: net/http would end the request's context with the
		// first failed read, and with it the answers to accepted writes.
		early, _ := buffered.Peek(buffered.Reader.Buffered())
		a := newAnswer(conn, io.MultiReader(bytes.NewReader(bytes.Clone(early)), conn), w.Header())
		defer func() { _ = conn.Close() }()
		defer context.AfterFunc(closed, func() {
			cancel()
			_ = conn.Close()
		})()
		if a.begin() != nil {
			return
		}
		inner := r.WithContext(context.WithValue(ctx, givenKey{}, true))
		inner.Body, inner.ContentLength = a, -1
		// Connect requires HTTP/2 because HTTP/1.1 cannot send in both directions at once. This
		// connection can.
		inner.Proto, inner.ProtoMajor, inner.ProtoMinor = "HTTP/2.0", 2, 0
		next.ServeHTTP(a, inner)
		a.end()
	})
}

// givenKey marks the context of a stream on an upgraded connection.
type givenKey struct{}

// Given reports whether a stream has an upgraded connection and must send keepalives.
func Given(ctx context.Context) bool { return ctx.Value(givenKey{}) != nil }

// asksFor reports whether a request asks for an upgrade.
func asksFor(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.ProtoMinor == 1 && r.Method == http.MethodPost &&
		r.ContentLength == 0 && len(r.TransferEncoding) == 0 && r.Header.Get("Expect") == "" &&
		names(r.Header["Upgrade"], Protocol) && names(r.Header["Connection"], "Upgrade") &&
		r.Header.Get("Content-Type") == contentType
}

// names reports whether one of the lists has the token: an intermediary may have added others.
func names(lists []string, token string) bool {
	return slices.ContainsFunc(lists, func(list string) bool {
		for element := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.Trim(element, " \t"), token) {
				return true
			}
		}
		return false
	})
}

// answer is the server's end of a connection, as a handler sees it: the body of
// the request and the writer of the answer.
type answer struct {
	conn   net.Conn
	reader *bufio.Reader
	header http.Header
	// unsent holds what was written since the last Flush, so that a message is sent in one
	// piece. It belongs to the writing goroutine.
	unsent bytes.Buffer
	failed error

	mu sync.Mutex
	// fixed: the handler has set a deadline for reads, which a keepalive must not move.
	fixed   bool
	renewed time.Time
}

// newAnswer takes over a connection. reader has the bytes that were already read from it.
func newAnswer(conn net.Conn, reader io.Reader, header http.Header) *answer {
	return &answer{conn: conn, reader: bufio.NewReaderSize(reader, readBytes), header: header}
}

// begin switches the protocol before the handler runs, because the handler may wait for the
// first message before it writes.
func (a *answer) begin() error {
	a.header.Set("Connection", "Upgrade")
	a.header.Set("Upgrade", Protocol)
	fmt.Fprintf(&a.unsent, "HTTP/1.1 %d %s\r\n", http.StatusSwitchingProtocols,
		http.StatusText(http.StatusSwitchingProtocols))
	_ = a.header.Write(&a.unsent) // a buffer does not fail
	a.unsent.WriteString("\r\n")
	a.header = make(http.Header)
	_ = a.conn.SetWriteDeadline(time.Now().Add(headTimeout))
	if err := a.FlushError(); err != nil {
		return err
	}
	return a.conn.SetWriteDeadline(time.Time{})
}

// Read implements io.Reader for the request's body.
func (a *answer) Read(p []byte) (int, error) {
	if a.reader.Buffered() == 0 {
		a.renew()
	}
	return a.reader.Read(p)
}

// renew extends the deadline of reads now and then: each change costs as much as a small read.
func (a *answer) renew() {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.fixed && now.Sub(a.renewed) > silenceLimit/8 {
		a.renewed = now
		_ = a.conn.SetReadDeadline(now.Add(silenceLimit))
	}
}

// Close implements io.Closer for the request's body. The connection ends with the
// handler.
func (a *answer) Close() error { return nil }

// SetReadDeadline is for http.ResponseController. Without a deadline the client must still send
// keepalives.
func (a *answer) SetReadDeadline(t time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fixed, a.renewed = !t.IsZero(), time.Time{}
	return a.conn.SetReadDeadline(t)
}

// SetWriteDeadline is for http.ResponseController.
func (a *answer) SetWriteDeadline(t time.Time) error { return a.conn.SetWriteDeadline(t) }

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// errNotStream is the error of writes after an answer other than 200.
var errNotStream = errors.New("direct: the handler has refused the request after the protocol was switched")

// WriteHeader implements http.ResponseWriter. The headers have already been sent, and the last
// message has the result of a stream. An answer that does not belong to Connect's streaming
// protocol cannot be sent any more, and ends the connection.
func (a *answer) WriteHeader(status int) {
	if status != http.StatusOK && a.failed == nil {
		a.failed = errNotStream
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	if a.failed != nil {
		return 0, a.failed
	}
	return a.unsent.Write(p)
}

// keptBytes is the largest buffer that is kept for the next message.
const keptBytes = 256 << 10

// FlushError sends what was written.
func (a *answer) FlushError() error {
	if a.failed == nil && a.unsent.Len() > 0 {
		_, a.failed = a.conn.Write(a.unsent.Bytes())
	}
	if a.unsent.Reset(); a.unsent.Cap() > keptBytes {
		a.unsent = bytes.Buffer{}
	}
	return a.failed
}

// Flush implements http.Flusher. The next Write returns a failure.
func (a *answer) Flush() { _ = a.FlushError() }

// end sends the rest, and waits for the client to close its side.
func (a *answer) end() {
	_ = a.conn.SetWriteDeadline(time.Now().Add(headTimeout))
	if a.FlushError() != nil {
		return
	}
	half, ok := a.conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	_ = a.conn.SetReadDeadline(time.Now().Add(lingerLimit))
	_, _ = io.Copy(io.Discard, a.reader)
}
