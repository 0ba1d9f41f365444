package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/seqledger/seqledger/client/failure"
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
	if _, err := dial(t.Context(), "tcp", address); !errors.Is(err, failure.ErrClosed) {
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
	if _, err := open.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("want the connection closed, got %v", err)
	}
}
