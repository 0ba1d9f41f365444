package rpc

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/seqledger/seqledger/client/failure"
)

// dialTimeout bounds the opening of one connection.
const dialTimeout = 10 * time.Second

// connections holds the open connections of a Client for Close. A transport closes only idle
// connections, and a connection with a blocked send is never idle. The number is that of the
// transport: one connection for every 250 or so concurrent calls.
type connections struct {
	mu     sync.Mutex
	open   map[*connection]struct{}
	closed bool
}

// connection removes itself from connections when it is closed.
type connection struct {
	net.Conn
	owner *connections
}

// dial opens a connection and records it.
func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		// The transport dials independently of Close; this connection came too late, and must not outlive it.
		_ = conn.Close()
		return nil, failure.ErrClosed
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

// close closes the open connections and refuses new ones.
func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for conn := range c.open {
		// Close the inner connection, because the outer one takes mu to remove itself.
		_ = conn.Conn.Close()
	}
	clear(c.open)
}
