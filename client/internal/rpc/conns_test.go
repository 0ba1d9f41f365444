package rpc

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestConnectionsEndWithTheirClient: the end closes those that are open, one that was closed before is not kept, and a
// dial that comes late is refused.
func TestConnectionsEndWithTheirClient(t *testing.T) {
	t.Parallel()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = listener.Close() }()
	ctx, end := context.WithCancel(t.Context())
	dial := dialUntil(ctx)
	address := listener.Addr().String()
	gone := must.Get(dial(t.Context(), "tcp", address))(t)
	open := must.Get(dial(t.Context(), "tcp", address))(t)
	_ = gone.Close()
	if gone.(*connection).forget() { //nolint:forcetypeassert // The dialer's.
		t.Error("a connection that was closed is kept")
	}
	end()
	check.Is(t, check.Err(dial(t.Context(), "tcp", address)), failure.ErrClosed, "want a late dial refused")
	for range 3 {
		// Each is closed on the other side; a leak would leave the read waiting.
		conn := must.Get(listener.Accept())(t)
		check.Is(t, check.Err(conn.Read(make([]byte, 1))), io.EOF, "want the peer to see the end")
		_ = conn.Close()
	}
	check.Is(t, check.Err(open.Write([]byte("x"))), net.ErrClosed, "want the connection closed")
}
