package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/load"
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

// pauses finds the longest time in which nothing was acknowledged.
type pauses struct {
	began   time.Time
	last    atomic.Int64 // nanoseconds since began
	longest atomic.Int64
}

func newPauses() *pauses { return &pauses{began: time.Now()} }

// acknowledged records an acknowledgement.
func (p *pauses) acknowledged() {
	now := int64(time.Since(p.began))
	gap := now - p.last.Swap(now)
	for {
		longest := p.longest.Load()
		if gap <= longest || p.longest.CompareAndSwap(longest, gap) {
			return
		}
	}
}

// restart drops the pauses so far.
func (p *pauses) restart() {
	p.last.Store(int64(time.Since(p.began)))
	p.longest.Store(0)
}

// population is many clients, each with a stream of its own, and the entities
// that they write.
type population struct {
	prefix    string // of the client ids
	entities  int    // 0: they append instead
	sequences []uint64
}

func newPopulation(prefix string, streams, entities int) *population {
	return &population{prefix: prefix, entities: entities, sequences: make([]uint64, streams)}
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

func (p *population) set(entity int) *seqledgerv1.Operation {
	return setValue(fmt.Sprintf("account/%08d", entity), make([]byte, payloadBytes))
}

// random returns the next write of a random client of a worker's share, to a
// random entity.
func (p *population) random(worker, workers int) *seqledgerv1.WriteRequest {
	share := (len(p.sequences) - worker + workers - 1) / workers
	client := worker + workers*rand.IntN(share)
	if p.entities == 0 {
		return p.write(client, operation())
	}
	return p.write(client, p.set(rand.IntN(p.entities)))
}

// seed makes every client write once, which creates every stream and every entity.
func (p *population) seed(ctx context.Context, address string) error {
	const inOneMessage = 250
	lanes := openLanes(ctx, address, 16)
	defer closeLanes(lanes)
	group, ctx := errgroup.WithContext(ctx)
	perClient := (p.entities + len(p.sequences) - 1) / len(p.sequences)
	for worker, l := range lanes {
		// Ends with its clients; joined by Wait.
		group.Go(func() error {
			var writes []*seqledgerv1.WriteRequest
			for client := worker; client < len(p.sequences) && ctx.Err() == nil; client += len(lanes) {
				operations := []*seqledgerv1.Operation{operation()}
				for i := range perClient {
					operations = append(operations[:i], p.set((client*perClient+i)%p.entities))
				}
				writes = append(writes, p.write(client, operations...))
				if len(writes) == inOneMessage || client+len(lanes) >= len(p.sequences) {
					if err := l.exchange(writes...); err != nil {
						return fmt.Errorf("seed: %w", err)
					}
					writes = writes[:0]
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// loaded is the result of a load of single writes.
type loaded struct {
	load.Result

	pause time.Duration // the longest between two acknowledgements
}

func (l *loaded) p99() float64 { return l.Latency.Milliseconds(99) }

// load writes in so many lanes, one write after another, for a time.
func (p *population) load(
	ctx context.Context, b *bed, outstanding int, warmup, duration time.Duration,
) (m loaded, err error) {
	lanes := openLanes(ctx, b.server.address, min(outstanding, len(p.sequences)))
	defer closeLanes(lanes)
	gaps := newPauses()
	began := false
	m.Result, err = load.Run(ctx, load.Load{
		Workers: len(lanes), Warmup: warmup, Duration: duration,
		Meter: func() (harness.Values, error) { // before the measurement, and after it
			if m.pause = time.Duration(gaps.longest.Load()); !began {
				gaps.restart()
			}
			began = true
			return harness.Usage(b.dir, b.server.Pid)()
		},
	}, func(_ context.Context, worker int) error {
		err := lanes[worker].exchange(p.random(worker, len(lanes)))
		gaps.acknowledged()
		return err
	})
	return m, err
}
