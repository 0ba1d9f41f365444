// Package listen makes the HTTP servers of all commands, and bounds the connections of their listeners.
//
// Connections use file descriptors, and so do the log's segments. If clients took the last one, the log would fail at
// its next segment and the process would stop. So each port of a process has its share of the descriptors, and some are
// reserved for everything else. The shares are fixed, so that no port takes connections from another one.
package listen

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// HeaderTimeout is how long the header of a request may take.
	HeaderTimeout = 10 * time.Second
	// idleTimeout is how long a connection may stay without a request, and newTimeout without a first one.
	idleTimeout, newTimeout = 2 * time.Minute, 15 * time.Second
	// lastTimeout is how long a connection may stay without a first request while the server shuts down. net/http would
	// wait five seconds for one that a client has opened in advance.
	lastTimeout = 500 * time.Millisecond

	mostConnections = 16_384
	// ownFiles are reserved for the ledger, the standard streams, connections to stores, and inherited files.
	ownFiles = 256
	// leastConnections applies to a process that may open very few files.
	leastConnections = 64
)

// Shares are how many connections each port of a process may have at once.
type Shares struct {
	// Clients is that of the port of a server for clients.
	Clients int
	// Gateway is that of the port of a gateway, which needs as many connections to its services. Next to it
	// Ledger is that of the port of the ledger in its process.
	Gateway, Ledger int
	// Peers is that of the port for other nodes of the cluster, and Debug that of the port for profiles and metrics.
	Peers, Debug int
}

// Connections returns the shares of this process.
func Connections() Shares { return shares(filesLimit()) }

// shares returns the shares of a process that may have the given number of files open; 0: unlimited.
func shares(files uint64) Shares {
	const all = 1 << 20 // more than any share needs
	n := all
	if files > 0 && files < all {
		n = int(files)
	}
	s := Shares{Peers: min(max(16, n/8), 1_024), Debug: min(max(4, n/32), 64)}
	s.Clients = min(max(leastConnections, n-ownFiles-s.Peers-s.Debug), mostConnections)
	s.Gateway, s.Ledger = s.Clients*2/5, s.Clients/5
	return s
}

// Server returns an HTTP server with the deadlines that all commands have. The caller sets what is particular.
func Server(h http.Handler, maxHeaderBytes int, logger *slog.Logger) *http.Server {
	fresh := &freshConnections{conns: map[net.Conn]struct{}{}}
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: HeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug), ConnState: fresh.changed,
	}
	s.RegisterOnShutdown(func() { time.AfterFunc(lastTimeout, fresh.close) })
	return s
}

// freshConnections are the connections of a server that have not had a request.
type freshConnections struct {
	count atomic.Int32 // of conns, so that requests take no lock
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// changed is for http.Server.ConnState.
func (f *freshConnections) changed(c net.Conn, state http.ConnState) {
	if state != http.StateNew && f.count.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if state == http.StateNew {
		f.conns[c] = struct{}{}
	} else {
		delete(f.conns, c)
	}
	f.count.Store(int32(len(f.conns)))
}

func (f *freshConnections) close() {
	f.mu.Lock()
	conns := slices.Collect(maps.Keys(f.conns))
	f.mu.Unlock()
	for _, c := range conns { // their server notices, and calls changed
		_ = c.Close()
	}
}

// Serve serves the connections of a listener, at most most of them at once, until s is closed. A new connection beyond
// them takes the place of the one that has been without a request for longest; if all have one under way, the new one
// is closed at once: in the kernel's queue its client would wait for an answer. Serve may be called once for a server,
// which is one of [Server].
func Serve(s *http.Server, l net.Listener, most int) error {
	next := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		LetIn(r.Context())
		next.ServeHTTP(w, r)
	})
	return ServeLetIn(s, l, most)
}

// connKey is the key of the context value that LetIn reads.
type connKey struct{}

// LetIn says that a request, whose context is given, is let in.
func LetIn(ctx context.Context) {
	if c, _ := ctx.Value(connKey{}).(*conn); c != nil {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.begin()
	}
}

// ServeLetIn is [Serve] for a server whose handler calls [LetIn]. A connection without a request that was let in counts
// as one without a request, whatever its client has begun and does not end.
func ServeLetIn(s *http.Server, l net.Listener, most int) error {
	b := &bounded{Listener: l, most: most}
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, connOf(c))
	}
	fresh := s.ConnState // of Server
	s.ConnState = func(c net.Conn, state http.ConnState) {
		fresh(c, state)
		b.changed(c, state)
	}
	if s.TLSConfig != nil {
		return s.ServeTLS(b, "", "") // the certificate is in the configuration
	}
	return s.Serve(b)
}

// bounded is a listener with a bound.
type bounded struct {
	net.Listener

	most int

	mu   sync.Mutex
	open int
	idle list.List // of *conn without a request, the one that has been so for longest first
}

// conn is a connection of a bounded listener.
type conn struct {
	net.Conn

	of    *bounded
	timer *time.Timer // closes it unless it gets a request

	// Under of.mu:
	waiting *list.Element // in of.idle; nil while a request is under way, and when it is closed
	closed  bool
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		inner, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: inner, of: b}
		if !b.enter(c) {
			_ = inner.Close() // nothing was sent on it
			continue
		}
		return c, nil
	}
}

// enter counts a connection. It returns false if there is no place for it.
func (b *bounded) enter(c *conn) bool {
	b.mu.Lock()
	var oldest *conn
	if b.open >= b.most {
		front := b.idle.Front()
		if front == nil {
			b.mu.Unlock()
			return false
		}
		oldest = front.Value.(*conn) //nolint:forcetypeassert // The list holds nothing else.
		b.leave(oldest)
	}
	b.open++
	c.waiting = b.idle.PushBack(c)
	c.timer = time.AfterFunc(newTimeout, func() { _ = c.Close() })
	b.mu.Unlock()
	if oldest != nil {
		_ = oldest.Conn.Close() // it has no request
	}
	return true
}

// leave uncounts a connection. mu is held.
func (b *bounded) leave(c *conn) {
	if c.closed {
		return
	}
	c.closed = true
	b.open--
	c.begin()
}

// connOf returns the connection below TLS, if there is TLS, or nil.
func connOf(c net.Conn) *conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	ours, _ := c.(*conn)
	return ours
}

// begin notes that the connection has a request, or is closed. of.mu is held.
func (c *conn) begin() {
	c.timer.Stop()
	if c.waiting != nil {
		c.of.idle.Remove(c.waiting)
		c.waiting = nil
	}
}

// changed is for http.Server.ConnState.
func (b *bounded) changed(nc net.Conn, state http.ConnState) {
	c := connOf(nc)
	if c == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if state == http.StateIdle && c.waiting == nil && !c.closed {
		c.waiting = b.idle.PushBack(c)
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.leave(c)
	return err
}

// CloseWrite closes the sending direction, if the connection supports it.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
