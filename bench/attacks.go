package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/internal/load"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

const writePath = seqledgerv1connect.LedgerServiceWriteProcedure

// The attacks cover one kind of resource each: connections, memory for messages, unread answers, the engine,
// and the disk. Those without a key come first.
var attacks = []attack{
	{name: "none, to compare", prepare: largeBlocks,
		run: func(context.Context, *options, *target) (string, error) { return "nothing", nil }},
	{name: "silent HTTP/2, no key", run: holdText(17_000,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")},
	{name: "slow headers, no key", run: drip(2_000, "POST / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")},
	{name: "half bodies, no key", run: drip(400, postText(writePath, `{"clientId":"`+strings.Repeat("x", 5<<20), 6<<20))},
	{name: "16 list blocks", prepare: largeBlocks, run: calls("reader", 16, listBlocks)},
	{name: "stalled watchers", prepare: largeBlocks, run: stalledWatchers},
	{name: "deaf streams", run: deafStreams},
	{name: "stream of writes", run: streamedWrites(16, 250, payloadBytes)},
	{name: "stream of large writes", run: streamedWrites(16, 1, 1<<20)},
	{name: "unary, 1 ms deadlines", run: calls("bad", 64, writeHastily)},
	{name: "waiting reservations", run: calls("bad", 1_000, waitForOwner)},
	{name: "opened sessions", run: calls("bad", 64, openSession)},
}

// each calls do for 0 to n-1, at most atOnce concurrently, until one fails or ctx ends.
func each(ctx context.Context, n, atOnce int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// hold opens something n times, at most atOnce concurrently, and keeps it open until ctx ends. open returns the
// function that closes it.
func hold(ctx context.Context, n, atOnce int, open func(ctx context.Context, i int) (release func(), err error)) (
	string, error,
) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var mu sync.Mutex
	var releases []func()
	opening := make(chan error, 1)
	go func() { // ends when all are open, or with life; received below
		opening <- each(life, n, atOnce, func(_ context.Context, i int) error {
			if release, err := open(life, i); err == nil {
				mu.Lock()
				defer mu.Unlock()
				releases = append(releases, release)
			}
			return nil // refused
		})
	}()
	<-ctx.Done()
	mu.Lock()
	opened := len(releases)
	mu.Unlock()
	end()
	err := <-opening
	for _, release := range releases {
		release()
	}
	return fmt.Sprintf("%d of %d opened", opened, n), err
}

// dial connects from one of many loopback addresses, because one address has at most 28,000 ports. Without linger, a
// closed connection leaves no state in the kernel.
func dial(ctx context.Context, address string, i int) (*net.TCPConn, error) {
	from := net.IPv4(127, 0, byte(1+i/250%250), byte(1+i%250))
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}, Timeout: 10 * time.Second}
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	tcp := c.(*net.TCPConn) //nolint:forcetypeassert // The network is tcp.
	return tcp, tcp.SetLinger(0)
}

// send connects and sends text.
func send(ctx context.Context, address string, i int, text string) (*net.TCPConn, error) {
	c, err := dial(ctx, address, i)
	if err != nil {
		return nil, err
	}
	if _, err = io.WriteString(c, text); err != nil {
		_ = c.Close() // only the server is measured
	}
	return c, err
}

func postText(path, body string, length int) string {
	return fmt.Sprintf(
		"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		path, length, body)
}

// holdText keeps connections open after sending text on each.
func holdText(connections int, text string) func(context.Context, *options, *target) (string, error) {
	return func(ctx context.Context, o *options, t *target) (string, error) {
		return hold(ctx, scaled(o, connections), 32, func(ctx context.Context, i int) (func(), error) {
			c, err := send(ctx, t.address, i, text)
			return func() { _ = c.Close() }, err
		})
	}
}

// drip sends text on many connections, then a byte a second on each.
func drip(connections int, text string) func(context.Context, *options, *target) (string, error) {
	return func(ctx context.Context, o *options, t *target) (string, error) {
		n := scaled(o, connections)
		var closed, refused atomic.Int64
		err := each(context.WithoutCancel(ctx), n, n, func(_ context.Context, i int) error {
			c, err := send(ctx, t.address, i, text)
			if c == nil {
				refused.Add(1)
				return nil
			}
			defer c.Close() //nolint:errcheck // Only the server is measured.
			for err == nil && ctx.Err() == nil {
				load.Pause(ctx, time.Second)
				_, err = io.WriteString(c, "x")
			}
			if err != nil {
				closed.Add(1)
			}
			return nil
		})
		return fmt.Sprintf("%d connections: %d refused, %d ended by the server", n, refused.Load(), closed.Load()), err
	}
}

// noise is incompressible.
var noise = func() []byte {
	b := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // never fails
	return b
}()

// badWrite returns a write of the bad tenant with one payload.
func badWrite(client string, sequence uint64, bytes int) *seqledgerv1.WriteRequest {
	return &seqledgerv1.WriteRequest{
		Scope: badScope, ClientId: client, Sequence: sequence,
		Operations: []*seqledgerv1.Operation{appendOf(noise[:bytes])},
	}
}

// fill commits writes of a tenant sequentially.
func fill(
	ctx context.Context, t *target, id string, n int, write func(sequence uint64) *seqledgerv1.WriteRequest,
) error {
	api, disconnect := t.api(id)
	defer disconnect()
	for i := 0; i < n; {
		switch _, err := api.Write(ctx, connect.NewRequest(write(uint64(i)+1))); {
		case err == nil:
			i++
		case connect.CodeOf(err) == connect.CodeResourceExhausted: // it exceeds its rate
			load.Pause(ctx, 20*time.Millisecond)
		default:
			return fmt.Errorf("fill: %w", err)
		}
	}
	return nil
}

// largeBlocks makes 900 blocks of half a mebibyte.
func largeBlocks(ctx context.Context, o *options, t *target) error {
	return fill(ctx, t, "bad", scaled(o, 900), func(sequence uint64) *seqledgerv1.WriteRequest {
		return badWrite("filler", sequence, 500<<10)
	})
}

// calls has workers make calls on connections of up to 100 workers each. do makes the nth call of a worker.
func calls(as string, workers int, do func(ctx context.Context, api service, worker, n int) error) func(
	context.Context, *options, *target) (string, error) {
	const onOneConnection = 100
	return func(ctx context.Context, _ *options, t *target) (string, error) {
		apis := make([]service, (workers+onOneConnection-1)/onOneConnection)
		for i := range apis {
			var disconnect func()
			apis[i], disconnect = t.api(as)
			defer disconnect()
		}
		var done, refused atomic.Int64
		err := each(ctx, workers, workers, func(ctx context.Context, worker int) error {
			for n := 0; ctx.Err() == nil; n++ {
				if do(ctx, apis[worker%len(apis)], worker, n) != nil {
					refused.Add(1)
				}
				done.Add(1)
			}
			return nil
		})
		return fmt.Sprintf("%d at once: %d requests, %d refused", workers, done.Load(), refused.Load()), err
	}
}

func listBlocks(ctx context.Context, api service, _, _ int) error {
	_, err := api.ListBlocks(ctx, connect.NewRequest(&seqledgerv1.ListBlocksRequest{Scope: badScope, PageSize: 1_000}))
	return err
}

// writeHastily sends a mebibyte and gives up after a millisecond.
func writeHastily(ctx context.Context, api service, worker, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, err := api.Write(ctx, connect.NewRequest(badWrite(fmt.Sprintf("unary-%d-%d", worker, n), 1, 1<<20)))
	return err
}

// openSession opens a session of a new stream with a long client id, which is what a stream costs.
func openSession(ctx context.Context, api service, worker, n int) error {
	_, err := api.OpenSession(ctx, connect.NewRequest(&seqledgerv1.OpenSessionRequest{
		Scope: badScope, ClientId: fmt.Sprintf("%s-%06d-%010d", strings.Repeat("x", 230), worker, n),
		AttemptId: fmt.Appendf(nil, "%06d%010d", worker, n),
	}))
	return err
}

// waitForOwner waits for one of 16 keys whose owner does not finish.
func waitForOwner(ctx context.Context, api service, worker, n int) error {
	_, err := api.Reserve(ctx, connect.NewRequest(&seqledgerv1.ReserveRequest{
		Record:      &seqledgerv1.RecordKey{Scope: badScope, Key: fmt.Sprint("owned-", worker%16)},
		AttemptId:   fmt.Appendf(nil, "%06d%010d", worker, n),
		Fingerprint: &seqledgerv1.Fingerprint{Algorithm: 1, Digest: make([]byte, 32)},
		Lease:       durationpb.New(time.Hour), Wait: durationpb.New(time.Minute),
	}))
	if err != nil {
		load.Pause(ctx, 50*time.Millisecond)
	}
	return err
}

// stalledWatchers watch and read no blocks.
func stalledWatchers(ctx context.Context, o *options, t *target) (string, error) {
	n := scaled(o, 500)
	return hold(ctx, n, n, func(ctx context.Context, _ int) (func(), error) {
		lone, disconnect := smallWindow()
		c := seqledgerv1connect.NewLedgerServiceClient(t.as("reader", lone), "http://"+t.address)
		stream, err := c.Watch(ctx, connect.NewRequest(&seqledgerv1.WatchRequest{Scope: badScope, FromHeight: 1}))
		if err != nil {
			disconnect()
			return nil, err
		}
		return func() {
			_ = stream.Close() // canceled
			disconnect()
		}, nil
	})
}

// deafStreams write until the server reads no more, and read no results.
func deafStreams(ctx context.Context, o *options, t *target) (string, error) {
	return hold(ctx, scaled(o, 500), 32, func(ctx context.Context, i int) (func(), error) {
		c, disconnect := smallWindow()
		api := seqledgerv1connect.NewLedgerServiceClient(t.as("bad", c), "http://"+t.address)
		stream := api.WriteStream(ctx)
		var writing sync.WaitGroup
		writing.Go(func() { // ends when the connection is closed; joined by release
			for frame := uint64(0); stream.Send(writesOf(fmt.Sprint("deaf-", i), frame, 250, payloadBytes)) == nil; {
				frame++
			}
		})
		return func() {
			// The connection too: a sender blocked on flow control does not notice the end of its context.
			disconnect()
			writing.Wait()
		}, nil
	})
}

// writesOf returns the nth frame of writes of a stream.
func writesOf(client string, frame uint64, writes, bytes int) *seqledgerv1.WriteStreamRequest {
	m := new(seqledgerv1.WriteStreamRequest)
	for i := range writes {
		m.Writes = append(m.Writes, badWrite(client, frame*uint64(writes)+uint64(i)+1, bytes))
	}
	return m
}

// streamedWrites sends frames of writes on several streams as fast as the server accepts them.
func streamedWrites(streams, writes, bytes int) func(context.Context, *options, *target) (string, error) {
	return func(ctx context.Context, _ *options, t *target) (string, error) {
		var committed, refused atomic.Int64
		err := each(ctx, streams, streams, func(ctx context.Context, i int) error {
			api, disconnect := t.api("bad")
			defer disconnect()
			for life := 0; ctx.Err() == nil; life++ {
				flood(ctx, api, fmt.Sprintf("flood-%d-%d", i, life), writes, bytes, &committed, &refused)
				load.Pause(ctx, 50*time.Millisecond)
			}
			return nil
		})
		return fmt.Sprintf("%d streams: %d writes of %d bytes committed, %d refused", streams, committed.Load(), bytes,
			refused.Load()), err
	}
}

// flood sends frames until the stream ends, and counts the results.
func flood(ctx context.Context, api service, client string, writes, bytes int, committed, refused *atomic.Int64) {
	stream := api.WriteStream(ctx)
	var sending sync.WaitGroup
	sending.Go(func() { // ends with the stream; joined below
		for frame := uint64(0); stream.Send(writesOf(client, frame, writes, bytes)) == nil; {
			frame++
		}
	})
	for {
		answer, err := stream.Receive()
		if err != nil {
			break
		}
		for _, r := range answer.Results {
			if r.GetReceipt() != nil {
				committed.Add(1)
			} else {
				refused.Add(1)
			}
		}
	}
	_ = errors.Join(stream.CloseRequest(), stream.CloseResponse()) // it has ended
	sending.Wait()
}

// smallWindow returns a client with a small flow-control window, so that unread answers stay with the server.
func smallWindow() (c *http.Client, disconnect func()) {
	return http2Over(&http.Transport{
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 1 << 20},
	}, func(ctx context.Context, _, address string) (net.Conn, error) {
		return dial(ctx, address, int(smallWindows.Add(1)))
	})
}

// smallWindows numbers the connections of smallWindow.
var smallWindows atomic.Int64

// newHTTP2 returns a client with one connection.
func newHTTP2() (c *http.Client, disconnect func()) {
	return http2Over(&http.Transport{MaxConnsPerHost: 1}, new(net.Dialer).DialContext)
}

// http2Over returns a client for cleartext HTTP/2 and a function that closes its connections. CloseIdleConnections
// would leave those open whose last stream net/http has not yet seen end.
func http2Over(t *http.Transport, dial func(ctx context.Context, network, address string) (net.Conn, error)) (
	c *http.Client, disconnect func(),
) {
	var mu sync.Mutex
	var opened []net.Conn
	t.Protocols, t.DisableCompression = new(http.Protocols), true
	t.Protocols.SetUnencryptedHTTP2(true)
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			opened = append(opened, conn)
		}
		return conn, err
	}
	return &http.Client{Transport: t}, func() {
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range opened {
			_ = conn.Close() // only the server is measured
		}
	}
}
