package rpc

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// maxCallConns bounds the connections of a Client's calls to one server; further calls
	// wait. One HTTP/2 connection of a seqledger server carries as many calls.
	maxCallConns = 256
	// idleConnTimeout is how long a connection is kept open without a call. It is shorter than the idle timeout of
	// servers and load balancers, so that a call rarely uses a connection that they are about to close.
	idleConnTimeout = 30 * time.Second
	// answerTimeout is how long a server may take to answer a call. It is bounded because HTTP/1.1
	// has no pings that would detect a vanished peer. The call is then repeated on another connection.
	answerTimeout = 30 * time.Second
	// bodyTimeout is how long the rest of an answer may take.
	bodyTimeout = 5 * time.Minute
	// maxAnswerHeader bounds the header of an answer, in bytes.
	maxAnswerHeader = 1 << 20
	// inlineBody is the largest request, in bytes, that the caller writes in one piece. It fits into the buffers of a
	// connection, so the write does not block on a server that answers without reading.
	inlineBody = 64 << 10
)

// pool is a transport for unary calls over persistent HTTP/1.1 connections. The caller writes the
// request and reads the answer itself, while net/http would pass the call through two to four
// goroutines: bench/results/unary-calls.md has the difference. net/http parses the answers.
type pool struct {
	dial    dialer
	address string
	tls     *tls.Config // nil: cleartext
	// places has a token for each connection that is open or being opened for a call.
	places chan struct{}

	mu sync.Mutex
	// idle holds the connections without a call, the most recently used last.
	idle   []*callConn
	closed bool
	// sweep closes connections that were idle for too long. It is set while idle is not empty.
	sweep *time.Timer
	// speaks: a server at the address has answered in HTTP/1.1.
	speaks bool
}

func newPool(dial dialer, address string, config *tls.Config) *pool {
	return &pool{dial: dial, address: address, tls: config, places: make(chan struct{}, maxCallConns)}
}

// callConn is a connection of a pool, for one call after another.
type callConn struct {
	net.Conn

	isOpen    func() bool // whether an idle connection is open, and its peer has sent nothing
	reader    *bufio.Reader
	limit     io.LimitedReader // of what reader reads
	request   bytes.Buffer
	answered  bool // a call, at least once
	idleSince time.Time
}

// errNotHTTP1 says that the server does not answer in HTTP/1.1. Nothing of a call was sent to it.
var errNotHTTP1 = errors.New("the server does not speak HTTP/1.1")

// RoundTrip implements http.RoundTripper.
func (p *pool) RoundTrip(r *http.Request) (*http.Response, error) {
	return p.do(r.Context(), r, func(c *callConn) (chan error, error) { return c.write(r) })
}

// sender writes a request to a connection. For written see callConn.write.
type sender func(c *callConn) (written chan error, err error)

// do sends a request on a connection, and reads the head of its answer. r is what the answer is parsed for.
func (p *pool) do(ctx context.Context, r *http.Request, send sender) (*http.Response, error) {
	select {
	case p.places <- struct{}{}:
	default:
		select {
		case p.places <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	conn, err := p.get(ctx)
	if err != nil {
		<-p.places
		return nil, err
	}
	answer, err := p.exchange(ctx, conn, r, send)
	if err == nil {
		return answer, nil
	}
	if !conn.answered {
		// Because the address may belong to another server now, ask again.
		p.mu.Lock()
		p.speaks = false
		p.mu.Unlock()
	}
	p.drop(conn)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return nil, err
}

// get returns an idle connection, or a new one.
func (p *pool) get(ctx context.Context) (*callConn, error) {
	for {
		conn := p.takeIdle()
		if conn == nil {
			return p.open(ctx)
		}
		// Unsolicited data would be taken for the answer. A connection whose last deadline has
		// passed counts as closed, too.
		if conn.reader.Buffered() == 0 && conn.isOpen() {
			return conn, nil
		}
		_ = conn.Close()
	}
}

func (p *pool) takeIdle() *callConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return nil
	}
	conn := p.idle[n-1]
	p.idle[n-1] = nil
	p.idle = p.idle[:n-1]
	return conn
}

// put returns a connection whose answer was read to its end.
func (p *pool) put(conn *callConn) {
	conn.idleSince = time.Now()
	p.mu.Lock()
	if !p.closed {
		p.idle = append(p.idle, conn)
		conn = nil
		if p.sweep == nil {
			p.sweep = time.AfterFunc(idleConnTimeout, p.closeOld)
		}
	}
	p.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	<-p.places
}

// drop closes a connection whose state is not known.
func (p *pool) drop(conn *callConn) {
	_ = conn.Close()
	<-p.places
}

// closeOld closes the connections that were idle for too long.
func (p *pool) closeOld() {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := 0
	// The oldest are in front, because put appends and takeIdle takes the last one.
	for old < len(p.idle) && time.Since(p.idle[old].idleSince) >= idleConnTimeout {
		_ = p.idle[old].Close()
		old++
	}
	n := copy(p.idle, p.idle[old:])
	clear(p.idle[n:])
	p.idle = p.idle[:n]
	if p.sweep = nil; n > 0 && !p.closed {
		p.sweep = time.AfterFunc(time.Until(p.idle[0].idleSince.Add(idleConnTimeout)), p.closeOld)
	}
}

// close closes the idle connections, and those in use once their calls end.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, conn := range p.idle {
		_ = conn.Close()
	}
	p.idle = nil
	if p.sweep != nil {
		p.sweep.Stop()
	}
}

// open opens a connection to a server that speaks HTTP/1.1.
func (p *pool) open(ctx context.Context) (*callConn, error) {
	raw, err := p.dial(ctx, "tcp", p.address)
	if err != nil {
		return nil, err
	}
	conn := &callConn{Conn: raw, isOpen: openCheck(raw)}
	known := false
	if p.tls != nil {
		secured := tls.Client(raw, p.tls)
		limited, cancel := context.WithTimeout(ctx, dialTimeout)
		err := secured.HandshakeContext(limited)
		cancel()
		if isAlert(err, "no application protocol") { // RFC 7301: it has none that it was offered
			err = fmt.Errorf("%w: %w", errNotHTTP1, err)
		}
		if err != nil {
			_ = raw.Close()
			return nil, err
		}
		conn.Conn, known = secured, secured.ConnectionState().NegotiatedProtocol == "http/1.1"
	}
	conn.limit = io.LimitedReader{R: conn.Conn, N: math.MaxInt64}
	conn.reader = bufio.NewReader(&conn.limit)
	if err := p.ask(ctx, conn, known); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// ask finds out, once for a pool, whether a cleartext server speaks HTTP/1.1. Some HTTP/2
// servers silently close a connection that begins with anything else, and
// because a call lost that way might have been executed, the question is a request that does nothing.
func (p *pool) ask(ctx context.Context, conn *callConn, known bool) error {
	p.mu.Lock()
	known = known || p.speaks
	p.mu.Unlock()
	if !known {
		stop := conn.interruptWith(ctx, askTimeout)
		err := conn.options(p.address)
		if !stop() {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errNotHTTP1, err)
		}
	}
	p.mu.Lock()
	p.speaks = true
	p.mu.Unlock()
	return nil
}

// options sends an OPTIONS request, and checks only that another request can follow the answer.
func (c *callConn) options(host string) error {
	if _, err := fmt.Fprintf(c.Conn, "OPTIONS * HTTP/1.1\r\nHost: %s\r\n\r\n", host); err != nil {
		return err
	}
	c.limit.N = maxAnswerHeader
	answer, err := readAnswer(c.reader, &http.Request{Method: http.MethodOptions})
	if err != nil {
		return err
	}
	switch answer.StatusCode {
	case http.StatusHTTPVersionNotSupported, http.StatusUpgradeRequired, statusNotHTTP2:
		err = fmt.Errorf("the answer has status %d", answer.StatusCode)
	default:
		_, err = io.Copy(io.Discard, answer.Body)
	}
	if answer.Close {
		err = errors.Join(err, errors.New("the server does not keep connections open"))
	}
	return errors.Join(err, answer.Body.Close())
}

// statusNotHTTP2 is the answer of a large provider's load balancer that passes only HTTP/2.
const statusNotHTTP2 = 464

// askTimeout bounds the wait for the answer to options.
const askTimeout = time.Second

// interruptWith makes reads and writes on a connection fail when ctx ends or after limit. stop
// undoes that; it returns false if the connection can no longer be used.
func (c *callConn) interruptWith(ctx context.Context, limit time.Duration) (stop func() bool) {
	c.limitReads(ctx, limit)
	if ctx.Done() == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(ctx, c.interrupt)
}

// interrupt makes pending and later reads and writes fail at once, by a deadline in the past.
func (c *callConn) interrupt() { _ = c.SetDeadline(time.Unix(1, 0)) }

// limitReads makes reads fail after limit, or if ctx has ended. A ctx that ends later interrupts the connection after
// this; one that ended before may have done so already, and the new deadline would undo it.
func (c *callConn) limitReads(ctx context.Context, limit time.Duration) {
	_ = c.SetReadDeadline(time.Now().Add(limit)) // a broken connection shows when it is used
	if ctx.Err() != nil {
		c.interrupt()
	}
}

// exchange sends a request and reads the head of its answer. The body of the answer returns the connection to the pool.
func (p *pool) exchange(ctx context.Context, c *callConn, r *http.Request, send sender) (*http.Response, error) {
	stop := c.interruptWith(ctx, answerTimeout)
	written, err := send(c)
	if err != nil {
		stop()
		return nil, err
	}
	c.limit.N = maxAnswerHeader // because http.ReadResponse has no bound
	answer, err := readAnswer(c.reader, r)
	if err != nil {
		stop()
		return nil, err
	}
	c.limit.N, c.answered = math.MaxInt64, true
	body := &pooledBody{ReadCloser: answer.Body, pool: p, conn: c, stop: stop, written: written, last: answer.Close}
	// No request asked for another protocol. A peer that switches to one does not understand the next request.
	body.last = body.last || answer.StatusCode == http.StatusSwitchingProtocols
	if answer.ContentLength == 0 {
		body.finish(true)
	} else {
		c.limitReads(ctx, bodyTimeout)
		answer.Body = body
	}
	return answer, nil
}

// write writes a request. For a large one, written delivers the result: it is written concurrently with reading,
// because the server may answer, and stop reading, before it has all of it. Otherwise written is nil.
func (c *callConn) write(r *http.Request) (written chan error, err error) {
	if r.ContentLength < 0 {
		return nil, errors.New("the length of the request is not known")
	}
	if c.request.Cap() > 2*inlineBody {
		c.request = bytes.Buffer{}
	}
	c.request.Reset()
	for _, part := range []string{r.Method, " ", r.URL.RequestURI(), " HTTP/1.1\r\nHost: ", r.Host,
		"\r\nContent-Length: ", strconv.FormatInt(r.ContentLength, 10), "\r\n"} {
		c.request.WriteString(part)
	}
	if err := r.Header.Write(&c.request); err != nil {
		return nil, err
	}
	c.request.WriteString("\r\n")
	if r.ContentLength > inlineBody {
		written = make(chan error, 1)
		// Ends with the body, or when the connection is closed. Nothing waits for it, because the
		// connection is reused only if the write has succeeded by then.
		go func() { written <- c.writeLarge(r) }()
		return written, nil
	}
	if r.ContentLength > 0 {
		err := readBody(&c.request, r)
		if err != nil {
			return nil, err
		}
	}
	_, err = c.Conn.Write(c.request.Bytes())
	return nil, err
}

// writeLarge writes the head of a request, which has been encoded, and its body.
func (c *callConn) writeLarge(r *http.Request) error {
	_ = c.SetWriteDeadline(time.Now().Add(bodyTimeout))
	_, err := c.Conn.Write(c.request.Bytes())
	if err == nil {
		err = readBody(c.Conn, r)
	}
	return errors.Join(err, c.SetWriteDeadline(time.Time{}))
}

// readBody copies the body of a request. If it were too short, the server would take the next
// request on the connection for a part of it.
func readBody(to io.Writer, r *http.Request) error {
	n, err := io.Copy(to, r.Body)
	err = errors.Join(err, r.Body.Close())
	if err == nil && n != r.ContentLength {
		err = fmt.Errorf("the request has %d bytes instead of %d", n, r.ContentLength)
	}
	return err
}

// readAnswer reads the head of an answer, and skips informational ones (1xx).
func readAnswer(reader *bufio.Reader, r *http.Request) (*http.Response, error) {
	for {
		answer, err := http.ReadResponse(reader, r)
		if err != nil {
			return nil, err
		}
		if answer.StatusCode >= 200 || answer.StatusCode == http.StatusSwitchingProtocols {
			return answer, nil
		}
	}
}

// pooledBody is the body of an answer. It returns its connection at its end.
type pooledBody struct {
	io.ReadCloser

	pool    *pool
	conn    *callConn
	stop    func() bool
	written chan error
	last    bool // the server closes the connection
	over    bool
}

// Read implements io.Reader.
func (b *pooledBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.finish(err == io.EOF)
	}
	return n, err
}

// Close implements io.Closer.
func (b *pooledBody) Close() error {
	b.finish(false)
	return nil
}

// finish returns the connection to the pool if the answer was read to its end and another can
// follow. Otherwise it closes the connection.
func (b *pooledBody) finish(whole bool) {
	if b.over {
		return
	}
	b.over = true
	if b.written != nil {
		select {
		case err := <-b.written:
			whole = whole && err == nil
		default:
			// The server has answered before it had the whole request: the rest must not meet the next one.
			whole = false
		}
	}
	if b.stop() && whole && !b.last {
		b.pool.put(b.conn)
		return
	}
	b.pool.drop(b.conn)
}

// isAlert reports whether err is a TLS alert from the peer with the given description. Package
// tls has no type for such an alert over TCP.
func isAlert(err error, description string) bool {
	remote, ok := errors.AsType[*net.OpError](err)
	return ok && remote.Op == "remote error" && strings.HasSuffix(remote.Err.Error(), description)
}
