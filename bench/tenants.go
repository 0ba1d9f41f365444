package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
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
	{name: "unread pages", prepare: longEntities, run: unread("reader",
		seqledgerv1connect.LedgerServiceListEntitiesProcedure, `{`+badJSON+`,"pageSize":1000}`)},
	{name: "unread large values", prepare: largeValue, run: unread("reader",
		seqledgerv1connect.LedgerServiceGetEntityProcedure, `{`+badJSON+`,"key":"large"}`)},
	{name: "idle streams", run: idleStreams},
	{name: "idle connections", run: keyedConnections},
	{name: "health checks, no key", run: healthChecks},
	{name: "silent HTTP/2, no key", run: silentConnections},
	{name: "unknown keys", run: calls("unknown", 16, getBlocks)},
	{name: "foreign transactions", prepare: someTransactions, run: calls("good", 16, getForeign),
		after: foreignTransactions},
	{name: "stream of writes", run: streamedWrites(16, 250, payloadBytes)},
	{name: "stream of large writes", run: streamedWrites(16, 1, 1<<20)},
	{name: "stream of huge writes", run: streamedWrites(4, 4, 1<<20)},
	{name: "unary writes", run: calls("bad", 64, writeLarge(time.Minute))},
	{name: "unary, 1 ms deadlines", run: calls("bad", 64, writeLarge(time.Millisecond))},
	{name: "batches of writes", run: calls("bad", 16, writeBatch)},
	{name: "waiting reservations", prepare: ownedKeys, run: waitingReserves},
	{name: "unread replays", prepare: largeResponse, run: unread("bad", reserveProcedure, reserveText("large"))},
	{name: "opened sessions", run: calls("bad", 64, openSession)},
	{name: "expiring entities and keys", run: expiringEntities, more: expiringCalls, after: expiredInTime},
	{name: "deleted keys", prepare: deletedKeys, run: calls("reader", 64, listAllEntities)},
	{name: "fills the disk", run: streamedWrites(16, 1, 1<<20), room: 512},
	{name: "tight disk, opens sessions", run: calls("bad", 64, openSession), tight: true, after: storedAtMost},
	{name: "tight disk, reserves keys", run: calls("bad", 64, reserveKey), tight: true, after: storedAtMost},
	{name: "tight disk, tiny writes", run: streamedWrites(16, 250, 1), tight: true, after: storedAtMost},
}

// target is a server and the keys to it, if it has access control.
type target struct {
	address string
	keys    map[string]string
}

// The callers. What the good one has is in the organization good, all else in bad.
var tenantRights = map[string]string{
	"good": fmt.Sprintf(`{role: writer, scopes: ["good/*"], client_ids: ["*"], limits: {keys: %d}`, goodKeys),
	"bad":  `{role: writer, scopes: ["bad/*"], client_ids: ["*"]`,
	// bulk has stored much before, where the disk is tight.
	"bulk": `{role: writer, scopes: ["bad/*"], client_ids: ["*"]`,
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
	if err := os.WriteFile(b.authFile(), []byte(content), 0o600); err != nil {
		return nil, err
	}
	return t, b.serveTenants(ctx, t, func(free int64) int64 {
		if room == 0 {
			return -1
		}
		return max(0, (free-room)/2) // it is tight while less than twice the reserve is free
	})
}

func (b *bed) authFile() string { return filepath.Join(b.dir, "auth.yaml") }

// serveTenants starts the server with the reserve that is asked of the free bytes of its disk.
func (b *bed) serveTenants(ctx context.Context, t *target, reserve func(free int64) int64) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(b.dir, &disk); err != nil {
		return err
	}
	bytes := reserve(int64(disk.Bavail) * int64(disk.Bsize))
	err := b.startServer(ctx, "-auth", b.authFile(), fmt.Sprintf("-disk-reserve=%d", bytes))
	if err == nil {
		t.address = b.server.address
	}
	return err
}

// tighten has a third tenant store something, and starts the server anew on a disk that is tight and will not be full.
func (b *bed) tighten(ctx context.Context, t *target) error {
	const bulk = 64 // MiB, so that the good tenant's part is far below a quarter
	if err := fill(ctx, t, "bulk", bulk, func(sequence uint64) *seqledgerv1.WriteRequest {
		return badWrite("bulk", sequence, 1<<20)
	}); err != nil {
		return err
	}
	if err := b.server.Stop(); err != nil {
		return err
	}
	return b.serveTenants(ctx, t, func(free int64) int64 { return free / 4 * 3 })
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

// service is what a tenant calls.
type service struct {
	seqledgerv1connect.LedgerServiceClient
	seqledgerv1connect.IdempotencyServiceClient
	admin seqledgerv1connect.AdminServiceClient
}

// api returns a client with the key of a caller, on a connection of its own.
func (t *target) api(id string) (s service, disconnect func()) {
	c, disconnect := newHTTP2()
	c, url := t.as(id, c), "http://"+t.address
	return service{
		seqledgerv1connect.NewLedgerServiceClient(c, url), seqledgerv1connect.NewIdempotencyServiceClient(c, url),
		seqledgerv1connect.NewAdminServiceClient(c, url),
	}, disconnect
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
	// The good tenant must not be a load itself, nor fill the disk.
	pause := 2 * time.Millisecond
	if a.tight {
		if err := b.tighten(ctx, t); err != nil {
			return nil, err
		}
		pause = 20 * time.Millisecond
	}
	calls, err := b.goodCalls(ctx, t, pause)
	if err != nil {
		return nil, err
	}
	if a.more != nil {
		calls = append(calls, a.more(b, t)...)
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
	lines = append(lines, held("refused of the good one", refused, "0", len(m.refused) == 0))
	if a.after == nil {
		return lines, nil
	}
	more, err := a.after(ctx, b, t)
	return append(lines, more...), err
}

// goodCalls are what the good tenant does, each one after the other, without repeating anything:
// a write with a Writer, a unary write of some kilobytes, a read of an entity.
func (b *bed) goodCalls(ctx context.Context, t *target, pause time.Duration) ([]call, error) {
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
