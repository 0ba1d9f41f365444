package admission

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Connections have a limit below that of the files of the process (see package listen).
//
// A connection is unknown until a request on it was authenticated. Unknown connections have separate bounds, in total
// and for each address. If there are too many, the oldest is closed and not the newest: a client with a credential is
// authenticated within a round trip, and a silent one soon becomes the oldest. The newest is closed only if even the
// oldest has not had its round trip: then more connections arrive at once than can be served.

const (
	// maxUnknownConnections bounds the unknown connections, and unknownOfAddress those from one address. An HTTP/2
	// connection takes some 70 KB.
	maxUnknownConnections = 1_024
	unknownOfAddress      = 256
	// roundTrip is how long an unknown connection stays in any case.
	roundTrip = 50 * time.Millisecond
	// unknownTimeout is how long a connection may stay unknown without a request.
	unknownTimeout = 15 * time.Second
)

// connections are the connections of a server.
type connections struct {
	controller *Controller

	mu      sync.Mutex
	unknown byAge[*conn]
}

func (cs *connections) unknownCount() int64 {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return int64(cs.unknown.all.Len())
}

// conn is a connection that is counted until it is closed.
type conn struct {
	net.Conn

	connections *connections
	address     netip.Addr
	opened      time.Time
	leave       func()
	timer       *time.Timer // closes it while it is unknown

	known  atomic.Bool // owner is set
	visits list.List   // of *visit, oldest first; under visits.mu

	// Under connections.mu:
	unknown *aged[*conn] // nil once it is known or closed
	owner   *Share       // nil while it is unknown
	closed  bool
}

// Close implements net.Conn.
func (c *conn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite closes the sending direction, if the connection supports it.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Listener applies the bounds of connections to a listener. It closes excess connections at once: in the kernel's queue
// the client would wait for an answer.
func (c *Controller) Listener(l net.Listener) net.Listener { return &listener{l, &c.connections} }

type listener struct {
	net.Listener

	connections *connections
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.connections.enter(inner); c != nil {
			return c, nil
		}
		_ = inner.Close() // nothing was sent on it
	}
}

// enter counts a new connection. It returns nil if a bound is reached and no unknown connection can be closed for it.
func (cs *connections) enter(inner net.Conn) *conn {
	c := &conn{
		Conn: inner, connections: cs, address: parseAddress(inner.RemoteAddr().String()), opened: time.Now(),
	}
	c.leave = sync.OnceFunc(func() { cs.leave(c) })
	open, limit := &cs.controller.used[Connections], cs.controller.total(Connections)
	for !open.TryAcquire(1, limit) {
		cs.mu.Lock()
		oldest := cs.unknown.oldest()
		if !cs.closeFor(c, oldest, OfServer) {
			return nil
		}
	}
	cs.mu.Lock()
	c.unknown = cs.unknown.add(c.address, c)
	c.timer = time.AfterFunc(unknownTimeout, func() { _ = c.Close() })
	oldest, whose := cs.unknown.excess(c.address,
		min(unknownOfAddress, int(limit)), min(maxUnknownConnections, int(limit)))
	if whose == ownerCount {
		cs.mu.Unlock()
		return c
	}
	if !cs.closeFor(c, oldest, whose) {
		c.leave()
		return nil
	}
	return c
}

// closeFor closes the oldest unknown connection, which is nil if there is none, for a new one. It returns false if that
// one has not had its round trip. It is called with mu held, and releases it.
func (cs *connections) closeFor(c, oldest *conn, whose Owner) bool {
	cs.controller.refusals[Connections][whose].Add(1)
	if oldest == nil || c.opened.Sub(oldest.opened) < roundTrip {
		cs.mu.Unlock()
		cs.controller.overload.refuse(context.Background(), cs.controller.logger, Connections.String())
		return false
	}
	cs.forget(oldest) // so that it is closed once
	cs.mu.Unlock()
	_ = oldest.Close() // its requests do not matter
	return true
}

// forget removes a connection from the unknown ones. mu is held.
func (cs *connections) forget(c *conn) {
	if c.unknown == nil {
		return
	}
	cs.unknown.remove(c.unknown)
	c.unknown = nil
	c.timer.Stop()
}

// leave uncounts a connection.
func (cs *connections) leave(c *conn) {
	cs.mu.Lock()
	cs.forget(c)
	owner := c.owner
	c.closed = true
	cs.mu.Unlock()
	if owner != nil {
		owner.used[Connections].Release(1)
	}
	cs.controller.used[Connections].Release(1)
}

// identify records that a connection carried a request of a party. It returns false if the party has reached its bound
// of connections.
func (cs *connections) identify(c *conn, p Party) bool {
	if c.known.Load() {
		return true
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.owner != nil || c.closed {
		return true
	}
	if !p.Share.used[Connections].TryAcquire(1, cs.controller.limit(p, Connections)) {
		return false
	}
	cs.forget(c)
	c.owner = p.Share
	c.known.Store(true)
	return true
}

// visited restarts the timeout of an unknown connection: a monitoring client only sends health checks.
func (cs *connections) visited(c *conn) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.unknown != nil {
		c.timer.Reset(unknownTimeout)
	}
}

// connKey finds the connection of a request in its context.
type connKey struct{}

// ConnContext puts a connection of [Controller.Listener] into the context of its requests. It is for
// http.Server.ConnContext.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	if ours, ok := c.(*conn); ok {
		return context.WithValue(ctx, connKey{}, ours)
	}
	return ctx
}

func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// networkBits is how many bits of an IPv6 address distinguish two callers: each caller has a whole network.
const networkBits = 64

// addressOf returns the address of a connection, or the remote address if the connection is not one of
// [Controller.Listener].
func addressOf(c *conn, remote string) netip.Addr {
	if c != nil {
		return c.address
	}
	return parseAddress(remote)
}

// parseAddress returns the caller's address or network for a connection's address; the zero address if it is invalid.
func parseAddress(hostPort string) netip.Addr {
	at, err := netip.ParseAddrPort(hostPort)
	if err != nil {
		return netip.Addr{}
	}
	address := at.Addr().Unmap().WithZone("")
	if address.Is6() {
		network, err := address.Prefix(networkBits)
		if err != nil {
			return address
		}
		return network.Addr()
	}
	return address
}
