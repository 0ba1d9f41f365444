package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/writer"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server/auth"
)

// The rows of this file have two tenants, with an auth file that says nothing of
// limits. One does what it should not; the other one writes and reads, and must not
// notice. The bad one is a process of its own with the lowest priority: it stands for
// other machines, and what it takes of this one's processors would be taken from the
// server and from the good one, which are measured.

// tenantAttacks are what one tenant may do to another.
var tenantAttacks = []attack{
	{name: "none, to compare", prepare: largeBlocks, run: doNothing},
	{name: "one lists blocks", prepare: largeBlocks, run: calls("reader", 1, listAllBlocks)},
	{name: "16 list blocks", prepare: largeBlocks, run: calls("reader", 16, listAllBlocks)},
	{name: "wide windows", prepare: wideWindow, run: calls("reader", 16, getReceipts)},
	{name: "16 read blocks", prepare: largeBlocks, run: calls("reader", 16, getBlocks)},
	{name: "proofs", prepare: largeBlocks, run: calls("reader", 16, getProofs)},
	{name: "pages of entities", prepare: longEntities, run: calls("reader", 64, listAllEntities)},
	{name: "large bodies announced", run: announcedBodies},
	{name: "unread pages", prepare: longEntities, run: unread(seqledgerv1connect.LedgerServiceListEntitiesProcedure,
		`{"scope":{"organization":"bad","vault":"main"},"pageSize":1000}`)},
	{name: "unread large values", prepare: largeValue, run: unread(seqledgerv1connect.LedgerServiceGetEntityProcedure,
		`{"scope":{"organization":"bad","vault":"main"},"key":"large"}`)},
	{name: "idle streams", run: idleStreams},
	{name: "idle connections", run: keyedConnections},
	{name: "health checks, no key", run: healthChecks},
	{name: "silent HTTP/2, no key", run: silentConnections},
	{name: "unknown keys", run: calls("unknown", 16, getBlocks)},
	{name: "foreign transactions", prepare: someTransactions, run: foreignTransactions},
	{name: "stream of writes", run: streamedWrites(16, 250, payloadBytes)},
	{name: "stream of large writes", run: streamedWrites(16, 1, 1<<20)},
	{name: "stream of huge writes", run: streamedWrites(4, 4, 1<<20)},
	{name: "unary writes", run: calls("bad", 64, writeLarge(time.Minute))},
	{name: "unary, 1 ms deadlines", run: calls("bad", 64, writeLarge(time.Millisecond))},
	{name: "fills the disk", run: streamedWrites(16, 1, 1<<20), room: 512},
}

// target is a server and the keys to it, if it has access control.
type target struct {
	address string
	keys    map[string]string
}

// The callers. What the good one has is in the organization good, all else in bad.
var tenantRights = map[string]string{
	"good": `{role: writer, scopes: ["good/*"], client_ids: ["*"]`,
	"bad":  `{role: writer, scopes: ["bad/*"], client_ids: ["*"]`,
	// reader may do less than a writer, and is here because it can spoil as
	// much.
	"reader": `{role: reader, scopes: ["bad/*"]`,
	"root":   `{role: admin, scopes: ["*"], client_ids: ["*"]`,
}

var (
	goodScope = &seqledgerv1.Scope{Organization: "good", Vault: "main"}
	badScope  = &seqledgerv1.Scope{Organization: "bad", Vault: "main"}
)

// startTenants starts a server with access control, on which the disk is tight once
// about room bytes more are taken of it; 0 for as it is.
func (b *bed) startTenants(ctx context.Context, room int64) (*target, error) {
	t := &target{keys: map[string]string{"unknown": "sl_good_" + strings.Repeat("A", 43)}}
	content := "keys:\n"
	for id, rights := range tenantRights {
		key, hash, err := auth.NewKey(id)
		if err != nil {
			return nil, err
		}
		t.keys[id] = key
		content += fmt.Sprintf("- %s, id: %s, hash: %q}\n", rights, id, hash)
	}
	path := filepath.Join(b.dir, "auth.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return nil, err
	}
	arguments := []string{"-auth", path}
	if room > 0 {
		var disk syscall.Statfs_t
		if err := syscall.Statfs(b.dir, &disk); err != nil {
			return nil, err
		}
		// It is tight while less than twice the reserve is free.
		reserve := (int64(disk.Bavail)*int64(disk.Bsize) - room) / 2
		arguments = append(arguments, "-disk-reserve", strconv.FormatInt(max(0, reserve), 10))
	}
	err := b.startServer(ctx, arguments...)
	if err == nil {
		t.address = b.server.address
	}
	return t, err
}

// attackJob is what a bad tenant's process is told.
type attackJob struct {
	Name     string            `json:"name"`
	Address  string            `json:"address"`
	Keys     map[string]string `json:"keys"`
	Fraction float64           `json:"fraction"`
}

// How long a bad tenant attacks, and its priority: the lowest is for everything that stands for
// another machine.
const (
	tenantLasts    = 15 * time.Second
	lowestPriority = 19
)

// runTenantAttack is the process of a bad tenant: it reads a job, does it and says what it
// did.
func runTenantAttack(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	var job attackJob
	if err := json.NewDecoder(stdin).Decode(&job); err != nil {
		return err
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, lowestPriority); err != nil {
		return err
	}
	for _, a := range tenantAttacks {
		if a.name != job.Name {
			continue
		}
		o := &options{fraction: job.Fraction}
		ctx, cancel := context.WithTimeout(ctx, scaledTime(o, tenantLasts))
		defer cancel()
		done, err := a.run(ctx, o, &target{job.Address, job.Keys})
		<-ctx.Done() // an attack that holds what it took lasts as long as one that works
		_, failed := fmt.Fprintln(stdout, done)
		return errors.Join(err, failed)
	}
	return fmt.Errorf("there is no attack %q", job.Name)
}

// attack starts the process of a bad tenant and waits for its end.
func (t *target) attack(o *options, name string) (done string, err error) {
	job, err := json.Marshal(attackJob{name, t.address, t.keys, o.fraction})
	if err != nil {
		return "", err
	}
	command := harness.Self("-attack")
	command.Stdin, command.Stderr = bytes.NewReader(job), os.Stderr
	// Gone when we are; a group of its own, so that it is not interrupted before.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := command.Output()
	return strings.TrimSpace(string(out)), err
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

// api returns a client with the key of a caller, on a connection of its own.
func (t *target) api(id string) (l seqledgerv1connect.LedgerServiceClient, disconnect func()) {
	c, disconnect := newHTTP2()
	return seqledgerv1connect.NewLedgerServiceClient(t.as(id, c), "http://"+t.address), disconnect
}

// as returns a client that calls with the key of a caller, "" without one.
func (t *target) as(id string, c *http.Client) *http.Client {
	if id == "" {
		return c
	}
	return &http.Client{Transport: bearer{t.keys[id], c.Transport}}
}

// leastRoom is the room of the smallest run, in mebibytes. It is not less, because a
// new ledger takes some of it.
const leastRoom = 128

// What the good tenant may notice at most: a p99 five times as long as alone, or this many
// milliseconds.
const (
	mostTimes = 5
	mostWait  = 20
)

// measureTenant measures the good tenant alone and beside the bad one.
func (a *attack) measureTenant(ctx context.Context, b *bed) ([]harness.Line, error) {
	room := int64(0)
	if a.room > 0 {
		room = int64(max(leastRoom, scaled(b.o, a.room))) << 20
	}
	t, err := b.startTenants(ctx, room)
	if err != nil {
		return nil, err
	}
	if a.prepare != nil {
		if err := a.prepare(ctx, b.o, t); err != nil {
			return nil, err
		}
	}
	calls, err := b.goodCalls(ctx, t)
	if err != nil {
		return nil, err
	}
	m, err := b.beside(ctx, calls, func() (string, error) { return t.attack(b.o, a.name) })
	if err != nil {
		return nil, err
	}
	lines := []harness.Line{told(m.done, ""), told("largest RssAnon of the server", mebibytes(m.memory))}
	for i, c := range calls {
		was, is := m.alone[i].Milliseconds(99), m.meanwhile[i].Milliseconds(99)
		lines = append(lines,
			told("p99 of the good one's "+c.name+", alone", milliseconds(was)),
			held("p99 of the good one's "+c.name+", beside it", milliseconds(is), "5 x or 20 ms",
				is <= max(mostTimes*was, mostWait) && m.meanwhile[i].TotalCount() > 0))
	}
	refused := fmt.Sprint(len(m.refused), " ", strings.Join(m.refused[:min(1, len(m.refused))], ""))
	return append(lines, held("refused of the good one", refused, "0", len(m.refused) == 0)), nil
}

// goodCalls are what the good tenant does, each one after the other, without repeating anything:
// a write with a Writer, a unary write of some kilobytes, a read of an entity.
func (b *bed) goodCalls(ctx context.Context, t *target) ([]call, error) {
	// The good tenant must not be a load itself.
	const pause = 2 * time.Millisecond
	c, err := b.client(client.Options{Token: client.StaticToken(t.keys["good"])})
	if err != nil {
		return nil, err
	}
	w, err := writer.Open(ctx, c, writer.Options{Scope: goodScope, ClientID: "stream"})
	if err != nil {
		return nil, err
	}
	api, disconnect := t.api("good")
	b.later(func() error {
		disconnect()
		return nil
	})
	sequence, large := uint64(0), make([]byte, 8<<10)
	writeLarge := func(ctx context.Context) error {
		sequence++
		_, err := api.Write(ctx, connect.NewRequest(&seqledgerv1.WriteRequest{
			Scope: goodScope, ClientId: "unary", Sequence: sequence,
			Operations: []*seqledgerv1.Operation{setValue("k", large)},
		}))
		return err
	}
	return []call{
		{"writes", pause, func(ctx context.Context) error {
			_, err := w.Write(ctx, operation())
			return err
		}},
		{"unary writes of 8 KiB", pause, writeLarge},
		{"reads", pause, func(ctx context.Context) error {
			_, err := api.GetEntity(ctx, connect.NewRequest(&seqledgerv1.GetEntityRequest{Scope: goodScope, Key: "k"}))
			return err
		}},
	}, writeLarge(ctx) // so that there is something to read
}

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
	api, disconnect := t.api("bad")
	defer disconnect()
	for i := 0; i < n; {
		switch _, err := api.Write(ctx, connect.NewRequest(write(uint64(i)+1))); {
		case err == nil:
			i++
		case connect.CodeOf(err) == connect.CodeResourceExhausted: // it is faster than it may be
			harness.Pause(ctx, 20*time.Millisecond)
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
	c, disconnect := newHTTP2()
	defer disconnect()
	admin := seqledgerv1connect.NewAdminServiceClient(t.as("root", c), "http://"+t.address)
	request := connect.NewRequest(&seqledgerv1.UpdateConfigRequest{
		ReceiptWindowSet: &seqledgerv1.UpdateConfigRequest_ReceiptWindow{ReceiptWindow: 1_024},
	})
	if _, err := admin.UpdateConfig(ctx, request); err != nil {
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
type tenantCall func(ctx context.Context, api seqledgerv1connect.LedgerServiceClient, worker, n int) error

// calls has workers call repeatedly, each on a connection of its own.
func calls(as string, workers int, do tenantCall) func(context.Context, *options, *target) (string, error) {
	return func(ctx context.Context, _ *options, t *target) (string, error) {
		apis, counts := make([]seqledgerv1connect.LedgerServiceClient, workers), make([]int, workers)
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

func listAllBlocks(ctx context.Context, api seqledgerv1connect.LedgerServiceClient, _, _ int) error {
	_, err := api.ListBlocks(ctx, connect.NewRequest(&seqledgerv1.ListBlocksRequest{Scope: badScope, PageSize: 1_000}))
	return err
}

func getReceipts(ctx context.Context, api seqledgerv1connect.LedgerServiceClient, _, _ int) error {
	_, err := api.GetClientState(ctx, connect.NewRequest(&seqledgerv1.GetClientStateRequest{
		Scope: badScope, ClientId: "filler", IncludeReceipts: true,
	}))
	return err
}

func getBlocks(ctx context.Context, api seqledgerv1connect.LedgerServiceClient, worker, n int) error {
	_, err := api.GetBlock(ctx, connect.NewRequest(&seqledgerv1.GetBlockRequest{
		Scope: badScope, Height: uint64((worker+n)%100) + 1,
	}))
	return err
}

func getProofs(ctx context.Context, api seqledgerv1connect.LedgerServiceClient, worker, n int) error {
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

func listAllEntities(ctx context.Context, api seqledgerv1connect.LedgerServiceClient, _, _ int) error {
	_, err := api.ListEntities(ctx, connect.NewRequest(&seqledgerv1.ListEntitiesRequest{
		Scope: badScope, PageSize: 1_000,
	}))
	return err
}

// writeLarge sends a write of a mebibyte, with a deadline.
func writeLarge(deadline time.Duration) tenantCall {
	return func(ctx context.Context, api seqledgerv1connect.LedgerServiceClient, worker, n int) error {
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

// unread makes a call on 68 connections, 240 times on each, and reads no answer.
func unread(procedure, text string) func(context.Context, *options, *target) (string, error) {
	return func(ctx context.Context, o *options, t *target) (string, error) {
		const each = 240
		clients := make([]*http.Client, min(68, scaled(o, 68)))
		for i := range clients {
			lone, disconnect := smallWindow()
			defer disconnect()
			clients[i] = t.as("reader", lone)
		}
		n := len(clients) * each
		return t.hold(ctx, n, n, "", func(ctx context.Context, i int) (func(), error) {
			// Slowly, because the places that the calls take count, and not the
			// rush.
			harness.Pause(ctx, time.Duration(1+i/each)*100*time.Millisecond)
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
		harness.Pause(life, time.Duration(1+i/each)*50*time.Millisecond)
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

// foreignSizes are the sizes of transactions that the other tenant asks for, in bytes.
var foreignSizes = []int{10, 100 << 10, 1 << 20}

// someTransactions makes transactions of several sizes.
func someTransactions(ctx context.Context, _ *options, t *target) error {
	for i, size := range foreignSizes {
		if err := fillBad(ctx, t, 1,
			func(uint64) *seqledgerv1.WriteRequest { return badWrite(fmt.Sprint("size-", i), 1, size) }); err != nil {
			return err
		}
	}
	return nil
}

// foreignTransactions has the good tenant ask for transactions of the bad one, and for some
// that do not exist. It measures how long not_found takes, which must not tell the two
// apart.
func foreignTransactions(ctx context.Context, _ *options, t *target) (string, error) {
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
	took := make([][]float64, len(ids))
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
			took[i] = append(took[i], time.Since(began).Seconds()*1e3)
		}
	}
	text := "median of not_found:"
	for i, name := range names {
		text += fmt.Sprintf(" %s %.3f ms,", name, harness.Median(took[i]))
	}
	return strings.TrimSuffix(text, ","), nil
}

// streamedWrites sends frames of writes on some streams, as fast as they are taken.
func streamedWrites(streams, writes, bytes int) func(context.Context, *options, *target) (string, error) {
	return func(ctx context.Context, _ *options, t *target) (string, error) {
		var committed, refused, failed atomic.Int64
		err := each(ctx, streams, streams, func(_ context.Context, i int) error {
			api, disconnect := t.api("bad")
			defer disconnect()
			for life := 0; ctx.Err() == nil; life++ {
				floodStream(ctx, api, func(sequence uint64) *seqledgerv1.WriteRequest {
					return badWrite(fmt.Sprintf("flood-%d-%d", i, life), sequence, bytes)
				}, writes, &committed, &refused)
				if ctx.Err() == nil {
					failed.Add(1)
					harness.Pause(ctx, 50*time.Millisecond)
				}
			}
			return nil
		})
		return fmt.Sprintf("%d streams: %d writes of %d bytes committed, %d refused, %d streams ended early",
			streams, committed.Load(), bytes, refused.Load(), failed.Load()), err
	}
}

// floodStream sends frames of so many writes until the stream ends, and counts what was committed
// and what refused.
func floodStream(ctx context.Context, api seqledgerv1connect.LedgerServiceClient,
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
