package server

import (
	"errors"
	"net"
	"sync"
)

// Connections cost file descriptors, and so do the log's segments. A server
// that let clients take the last one would fail at its next segment, and stop
// for good: therefore connections have a limit below that of the process.

const (
	maxConnections = 16_384
	// ownFiles are kept for the ledger, the standard streams and whatever the
	// process was started with.
	ownFiles = 256
	// minConnections is for a process that may open hardly any file.
	minConnections = 64
)

// defaultConnections returns how many connections there may be when the process
// may have so many files open; 0: unlimited.
func defaultConnections(files uint64) int {
	if files == 0 || files >= maxConnections+ownFiles {
		return maxConnections
	}
	return max(minConnections, int(files)-ownFiles)
}

// limitedListener closes connections beyond a limit at once. Leaving them in
// the kernel's queue would let the client believe that it is connected, and
// wait for an answer.
type limitedListener struct {
	net.Listener

	limit   int
	open    *gate
	refused func()
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.enter(l.limit) {
			return &countedConn{Conn: c, leave: sync.OnceFunc(l.open.leave)}, nil
		}
		l.refused()
		_ = c.Close() // nothing was sent on it
	}
}

// countedConn counts until it is closed.
type countedConn struct {
	net.Conn

	leave func()
}

// CloseWrite ends what is sent, where the connection can do that by itself.
func (c *countedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
