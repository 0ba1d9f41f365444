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

	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/internal/load"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// The attacks cover one kind of resource each: connections, memory for messages, unread answers, the engine,
// and the disk. Those without a key come first.
var attacks = []attack{
	{name: "none, to compare", prepare: largeBlocks,
		run: func(context.Context, *options, *target) (string, error) { return "nothing", nil }},
	{name: "silent HTTP/2, no key", run: holdText(17_000, false,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")},
	{name: "slow headers, no key", run: holdText(2_000, true, "POST / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")},
	{name: "half bodies, no key", run: holdText(400, true, fmt.Sprintf(
		"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		seqledgerv1connect.LedgerServiceWriteProcedure, 6<<20, `{"clientId":"`+strings.Repeat("x", 5<<20)))},
	{name: "16 list blocks", prepare: largeBlocks, run: calls("reader", 16, listBlocks)},
	{name: "stalled watchers", prepare: largeBlocks, run: stalledWatchers},
	{name: "deaf streams", run: deafStreams},
	{name: "stream of writes", run: streamedWrites(16, 250, payloadBytes)},
	{name: "stream of large writes", run: streamedWrites(16, 1, 1<<20)},
	{name: "unary, 1 ms deadlines", run: calls("bad", 64, writeHastily)},
	{name: "waiting reservations", run: calls("bad", 1_000, waitForOwner)},
	{name: "opened sessions", run: calls("bad", 64, openSession)},
}

// each calls do for 0 to n-1 at once, until one fails or ctx ends.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// hold opens something n times and keeps it open until ctx ends. open returns the function that closes it.
func hold(
	ctx context.Context, n int, open func(ctx context.Context, i int) (release func(), err error),
) (string, error) {
	var opened atomic.Int64
	opening := make(chan struct{}, 32) // as many at once
	err := each(ctx, n, func(ctx context.Context, i int) error {
		opening <- struct{}{}
		release, err := open(ctx, i)
		<-opening
		if err == nil { // else it was refused
			opened.Add(1)
			<-ctx.Done()
			release()
		}
		return nil
	})
	return fmt.Sprintf("%d of %d opened", opened.Load(), n), err
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

// holdText keeps connections open after sending text on each, and sends a byte a second on them if they drip.
func holdText(connections int, drip bool, text string) func(context.Context, *options, *target) (string, error) {
	return func(ctx context.Context, o *options, t *target) (string, error) {
		return hold(ctx, scaled(o, connections), func(ctx context.Context, i int) (func(), error) {
			c, err := dial(ctx, t.Address, i)
			if err != nil {
				return nil, err
			}
			release := func() { _ = c.Close() } // only the server is measured
			if _, err := io.WriteString(c, text); err != nil {
				release()
				return nil, err
			}
			if drip {
				go func() { // ends with ctx, or when the server ends the connection
					var err error
					for err == nil && ctx.Err() == nil {
						load.Pause(ctx, time.Second)
						_, err = io.WriteString(c, "x")
					}
				}()
			}
			return release, nil
		})
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
		Operations: []*seqledgerv1.Operation{op.Append(noise[:bytes])},
	}
}

// largeBlocks makes 900 blocks of half a mebibyte.
func largeBlocks(ctx context.Context, o *options, t *target) error {
	api, disconnect := t.api("bad")
	defer disconnect()
	for i := range scaled(o, 900) {
		if _, err := api.Write(ctx, connect.NewRequest(badWrite("filler", uint64(i)+1, 500<<10))); err != nil {
			return err
		}
	}
	return nil
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
		err := each(ctx, workers, func(ctx context.Context, worker int) error {
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
	return hold(ctx, scaled(o, 500), func(ctx context.Context, _ int) (func(), error) {
		api, disconnect := t.deafAPI("reader")
		_, err := api.Watch(ctx, connect.NewRequest(&seqledgerv1.WatchRequest{Scope: badScope, FromHeight: 1}))
		if err != nil {
			disconnect()
		}
		return disconnect, err
	})
}

// deafStreams write until the server reads no more, and read no results.
func deafStreams(ctx context.Context, o *options, t *target) (string, error) {
	return hold(ctx, scaled(o, 500), func(ctx context.Context, i int) (func(), error) {
		api, disconnect := t.deafAPI("bad")
		writing := send(api.WriteStream(ctx), fmt.Sprint("deaf-", i), 250, payloadBytes)
		return func() {
			// The connection too: a sender blocked on flow control does not notice the end of its context.
			disconnect()
			writing.Wait()
		}, nil
	})
}

// writeStream is a stream of writes of the API.
type writeStream = connect.BidiStreamForClient[seqledgerv1.WriteStreamRequest, seqledgerv1.WriteStreamResponse]

// send sends frames of writes of a client until the stream or its connection ends, which the group waits for.
func send(stream *writeStream, client string, writes, bytes int) *sync.WaitGroup {
	var sending sync.WaitGroup
	sending.Go(func() {
		for sequence := uint64(0); ; {
			frame := new(seqledgerv1.WriteStreamRequest)
			for range writes {
				sequence++
				frame.Writes = append(frame.Writes, badWrite(client, sequence, bytes))
			}
			if stream.Send(frame) != nil {
				return
			}
		}
	})
	return &sending
}

// streamedWrites sends frames of writes on several streams as fast as the server accepts them, and counts the results.
func streamedWrites(streams, writes, bytes int) func(context.Context, *options, *target) (string, error) {
	return func(ctx context.Context, _ *options, t *target) (string, error) {
		var committed, refused atomic.Int64
		err := each(ctx, streams, func(ctx context.Context, i int) error {
			api, disconnect := t.api("bad")
			defer disconnect()
			for life := 0; ctx.Err() == nil; life++ {
				stream := api.WriteStream(ctx)
				sending := send(stream, fmt.Sprintf("flood-%d-%d", i, life), writes, bytes)
				answer, err := stream.Receive()
				for ; err == nil; answer, err = stream.Receive() {
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
				load.Pause(ctx, 50*time.Millisecond)
			}
			return nil
		})
		return fmt.Sprintf("%d streams: %d writes of %d bytes committed, %d refused", streams, committed.Load(), bytes,
			refused.Load()), err
	}
}

// service is the API as a tenant calls it.
type service struct {
	seqledgerv1connect.LedgerServiceClient
	seqledgerv1connect.IdempotencyServiceClient
}

// api returns a client with a caller's key on a new connection, and a function that closes it.
func (t *target) api(id string) (s service, disconnect func()) {
	return t.apiOver(id, &http.Transport{MaxConnsPerHost: 1})
}

// deafAPI is api with a small flow-control window, so that unread answers stay with the server.
func (t *target) deafAPI(id string) (s service, disconnect func()) {
	return t.apiOver(id, &http.Transport{
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 1 << 20},
	})
}

// connections numbers those of apiOver.
var connections atomic.Int64

// apiOver calls over cleartext HTTP/2. disconnect closes the connections, because CloseIdleConnections would leave
// those open whose last stream net/http has not yet seen end.
func (t *target) apiOver(id string, over *http.Transport) (s service, disconnect func()) {
	var mu sync.Mutex
	var opened []net.Conn
	over.Protocols, over.DisableCompression = new(http.Protocols), true
	over.Protocols.SetUnencryptedHTTP2(true)
	over.DialContext = func(ctx context.Context, _, address string) (net.Conn, error) {
		conn, err := dial(ctx, address, int(connections.Add(1)))
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			opened = append(opened, conn)
		}
		return conn, err
	}
	c, url := &http.Client{Transport: bearer{t.Keys[id], over}}, "http://"+t.Address
	return service{
			seqledgerv1connect.NewLedgerServiceClient(c, url), seqledgerv1connect.NewIdempotencyServiceClient(c, url),
		}, func() {
			mu.Lock()
			defer mu.Unlock()
			for _, conn := range opened {
				_ = conn.Close() // only the server is measured
			}
		}
}

// bearer adds a credential to each request.
type bearer struct {
	key  string
	next http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.key)
	return b.next.RoundTrip(r)
}
