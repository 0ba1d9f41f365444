package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/load"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// What the bad tenant does. The rows are in tenants.go.

// doNothing is to compare the others with.
func doNothing(context.Context, *options, *target) (string, error) { return "nothing", nil }

// badWrite returns a write of the bad tenant with some bytes in one payload each MiB.
func badWrite(client string, sequence uint64, bytes int) *seqledgerv1.WriteRequest {
	w := &seqledgerv1.WriteRequest{Scope: badScope, ClientId: client, Sequence: sequence}
	for left := bytes; left > 0 || len(w.Operations) == 0; left -= 1 << 20 {
		w.Operations = append(w.Operations, appendOf(noise[:min(left, 1<<20)]))
	}
	return w
}

// noise is incompressible, so that a compressed answer is as large as a plain
// one.
var noise = func() []byte {
	b := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // it never fails
	return b
}()

// fillBad commits writes of the bad tenant one after the other.
func fillBad(ctx context.Context, t *target, n int, write func(sequence uint64) *seqledgerv1.WriteRequest) error {
	return fill(ctx, t, "bad", n, write)
}

// fill is fillBad for another tenant.
func fill(
	ctx context.Context, t *target, id string, n int, write func(sequence uint64) *seqledgerv1.WriteRequest,
) error {
	api, disconnect := t.api(id)
	defer disconnect()
	for i := 0; i < n; {
		switch _, err := api.Write(ctx, connect.NewRequest(write(uint64(i)+1))); {
		case err == nil:
			i++
		case connect.CodeOf(err) == connect.CodeResourceExhausted: // it is faster than it may be
			load.Pause(ctx, 20*time.Millisecond)
		default:
			return fmt.Errorf("fill: %w", err)
		}
	}
	return nil
}

// largeBlocks makes blocks of half a mebibyte.
func largeBlocks(ctx context.Context, o *options, t *target) error {
	return fillBad(ctx, t, scaled(o, 900), func(sequence uint64) *seqledgerv1.WriteRequest {
		return badWrite("filler", sequence, 500<<10)
	})
}

// wideWindow makes a stream whose window has 1,024 receipts, each in a large block.
func wideWindow(ctx context.Context, o *options, t *target) error {
	root, disconnect := t.api("root")
	defer disconnect()
	request := connect.NewRequest(&seqledgerv1.UpdateConfigRequest{
		ReceiptWindowSet: &seqledgerv1.UpdateConfigRequest_ReceiptWindow{ReceiptWindow: 1_024},
	})
	if _, err := root.admin.UpdateConfig(ctx, request); err != nil {
		return err
	}
	return largeBlocks(ctx, o, t)
}

// longEntities makes entities whose values are in blocks.
func longEntities(ctx context.Context, o *options, t *target) error {
	return fillBad(ctx, t, scaled(o, 200), func(sequence uint64) *seqledgerv1.WriteRequest {
		w := &seqledgerv1.WriteRequest{Scope: badScope, ClientId: "filler", Sequence: sequence}
		for i := range 100 {
			w.Operations = append(w.Operations, setValue(fmt.Sprintf("e/%06d/%03d", sequence, i), noise[:600]))
		}
		return w
	})
}

// largeValue makes one entity with the largest value.
func largeValue(ctx context.Context, _ *options, t *target) error {
	return fillBad(ctx, t, 1, func(sequence uint64) *seqledgerv1.WriteRequest {
		return &seqledgerv1.WriteRequest{
			Scope: badScope, ClientId: "filler", Sequence: sequence,
			Operations: []*seqledgerv1.Operation{setValue("large", noise)},
		}
	})
}

// tenantCall is the nth call of a worker.
type tenantCall func(ctx context.Context, api service, worker, n int) error

// calls has workers call repeatedly, each on a connection of its own.
func calls(as string, workers int, do tenantCall) func(context.Context, *options, *target) (string, error) {
	return func(ctx context.Context, _ *options, t *target) (string, error) {
		apis, counts := make([]service, workers), make([]int, workers)
		for i := range apis {
			var disconnect func()
			apis[i], disconnect = t.api(as)
			defer disconnect()
		}
		return repeat(ctx, workers, func(ctx context.Context, worker int) (refused bool, err error) {
			err = do(ctx, apis[worker], worker, counts[worker])
			counts[worker]++
			return err != nil && connect.CodeOf(err) != connect.CodeNotFound, nil
		})
	}
}

func listAllBlocks(ctx context.Context, api service, _, _ int) error {
	_, err := api.ListBlocks(ctx, connect.NewRequest(&seqledgerv1.ListBlocksRequest{Scope: badScope, PageSize: 1_000}))
	return err
}

func getReceipts(ctx context.Context, api service, _, _ int) error {
	_, err := api.GetClientState(ctx, connect.NewRequest(&seqledgerv1.GetClientStateRequest{
		Scope: badScope, ClientId: "filler", IncludeReceipts: true,
	}))
	return err
}

func getBlocks(ctx context.Context, api service, worker, n int) error {
	_, err := api.GetBlock(ctx, connect.NewRequest(&seqledgerv1.GetBlockRequest{
		Scope: badScope, Height: uint64((worker+n)%100) + 1,
	}))
	return err
}

func getProofs(ctx context.Context, api service, worker, n int) error {
	block, err := api.GetBlock(ctx, connect.NewRequest(&seqledgerv1.GetBlockRequest{
		Scope: badScope, Height: uint64((worker+n)%100) + 1,
	}))
	if err != nil || len(block.Msg.Block.Transactions) == 0 {
		return err
	}
	_, err = api.GetTransaction(ctx, connect.NewRequest(&seqledgerv1.GetTransactionRequest{
		TxId: block.Msg.Block.Transactions[0].TxId, IncludeProof: true,
	}))
	return err
}

func listAllEntities(ctx context.Context, api service, _, _ int) error {
	_, err := api.ListEntities(ctx, connect.NewRequest(&seqledgerv1.ListEntitiesRequest{
		Scope: badScope, PageSize: 1_000,
	}))
	return err
}

// writeLarge sends a write of a mebibyte, with a deadline.
func writeLarge(deadline time.Duration) tenantCall {
	return func(ctx context.Context, api service, worker, n int) error {
		ctx, cancel := context.WithTimeout(ctx, deadline)
		defer cancel()
		_, err := api.Write(ctx, connect.NewRequest(badWrite(fmt.Sprintf("unary-%d-%d", worker, n), 1, 1<<20)))
		return err
	}
}

// holdText keeps connections with what was sent on them until ctx ends.
func (t *target) holdText(ctx context.Context, n int, text func(i int) string) (string, error) {
	return t.hold(ctx, n, 32, "", func(ctx context.Context, i int) (func(), error) {
		_, release, err := send(ctx, t.address, i, text(i))
		return release, err
	})
}

// announcedBodies say that six mebibytes will come, and send five bytes or KiB.
func announcedBodies(ctx context.Context, _ *options, t *target) (string, error) {
	head := func(method, path, more string) string {
		return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n%s\r\n",
			method, path, t.keys["bad"], more)
	}
	// A WebSocket whose first message has 6 MiB, of which the envelope's prefix comes.
	stream := head("GET", seqledgerv1connect.LedgerServiceWriteStreamProcedure,
		"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: seqledger.v1\r\n") +
		"\x82\xff\x00\x00\x00\x00\x00\x60\x00\x05\x00\x00\x00\x00" + "\x00\x00\x60\x00\x00"
	unary := head("POST", writePath, "Content-Type: application/proto\r\nContent-Length: 6291456\r\n") +
		strings.Repeat("x", 5<<10)
	const streams, writes = 30, 200
	return t.holdText(ctx, streams+writes, func(i int) string {
		if i < streams {
			return stream
		}
		return unary
	})
}

// badJSON is the scope of the bad tenant in a request.
const badJSON = `"scope":{"organization":"bad","vault":"main"}`

// unread makes a call on 68 connections, 240 times on each, and reads no answer.
func unread(as, procedure, text string) func(context.Context, *options, *target) (string, error) {
	return func(ctx context.Context, o *options, t *target) (string, error) {
		const each = 240
		clients := make([]*http.Client, min(68, scaled(o, 68)))
		for i := range clients {
			lone, disconnect := smallWindow()
			defer disconnect()
			clients[i] = t.as(as, lone)
		}
		n := len(clients) * each
		return t.hold(ctx, n, n, "", func(ctx context.Context, i int) (func(), error) {
			// Slowly, because the places that the calls take count, and not the
			// rush.
			load.Pause(ctx, time.Duration(1+i/each)*100*time.Millisecond)
			return t.askUnread(ctx, clients[i/each], procedure, text)
		})
	}
}

// idleStreams are opened and left alone.
func idleStreams(ctx context.Context, o *options, t *target) (string, error) {
	return t.hold(ctx, scaled(o, 1_100), 32, "", func(ctx context.Context, _ int) (func(), error) {
		return t.openStream(ctx, "bad", false)
	})
}

// keyedConnections have shown a key once.
func keyedConnections(ctx context.Context, o *options, t *target) (string, error) {
	text := fmt.Sprintf(
		"GET %s?encoding=json&message=%%7B%%7D&connect=v1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+
			"%s\r\n\r\n",
		seqledgerv1connect.AdminServiceGetStatusProcedure, t.keys["reader"])
	return t.holdText(ctx, scaled(o, 17_000), func(int) string { return text })
}

// silentConnections say that they speak HTTP/2, and nothing else.
func silentConnections(ctx context.Context, o *options, t *target) (string, error) {
	const text = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	return t.holdText(ctx, scaled(o, 17_000), func(int) string { return text })
}

// healthChecks are calls whose bodies never come. No key is needed for them.
func healthChecks(ctx context.Context, o *options, t *target) (string, error) {
	const each = 250
	clients := make([]*http.Client, scaled(o, 160))
	for i := range clients {
		lone, disconnect := smallWindow()
		defer disconnect()
		clients[i] = lone
	}
	n := len(clients) * each
	var ended atomic.Int64
	var calling sync.WaitGroup
	held, err := t.hold(ctx, n, n, "", func(life context.Context, i int) (func(), error) {
		// Slowly, because the memory that the calls take counts, and not the
		// rush.
		load.Pause(life, time.Duration(1+i/each)*50*time.Millisecond)
		body, never := io.Pipe()
		request, err := http.NewRequestWithContext(life, http.MethodPost,
			"http://"+t.address+"/grpc.health.v1.Health/Check", body)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Content-Type", "application/grpc")
		// Ends when the call does, at the latest with life; joined below.
		calling.Go(func() {
			if response, err := clients[i/each].Do(request); err == nil {
				_ = response.Body.Close() // its result does not matter
			}
			if ctx.Err() == nil {
				ended.Add(1)
			}
		})
		return func() { _ = never.Close() }, nil
	})
	calling.Wait()
	return fmt.Sprintf("%s, calls without a body; %d ended before", held, ended.Load()), err
}

// streamedWrites sends frames of writes on some streams, as fast as they are taken.
func streamedWrites(streams, writes, bytes int) func(context.Context, *options, *target) (string, error) {
	return streamed(streams, writes, fmt.Sprintf("of %d bytes", bytes),
		func(client string, sequence uint64) *seqledgerv1.WriteRequest {
			return badWrite(client, sequence, bytes)
		})
}

// streamed is streamedWrites with writes of any kind.
func streamed(
	streams, writes int, what string, write func(client string, sequence uint64) *seqledgerv1.WriteRequest,
) func(context.Context, *options, *target) (string, error) {
	return func(ctx context.Context, _ *options, t *target) (string, error) {
		var committed, refused, failed atomic.Int64
		err := each(ctx, streams, streams, func(_ context.Context, i int) error {
			api, disconnect := t.api("bad")
			defer disconnect()
			for life := 0; ctx.Err() == nil; life++ {
				floodStream(ctx, api, func(sequence uint64) *seqledgerv1.WriteRequest {
					return write(fmt.Sprintf("flood-%d-%d", i, life), sequence)
				}, writes, &committed, &refused)
				if ctx.Err() == nil {
					failed.Add(1)
					load.Pause(ctx, 50*time.Millisecond)
				}
			}
			return nil
		})
		return fmt.Sprintf("%d streams: %d writes %s committed, %d refused, %d streams ended early",
			streams, committed.Load(), what, refused.Load(), failed.Load()), err
	}
}

// floodStream sends frames of so many writes until the stream ends, and counts what was committed
// and what refused.
func floodStream(ctx context.Context, api service,
	write func(sequence uint64) *seqledgerv1.WriteRequest, writes int, committed, refused *atomic.Int64) {
	stream := api.WriteStream(ctx)
	var sending sync.WaitGroup
	// Ends with the stream; joined below.
	sending.Go(func() {
		for sequence := uint64(0); ; {
			m := new(seqledgerv1.WriteStreamRequest)
			for range writes {
				sequence++
				m.Writes = append(m.Writes, write(sequence))
			}
			if stream.Send(m) != nil {
				return
			}
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
	_ = stream.CloseRequest() // it has ended
	_ = stream.CloseResponse()
	sending.Wait()
}
