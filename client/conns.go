package client

import (
	"context"
	"net"
	"sync"
	"time"
)

// dialTimeout bounds the opening of one connection.
const dialTimeout = 10 * time.Second

// connections remembers the open connections of a Client, so that Close can
// close them. A transport only closes those that are idle, and one on which a
// send is blocked never is. They are as many as the transport opens: one for
// every 250 or so calls that are under way at once.
type connections struct {
	mu     sync.Mutex
	open   map[*connection]struct{}
	closed bool
}

// connection forgets itself when it is closed.
type connection struct {
	net.Conn
	owner *connections
}

// dial opens a connection and remembers it.
func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		// The transport dials on its own time: this one came too late.
		_ = conn.Close()
		return nil, ErrClosed
	}
	if c.open == nil {
		c.open = make(map[*connection]struct{})
	}
	remembered := &connection{conn, c}
	c.open[remembered] = struct{}{}
	return remembered, nil
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.open, c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// close closes what is open and refuses to open more.
func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for conn := range c.open {
		// The inner one, because the outer takes mu to forget itself.
		_ = conn.Conn.Close()
	}
	clear(c.open)
}
