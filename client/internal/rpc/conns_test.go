package rpc

import (
	"errors"
	"io"
	"net"
	"testing"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestConnectionsAreClosedAndForgotten: close ends those that are open, one that
// was closed before is not kept, and a dial that comes late is refused.
func TestConnectionsAreClosedAndForgotten(t *testing.T) {
	t.Parallel()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = listener.Close() }()
	var c connections
	dial := func() net.Conn {
		conn := must.Get(c.dial(t.Context(), "tcp", listener.Addr().String()))(t)
		return conn
	}
	gone := dial()
	open := dial()
	_ = gone.Close()
	if len(c.open) != 1 {
		t.Errorf("want only the open connection recorded, got %d", len(c.open))
	}
	c.close()
	if _, err := open.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("want the connection closed, got %v", err)
	}
	if _, err := c.dial(t.Context(), "tcp", listener.Addr().String()); !errors.Is(err, failure.ErrClosed) {
		t.Errorf("want a late dial refused, got %v", err)
	}
	for range 3 {
		// Each is closed on the other side; a leak would leave the read waiting.
		conn := must.Get(listener.Accept())(t)
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("want the peer to see the end, got %v", err)
		}
		_ = conn.Close()
	}
}
