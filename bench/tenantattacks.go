package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// tenantAttacks are what one tenant may do to another.
func tenantAttacks() []tenantAttack {
	return []tenantAttack{
		{name: "none, to compare", prepare: largeBlocks, run: doNothing},
		{name: "one lists blocks", prepare: largeBlocks, run: readingLoop(1, listAllBlocks)},
		{name: "16 list blocks", prepare: largeBlocks, run: readingLoop(16, listAllBlocks)},
		{name: "wide windows", prepare: wideWindow, run: readingLoop(16, getReceipts)},
		{name: "16 read blocks", prepare: largeBlocks, run: readingLoop(16, getBlocks)},
		{name: "proofs", prepare: largeBlocks, run: readingLoop(16, getProofs)},
		{name: "pages of entities", prepare: longEntities, run: readingLoop(64, listAllEntities)},
		{name: "large bodies announced", run: announcedBodies},
		{name: "unread pages", prepare: longEntities, run: unreadPages},
		{name: "unread large values", prepare: largeValue, run: unreadValues},
		{name: "idle streams", run: idleStreams},
		{name: "idle connections", run: keyedConnections},
		{name: "health checks, no key", run: healthChecks},
		{name: "silent HTTP/2, no key", run: silentConnections},
		{name: "unknown keys", run: unknownKeys},
		{name: "foreign transactions", prepare: someTransactions, run: foreignTransactions},
		{name: "stream of writes", run: streamedWrites(16, 250, payloadBytes)},
		{name: "stream of large writes", run: streamedWrites(16, 1, 1<<20)},
		{name: "stream of huge writes", run: streamedWrites(4, 4, 1<<20)},
		{name: "unary writes", run: unaryWrites(0)},
		{name: "unary, 1 ms deadlines", run: unaryWrites(time.Millisecond)},
		{name: "fills the disk", run: streamedWrites(16, 1, 1<<20), room: 512},
	}
}

// doNothing is to compare the others with.
func doNothing(context.Context, *options, *tenants) (string, error) { return "nothing", nil }

// badWrite returns a write of the bad tenant with some bytes in one payload each MiB.
func badWrite(client string, sequence uint64, bytes int) *seqledgerv1.WriteRequest {
	w := &seqledgerv1.WriteRequest{Scope: badScope, ClientId: client, Sequence: sequence}
	for left := bytes; left > 0 || len(w.Operations) == 0; left -= 1 << 20 {
		w.Operations = append(w.Operations, &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_Append{
			Append: &seqledgerv1.Append{Payload: noise[:min(left, 1<<20)]},
		}})
	}
	return w
}

// noise is what gzip makes no smaller.
var noise = func() []byte {
	b := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // it never fails
	return b
}()

// fillBad commits writes of the bad tenant one after the other.
func fillBad(ctx context.Context, t *tenants, n int, write func(sequence uint64) *seqledgerv1.WriteRequest) error {
	api, disconnect := t.api("bad")
	defer disconnect()
	for i := 0; i < n; {
		switch _, err := api.Write(ctx, connect.NewRequest(write(uint64(i)+1))); {
		case err == nil:
			i++
		case connect.CodeOf(err) == connect.CodeResourceExhausted: // it is faster than it may be
			pause(ctx, 20*time.Millisecond)
		default:
			return fmt.Errorf("fill: %w", err)
		}
	}
	return nil
}

// largeBlocks makes blocks of half a mebibyte.
func largeBlocks(ctx context.Context, o *options, t *tenants) error {
	return fillBad(ctx, t, scaled(o, 900), func(sequence uint64) *seqledgerv1.WriteRequest {
		return badWrite("filler", sequence, 500<<10)
	})
}

// wideWindow makes a stream whose window has 1,024 receipts, each in a large block.
func wideWindow(ctx context.Context, o *options, t *tenants) error {
	admin := seqledgerv1connect.NewAdminServiceClient(t.as("root", newHTTP2()), "http://"+t.address)
	request := connect.NewRequest(&seqledgerv1.UpdateConfigRequest{
		ReceiptWindowSet: &seqledgerv1.UpdateConfigRequest_ReceiptWindow{ReceiptWindow: 1_024},
	})
	if _, err := admin.UpdateConfig(ctx, request); err != nil {
		return err
	}
	return largeBlocks(ctx, o, t)
}

// longEntities makes entities whose values are in blocks.
func longEntities(ctx context.Context, o *options, t *tenants) error {
	return fillBad(ctx, t, scaled(o, 200), func(sequence uint64) *seqledgerv1.WriteRequest {
		w := &seqledgerv1.WriteRequest{Scope: badScope, ClientId: "filler", Sequence: sequence}
		for i := range 100 {
			w.Operations = append(w.Operations, setValue(fmt.Sprintf("e/%06d/%03d", sequence, i), noise[:600]))
		}
		return w
	})
}

// readingLoop makes readers of the bad tenant call repeatedly.
func readingLoop(
	readers int, read func(ctx context.Context, api seqledgerv1connect.LedgerServiceClient, n int) error,
) func(context.Context, *options, *tenants) (string, error) {
	return func(ctx context.Context, _ *options, t *tenants) (string, error) {
		var done, refused atomic.Int64
		var group sync.WaitGroup
		for i := range readers {
			api, disconnect := t.api("reader")
			// Ends with ctx; joined below.
			group.Go(func() {
				defer disconnect()
				for n := i; ctx.Err() == nil; n++ {
					switch err := read(ctx, api, n); {
					case ctx.Err() != nil:
					case connect.CodeOf(err) == connect.CodeResourceExhausted:
						refused.Add(1)
					case err == nil || connect.CodeOf(err) == connect.CodeNotFound:
						done.Add(1)
					}
				}
			})
		}
		group.Wait()
		return fmt.Sprintf("%d readers: %d answers, %d refused", readers, done.Load(), refused.Load()), nil
	}
}

func listAllBlocks(ctx context.Context, api seqledgerv1connect.LedgerServiceClient, _ int) error {
	_, err := api.ListBlocks(ctx, connect.NewRequest(&seqledgerv1.ListBlocksRequest{Scope: badScope, PageSize: 1_000}))
	return err
}

func getReceipts(ctx context.Context, api seqledgerv1connect.LedgerServiceClient, _ int) error {
	_, err := api.GetClientState(ctx, connect.NewRequest(&seqledgerv1.GetClientStateRequest{
		Scope: badScope, ClientId: "filler", IncludeReceipts: true,
	}))
	return err
}

func getBlocks(ctx context.Context, api seqledgerv1connect.LedgerServiceClient, n int) error {
	_, err := api.GetBlock(ctx,
		connect.NewRequest(&seqledgerv1.GetBlockRequest{Scope: badScope, Height: uint64(n%100) + 1}))
	return err
}

func getProofs(ctx context.Context, api seqledgerv1connect.LedgerServiceClient, n int) error {
	block, err := api.GetBlock(ctx,
		connect.NewRequest(&seqledgerv1.GetBlockRequest{Scope: badScope, Height: uint64(n%100) + 1}))
	if err != nil || len(block.Msg.Block.Transactions) == 0 {
		return err
	}
	_, err = api.GetTransaction(ctx, connect.NewRequest(&seqledgerv1.GetTransactionRequest{
		TxId: block.Msg.Block.Transactions[0].TxId, IncludeProof: true,
	}))
	return err
}

func listAllEntities(ctx context.Context, api seqledgerv1connect.LedgerServiceClient, _ int) error {
	_, err := api.ListEntities(ctx, connect.NewRequest(&seqledgerv1.ListEntitiesRequest{Scope: badScope,
		PageSize: 1_000}))
	return err
}

// hold keeps connections with what was sent on them until ctx ends.
func (t *tenants) hold(ctx context.Context, n int, text string) (opened int) {
	var h held
	each(ctx, n, 32, func(i int) {
		c, err := dial(ctx, t.address, i)
		if err != nil {
			h.add(nil, err)
			return
		}
		_, err = io.WriteString(c, text)
		h.add(func() { _ = c.Close() }, err)
	})
	<-ctx.Done()
	h.release()
	return n - h.failed
}

// announcedBodies say that six mebibytes will come, and send five bytes.
func announcedBodies(ctx context.Context, _ *options, t *tenants) (string, error) {
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
	var group sync.WaitGroup
	// Both end with ctx; joined below.
	group.Go(func() { t.hold(ctx, 30, stream) })
	group.Go(func() { t.hold(ctx, 200, unary) })
	group.Wait()
	return "30 streams and 200 writes of 6 MiB announced, none sent", nil
}

// unreadPages are asked for on 68 connections, and not read.
func unreadPages(ctx context.Context, o *options, t *tenants) (string, error) {
	return unread(ctx, o, t, "pages", seqledgerv1connect.LedgerServiceListEntitiesProcedure,
		`{"scope":{"organization":"bad","vault":"main"},"pageSize":1000}`)
}

// largeValue makes one entity with the largest value.
func largeValue(ctx context.Context, _ *options, t *tenants) error {
	return fillBad(ctx, t, 1, func(sequence uint64) *seqledgerv1.WriteRequest {
		return &seqledgerv1.WriteRequest{
			Scope: badScope, ClientId: "filler", Sequence: sequence,
			Operations: []*seqledgerv1.Operation{setValue("large", noise)},
		}
	})
}

// unreadValues requests one large value repeatedly and does not read the answers.
func unreadValues(ctx context.Context, o *options, t *tenants) (string, error) {
	return unread(ctx, o, t, "values of a mebibyte", seqledgerv1connect.LedgerServiceGetEntityProcedure,
		`{"scope":{"organization":"bad","vault":"main"},"key":"large"}`)
}

// unread makes a call on 68 connections, 240 times on each, and reads no answer.
func unread(ctx context.Context, o *options, t *tenants, what, procedure, text string) (string, error) {
	const connections, each = 68, 240
	var answered, refused atomic.Int64
	var group sync.WaitGroup
	var closers []func()
	for range min(connections, scaled(o, connections)) {
		lone, disconnect := newSmallWindow()
		closers = append(closers, disconnect)
		h := t.as("reader", lone)
		pause(ctx, 100*time.Millisecond) // it is the places that count, not the rush
		for range each {
			// Ends with ctx; joined below.
			group.Go(func() {
				request, err := http.NewRequestWithContext(ctx, http.MethodPost,
					"http://"+t.address+procedure, strings.NewReader(text))
				if err != nil {
					return
				}
				request.Header.Set("Content-Type", "application/json")
				response, err := h.Do(request)
				if err != nil || response.StatusCode != http.StatusOK {
					refused.Add(1)
				} else {
					answered.Add(1)
				}
				<-ctx.Done() // not read
				if err == nil {
					_ = response.Body.Close()
				}
			})
		}
	}
	<-ctx.Done()
	for _, disconnect := range closers {
		disconnect()
	}
	group.Wait()
	return fmt.Sprintf("%d %s unread, %d refused", answered.Load(), what, refused.Load()), nil
}

// idleStreams are opened and left alone.
func idleStreams(ctx context.Context, o *options, t *tenants) (string, error) {
	n := scaled(o, 1_100)
	var h held
	each(ctx, n, 32, func(i int) {
		api, disconnect := t.api("bad")
		stream := api.WriteStream(ctx)
		err := stream.Send(nil)
		if err == nil {
			_, err = stream.Conn()
		}
		h.add(disconnect, err)
	})
	<-ctx.Done()
	h.release()
	return fmt.Sprintf("%d streams opened and left alone", n), nil
}

// keyedConnections have shown a key once.
func keyedConnections(ctx context.Context, o *options, t *tenants) (string, error) {
	n := scaled(o, 17_000)
	text := fmt.Sprintf(
		"GET %s?encoding=json&message=%%7B%%7D&connect=v1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n",
		seqledgerv1connect.AdminServiceGetStatusProcedure, t.keys["reader"])
	return fmt.Sprintf("%d connections with a key, %d opened", n, t.hold(ctx, n, text)), nil
}

// healthChecks are calls whose bodies never come. No key is needed for them.
func healthChecks(ctx context.Context, o *options, t *tenants) (string, error) {
	connections := scaled(o, 160)
	const streams = 250
	var group sync.WaitGroup
	var ended atomic.Int64
	for i := range connections {
		c := newHTTP2From(i)
		pause(ctx, 50*time.Millisecond) // it is the memory that counts, not the rush
		for range streams {
			// Ends with ctx; joined below.
			group.Go(func() {
				r, w := io.Pipe()
				request, err := http.NewRequestWithContext(ctx, http.MethodPost,
					"http://"+t.address+"/grpc.health.v1.Health/Check", r)
				if err != nil {
					return
				}
				request.Header.Set("Content-Type", "application/grpc")
				if response, err := c.Do(request); err == nil {
					_ = response.Body.Close() // its result does not matter
				}
				_ = w.Close()
				if ctx.Err() == nil {
					ended.Add(1)
				}
			})
		}
	}
	<-ctx.Done()
	group.Wait()
	return fmt.Sprintf("%d connections, %d calls each without a body: %d ended", connections, streams, ended.Load()),
		nil
}

// newHTTP2From is newHTTP2 from one of many addresses.
func newHTTP2From(i int) *http.Client {
	c := newHTTP2()
	if transport, ok := c.Transport.(*http.Transport); ok {
		transport.DialContext = func(ctx context.Context, _, address string) (net.Conn,
			error) {
			return dial(ctx, address, i)
		}
	}
	return c
}

// silentConnections say that they speak HTTP/2, and nothing else.
func silentConnections(ctx context.Context, o *options, t *tenants) (string, error) {
	n := scaled(o, 17_000)
	opened := t.hold(ctx, n, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	return fmt.Sprintf("%d silent connections, %d opened", n, opened), nil
}

// unknownKeys are tried as fast as they can be.
func unknownKeys(ctx context.Context, _ *options, t *tenants) (string, error) {
	var tried atomic.Int64
	t.keys["unknown"] = "sl_good_" + strings.Repeat("A", 43)
	var group sync.WaitGroup
	for range 16 {
		api, disconnect := t.api("unknown")
		// Ends with ctx; joined below.
		group.Go(func() {
			defer disconnect()
			for ctx.Err() == nil {
				if err := getBlocks(ctx, api, 1); connect.CodeOf(err) == connect.CodeUnauthenticated {
					tried.Add(1)
				}
			}
		})
	}
	group.Wait()
	return fmt.Sprintf("%d requests with an unknown key", tried.Load()), nil
}

// someTransactions makes transactions of several sizes.
func someTransactions(ctx context.Context, _ *options, t *tenants) error {
	for i, size := range foreignSizes {
		if err := fillBad(ctx, t, 1,
			func(uint64) *seqledgerv1.WriteRequest { return badWrite(fmt.Sprint("size-", i), 1, size) }); err != nil {
			return err
		}
	}
	return nil
}

var foreignSizes = []int{10, 100 << 10, 1 << 20}

// foreignTransactions asks the other way round: the good tenant for transactions of the bad
// one, and for some that are not there. It measures how long not_found takes.
func foreignTransactions(ctx context.Context, _ *options, t *tenants) (string, error) {
	bad, disconnect := t.api("bad")
	defer disconnect()
	good, disconnectGood := t.api("good")
	defer disconnectGood()
	names, ids := []string{"absent"}, []string{""}
	for i, size := range foreignSizes {
		block, err := bad.GetBlock(ctx,
			connect.NewRequest(&seqledgerv1.GetBlockRequest{Scope: badScope, Height: uint64(i) + 1}))
		if err != nil {
			return "", err
		}
		id := block.Msg.Block.Transactions[0].TxId
		names, ids = append(names, fmt.Sprintf("%d bytes", size)), append(ids, id)
		ids[0] = id[:len(id)-9] + "0ffffffff"
	}
	took := make([][]time.Duration, len(ids))
	for ctx.Err() == nil {
		for i, id := range ids { // in turns, so that what else happens falls on all
			began := time.Now()
			_, err := good.GetTransaction(ctx, connect.NewRequest(&seqledgerv1.GetTransactionRequest{TxId: id}))
			if ctx.Err() != nil {
				break
			}
			if connect.CodeOf(err) != connect.CodeNotFound {
				return "", errors.Join(errors.New("a foreign transaction was answered"), err)
			}
			took[i] = append(took[i], time.Since(began))
		}
	}
	text := "median of not_found:"
	for i, name := range names {
		text += fmt.Sprintf(" %s %s,", name, median(took[i]))
	}
	return strings.TrimSuffix(text, ","), nil
}

// streamedWrites sends frames of writes on some streams, as fast as they are taken.
func streamedWrites(streams, writes, bytes int) func(context.Context, *options, *tenants) (string, error) {
	return func(ctx context.Context, _ *options, t *tenants) (string, error) {
		var committed, refused, failed atomic.Int64
		var group sync.WaitGroup
		for i := range streams {
			api, disconnect := t.api("bad")
			// Ends with ctx; joined below.
			group.Go(func() {
				defer disconnect()
				for sequence, life := uint64(0), 0; ctx.Err() == nil; life++ {
					yes, no := floodStream(ctx, api, fmt.Sprintf("flood-%d-%d", i, life), &sequence, writes, bytes)
					committed.Add(yes)
					refused.Add(no)
					sequence = 0
					if ctx.Err() == nil {
						failed.Add(1)
						pause(ctx, 50*time.Millisecond)
					}
				}
			})
		}
		group.Wait()
		return fmt.Sprintf("%d streams: %d writes of %d bytes committed, %d refused, %d streams ended early",
			streams, committed.Load(), bytes, refused.Load(), failed.Load()), nil
	}
}

// floodStream sends until the stream ends, and returns how many writes were committed
// and how many refused.
func floodStream(
	ctx context.Context, api seqledgerv1connect.LedgerServiceClient, client string, sequence *uint64, writes, bytes int,
) (committed, refused int64) {
	stream := api.WriteStream(ctx)
	var sending sync.WaitGroup
	// Ends with the stream; joined below.
	sending.Go(func() {
		for {
			m := new(seqledgerv1.WriteStreamRequest)
			for range writes {
				*sequence++
				m.Writes = append(m.Writes, badWrite(client, *sequence, bytes))
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
				committed++
			} else {
				refused++
			}
		}
	}
	_ = stream.CloseRequest() // it has ended
	_ = stream.CloseResponse()
	sending.Wait()
	return committed, refused
}

// unaryWrites sends writes of a mebibyte one by one, with a deadline if there is one.
func unaryWrites(deadline time.Duration) func(context.Context, *options, *tenants) (string, error) {
	return func(ctx context.Context, _ *options, t *tenants) (string, error) {
		var committed, refused atomic.Int64
		var group sync.WaitGroup
		for i := range 64 {
			api, disconnect := t.api("bad")
			// Ends with ctx; joined below.
			group.Go(func() {
				defer disconnect()
				for n := 0; ctx.Err() == nil; n++ {
					limited, cancel := ctx, context.CancelFunc(func() {})
					if deadline > 0 {
						limited, cancel = context.WithTimeout(ctx, deadline)
					}
					_, err := api.Write(limited,
						connect.NewRequest(badWrite(fmt.Sprintf("unary-%d-%d", i, n), 1, 1<<20)))
					cancel()
					if err == nil {
						committed.Add(1)
					} else {
						refused.Add(1)
					}
				}
			})
		}
		group.Wait()
		return fmt.Sprintf("64 callers: %d writes of a mebibyte committed, %d refused or cut short", committed.Load(),
			refused.Load()), nil
	}
}

// median returns the middle of some times; 0 of none.
func median(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[len(times)/2]
}
