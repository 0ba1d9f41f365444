package rpc

import (
	"context"
	"net"
	"time"

	"github.com/seqledger/seqledger/client/failure"
)

// dialTimeout bounds the opening of one connection.
const dialTimeout = 10 * time.Second

// dialer opens a connection, as net.Dialer.DialContext does.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// dialUntil returns a dialer whose connections close when a Client's context ends. A transport closes only idle
// connections, and a connection with a blocked send is never idle.
func dialUntil(end context.Context) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		dialer := net.Dialer{Timeout: dialTimeout}
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if end.Err() != nil {
			// The transport dials independently of Close; this connection came too late, and must not outlive it.
			_ = conn.Close()
			return nil, failure.ErrClosed
		}
		return &connection{conn, context.AfterFunc(end, func() { _ = conn.Close() })}, nil
	}
}

// connection is a connection that the end of its Client closes, unless it was closed before.
type connection struct {
	net.Conn

	forget func() bool
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.forget()
	return c.Conn.Close()
}
