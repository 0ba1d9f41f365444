package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// newHTTP2 returns a client with one connection of its own. Without the limit, net/http dials for
// every request that begins before the first connection is open, and leaves the rest unused. A
// server closes the oldest unused connections of an address that has more than 256 of them, and
// on a busy machine those may be connections whose first request is on its way.
//
// disconnect closes the connection even if net/http has not noticed yet that its last stream is over;
// CloseIdleConnections would leave such a connection open.
func newHTTP2() (c *http.Client, disconnect func()) {
	return http2Over(&http.Transport{MaxConnsPerHost: 1}, new(net.Dialer).DialContext)
}

// http2Over returns a client for cleartext HTTP/2, and a function that closes its connections, used or not.
func http2Over(t *http.Transport, dial func(ctx context.Context, network, address string) (net.Conn, error)) (
	c *http.Client, disconnect func()) {
	var opened connections
	t.Protocols, t.DisableCompression, t.DialContext = new(http.Protocols), true, opened.of(dial)
	t.Protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: t}, opened.close
}

// connections are the connections of a client.
type connections struct {
	mu   sync.Mutex
	list []net.Conn
}

// of returns dial, which then registers each connection.
func (c *connections) of(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(
	ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.list = append(c.list, conn)
		return conn, nil
	}
}

// close closes them all, used or not.
func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.list {
		_ = conn.Close() // only the server is measured
	}
}

// lane is a WriteStream with one message outstanding at a time. A writer.Writer has
// one client; a lane carries the writes of many.
type lane struct {
	stream *connect.BidiStreamForClient[seqledgerv1.WriteStreamRequest, seqledgerv1.WriteStreamResponse]
	close  func()
}

// openLanes opens so many streams, a few on each connection.
func openLanes(ctx context.Context, address string, n int) []*lane {
	const onOneConnection = 16
	lanes := make([]*lane, n)
	var client *http.Client
	var disconnect func()
	for i := range lanes {
		if i%onOneConnection == 0 {
			client, disconnect = newHTTP2()
		}
		end := func() {} // the others of the connection may be in use
		if i%onOneConnection == onOneConnection-1 || i == n-1 {
			end = disconnect
		}
		stream := seqledgerv1connect.NewLedgerServiceClient(client, "http://"+address).WriteStream(ctx)
		lanes[i] = &lane{stream: stream, close: func() {
			_ = stream.CloseRequest() // all answers have arrived
			_ = stream.CloseResponse()
			end()
		}}
	}
	return lanes
}

func closeLanes(lanes []*lane) {
	for _, l := range lanes {
		l.close()
	}
}

// exchange sends writes in one message and waits for their results. It returns
// the first refusal as an error.
func (l *lane) exchange(writes ...*seqledgerv1.WriteRequest) error {
	refused, err := l.count(writes...)
	if err == nil && refused != nil {
		err = fmt.Errorf("refused: %s %s", refused.Code, refused.Message)
	}
	return err
}

// count is exchange that returns the first refusal by itself.
func (l *lane) count(writes ...*seqledgerv1.WriteRequest) (refused *seqledgerv1.WriteError, err error) {
	if err := l.stream.Send(&seqledgerv1.WriteStreamRequest{Writes: writes}); err != nil {
		if errors.Is(err, io.EOF) { // the stream is over, and the answer says why
			_, err = l.stream.Receive()
		}
		return nil, err
	}
	for answered := 0; answered < len(writes); {
		response, err := l.stream.Receive()
		if err != nil {
			return nil, err
		}
		for _, result := range response.Results {
			if e := result.GetError(); e != nil && refused == nil {
				refused = e
			}
			answered++
		}
	}
	return refused, nil
}

// population is many clients, each with a stream of its own.
type population struct {
	prefix    string // of the client ids
	sequences []uint64
}

func newPopulation(prefix string, streams int) *population {
	return &population{prefix: prefix, sequences: make([]uint64, streams)}
}

// write returns the next write of a client. Each client belongs to one goroutine.
func (p *population) write(client int, operations ...*seqledgerv1.Operation) *seqledgerv1.WriteRequest {
	w := &seqledgerv1.WriteRequest{
		Scope: benchScope, ClientId: fmt.Sprint(p.prefix, client), Sequence: p.sequences[client],
		Operations: operations,
	}
	advance(w)
	p.sequences[client] = w.Sequence
	return w
}
