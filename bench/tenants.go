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
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/seqledger/seqledger/client"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server/auth"
)

// The rows of this file have two tenants, with an auth file that says nothing of
// limits. One does what it should not; the other one writes and reads, and must not
// notice. The bad one is a process of its own with the lowest priority: it stands for
// other machines, and what it takes of this one's processors would be taken from the
// server and from the good one, which are measured.

// tenants are a server and the keys to it.
type tenants struct {
	address string
	keys    map[string]string
}

// The callers. What the good one has is in the organization good, all else in bad.
var tenantRights = map[string]string{
	"good": `{role: writer, scopes: ["good/*"], client_ids: ["*"]`,
	"bad":  `{role: writer, scopes: ["bad/*"], client_ids: ["*"]`,
	// reader may do less than a writer, and spoils as much.
	"reader": `{role: reader, scopes: ["bad/*"]`,
	"root":   `{role: admin, scopes: ["*"], client_ids: ["*"]`,
}

var (
	goodScope = &seqledgerv1.Scope{Organization: "good", Vault: "main"}
	badScope  = &seqledgerv1.Scope{Organization: "bad", Vault: "main"}
)

// startTenants starts a server with access control, on which the disk is tight once
// about room bytes more are taken of it; 0 for as it is.
func startTenants(ctx context.Context, o *options, dir string, room int64) (*tenants, *process, error) {
	t := &tenants{keys: make(map[string]string)}
	content := "keys:\n"
	for id, rights := range tenantRights {
		key, hash, err := auth.NewKey(id)
		if err != nil {
			return nil, nil, err
		}
		t.keys[id] = key
		content += fmt.Sprintf("- %s, id: %s, hash: %q}\n", rights, id, hash)
	}
	path := filepath.Join(dir, "auth.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return nil, nil, err
	}
	arguments := []string{"-auth", path}
	if room > 0 {
		var disk syscall.Statfs_t
		if err := syscall.Statfs(dir, &disk); err != nil {
			return nil, nil, err
		}
		// It is tight while less than twice the reserve is free.
		reserve := (int64(disk.Bavail)*int64(disk.Bsize) - room) / 2
		arguments = append(arguments, "-disk-reserve", strconv.FormatInt(max(0, reserve), 10))
	}
	p, err := startServer(ctx, o, filepath.Join(dir, "data"), arguments...)
	if err != nil {
		return nil, nil, err
	}
	t.address = p.address
	return t, p, nil
}

// attackJob is what a bad tenant's process is told.
type attackJob struct {
	Name     string            `json:"name"`
	Address  string            `json:"address"`
	Keys     map[string]string `json:"keys"`
	Fraction float64           `json:"fraction"`
	Lasts    time.Duration     `json:"lasts"`
}

// lowestPriority is for everything that stands for another machine.
const lowestPriority = 19

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
	for _, a := range tenantAttacks() {
		if a.name != job.Name {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, job.Lasts)
		defer cancel()
		done, err := a.run(ctx, &options{fraction: job.Fraction}, &tenants{job.Address, job.Keys})
		<-ctx.Done() // an attack that holds what it took lasts as long as one that works
		_, failed := fmt.Fprintln(stdout, done)
		return errors.Join(err, failed)
	}
	return fmt.Errorf("there is no attack %q", job.Name)
}

// attack starts the process of a bad tenant and waits for its end.
func (t *tenants) attack(ctx context.Context, o *options, name string) (done string, err error) {
	job, err := json.Marshal(attackJob{name, t.address, t.keys, o.fraction, scaledTime(o, 15*time.Second)})
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, os.Args[0], "-attack")
	command.Stdin, command.Stderr = bytes.NewReader(job), os.Stderr
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
func (t *tenants) api(id string) (l seqledgerv1connect.LedgerServiceClient, disconnect func()) {
	c := newHTTP2()
	return seqledgerv1connect.NewLedgerServiceClient(t.as(id, c), "http://"+t.address), c.CloseIdleConnections
}

// as returns a client that calls with the key of a caller.
func (t *tenants) as(id string, c *http.Client) *http.Client {
	return &http.Client{Transport: bearer{t.keys[id], c.Transport}}
}

// tenantAttack is what a bad tenant does until ctx ends. It says what it did.
type tenantAttack struct {
	name string
	// prepare makes what the attack needs, before anything is measured; nil for
	// nothing.
	prepare func(ctx context.Context, o *options, t *tenants) error
	run     func(ctx context.Context, o *options, t *tenants) (done string, err error)
	// room is how much may be written before the disk is tight, in mebibytes at full
	// size; 0 for as much as there is.
	room int
}

// leastRoom is that of the smallest run, in mebibytes: a new ledger takes some of it.
const leastRoom = 128

// tenantRows are the rows about tenants of `bench abuse`.
func tenantRows() []largeRow {
	var rows []largeRow
	for _, a := range tenantAttacks() {
		rows = append(rows, largeRow{"tenant: " + a.name, func(ctx context.Context, o *options) ([]finding, error) {
			return measureTenant(ctx, o, &a)
		}})
	}
	return rows
}

// measureTenant measures the good tenant alone and beside the bad one.
func measureTenant(ctx context.Context, o *options, a *tenantAttack) ([]finding, error) {
	return inDirectory(o, func(dir string) (findings []finding, err error) {
		room := int64(0)
		if a.room > 0 {
			room = int64(max(leastRoom, scaled(o, a.room))) << 20
		}
		t, server, err := startTenants(ctx, o, dir, room)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, server.stop()) }()
		if a.prepare != nil {
			if err := a.prepare(ctx, o, t); err != nil {
				return nil, err
			}
		}
		good, err := newGoodTenant(ctx, t)
		if err != nil {
			return nil, err
		}
		pause(ctx, scaledTime(o, 5*time.Second))
		alone := good.interval()
		memory := server.watchMemory(ctx)
		done, attackErr := t.attack(ctx, o, a.name)
		beside := good.interval()
		used := memory.stop()
		refused, goodErr := good.stop()
		if err := errors.Join(attackErr, goodErr); err != nil {
			return nil, err
		}
		findings = []finding{{Measure: done}, {Measure: "largest RssAnon of the server", Value: mebibytes(used)}}
		for i, name := range goodNames {
			was, is := alone[i].ValueAtQuantile(99), beside[i].ValueAtQuantile(99)
			ok := is <= max(mostTimes*was, int64(mostWait)) && beside[i].TotalCount() > 0
			findings = append(findings,
				finding{Measure: "p99 of the good one's " + name + ", alone", Value: milliseconds(was)},
				finding{
					Measure: "p99 of the good one's " + name + ", beside it", Value: milliseconds(is),
					Target: "5 x or 20 ms", Verdict: verdict(ok),
				})
		}
		return append(findings, finding{
			Measure: "refused of the good one",
			Value:   fmt.Sprint(len(refused), " ", strings.Join(refused[:min(1, len(refused))], "")),
			Target:  "0", Verdict: verdict(len(refused) == 0),
		}), nil
	})
}

// What the good tenant may notice at most: a p99 five times as long as alone, or this.
const (
	mostTimes = 5
	mostWait  = 20 * time.Millisecond
)

// What the good tenant does, each one after the other, without repeating anything.
const (
	goodStream = iota // a write with a Writer
	goodLarge         // a unary write of some kilobytes
	goodRead          // a read of an entity
	goodKinds
)

var goodNames = [goodKinds]string{"writes", "unary writes of 8 KiB", "reads"}

// goodTenant writes and reads, one call after the other.
type goodTenant struct {
	client *client.Client
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu      sync.Mutex
	latency [goodKinds]*hdrhistogram.Histogram
	refused []string
}

// newGoodTenant begins to write and to read.
func newGoodTenant(ctx context.Context, t *tenants) (*goodTenant, error) {
	c, err := client.New(client.Options{Server: t.address, Token: client.StaticToken(t.keys["good"])})
	if err != nil {
		return nil, err
	}
	w, err := c.NewWriter(ctx, client.WriterOptions{Scope: goodScope, ClientID: "stream"})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	g := &goodTenant{client: c, cancel: cancel}
	g.interval()
	api, disconnect := t.api("good")
	g.loop(ctx, goodStream, func() error {
		_, err := w.Write(context.WithoutCancel(ctx), operation())
		return err
	})
	written := make(chan struct{})
	sequence, large := uint64(0), make([]byte, 8<<10)
	g.loop(ctx, goodLarge, func() error {
		if sequence == 1 {
			close(written)
		}
		sequence++
		_, err := api.Write(context.WithoutCancel(ctx), connect.NewRequest(&seqledgerv1.WriteRequest{
			Scope: goodScope, ClientId: "unary", Sequence: sequence,
			Operations: []*seqledgerv1.Operation{setValue("k", large)},
		}))
		return err
	})
	<-written
	g.loop(ctx, goodRead, func() error {
		_, err := api.GetEntity(context.WithoutCancel(ctx),
			connect.NewRequest(&seqledgerv1.GetEntityRequest{Scope: goodScope, Key: "k"}))
		return err
	})
	g.ended.Go(func() { // ends with ctx; stop waits for it
		<-ctx.Done()
		disconnect()
	})
	return g, nil
}

func setValue(key string, value []byte) *seqledgerv1.Operation {
	return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_SetEntity{
		SetEntity: &seqledgerv1.SetEntity{Key: key, Value: value},
	}}
}

// goodPause is the pause between two calls of one kind: the good tenant must not be a load
// itself.
const goodPause = 2 * time.Millisecond

// loop calls repeatedly.
func (g *goodTenant) loop(ctx context.Context, kind int, call func() error) {
	// Ended by stop, which waits for it.
	g.ended.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			err := call()
			took := time.Since(began)
			g.mu.Lock()
			if err != nil {
				g.refused = append(g.refused, err.Error())
			} else {
				_ = g.latency[kind].RecordValue(int64(took)) // out of range: more than a minute
			}
			g.mu.Unlock()
			pause(ctx, goodPause)
		}
	})
}

// interval returns what was measured since the last call.
func (g *goodTenant) interval() (was [goodKinds]*hdrhistogram.Histogram) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was = g.latency
	for i := range g.latency {
		g.latency[i] = hdrhistogram.New(minLatency, maxLatency, digits)
	}
	return was
}

// stop ends the calls and returns what was refused.
func (g *goodTenant) stop() (refused []string, err error) {
	g.cancel()
	g.ended.Wait()
	return g.refused, g.client.Close()
}
