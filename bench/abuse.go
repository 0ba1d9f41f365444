package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/internal/testkit/process"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server/auth"
)

// Two tenants share a server whose auth file sets no limits. One misbehaves; the other writes and reads, and must not
// notice. The bad tenant is a process with the lowest priority: it represents other machines, and any processor time
// it took here would be missing from the server and the good tenant, which are measured.

// attack is what the bad tenant does.
type attack struct {
	name string
	// prepare stores what the attack needs before anything is measured; nil for nothing.
	prepare func(ctx context.Context, o *options, t *target) error
	// run attacks until ctx ends and returns a summary of what it did.
	run func(ctx context.Context, o *options, t *target) (done string, err error)
}

// target is a server and the keys of its callers.
type target struct {
	address string
	keys    map[string]string
}

// tenantRights are the callers. The good tenant owns the organization good; all others use bad.
var tenantRights = map[string]string{
	"good":     `{role: writer, scopes: ["good/*"], client_ids: ["*"]`,
	"bad":      `{role: writer, scopes: ["bad/*"], client_ids: ["*"]`,
	"reader":   `{role: reader, scopes: ["bad/*"]`,
	"observer": `{role: reader, scopes: ["*"]`, // of the metrics
}

var (
	goodScope = &seqledgerv1.Scope{Organization: "good", Vault: "main"}
	badScope  = &seqledgerv1.Scope{Organization: "bad", Vault: "main"}
)

func abuseRows() []row {
	var rows []row
	for i := range attacks {
		rows = append(rows, row{attacks[i].name, attacks[i].measure})
	}
	return rows
}

// startTenants starts a server with access control.
func (b *bed) startTenants(ctx context.Context) (*target, error) {
	t := &target{keys: map[string]string{}}
	content := "keys:\n"
	for id, rights := range tenantRights {
		key, hash, err := auth.NewKey(id)
		if err != nil {
			return nil, err
		}
		t.keys[id] = key
		content += fmt.Sprintf("- %s, id: %s, hash: %q}\n", rights, id, hash)
	}
	file := filepath.Join(b.dir, "auth.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		return nil, err
	}
	if err := b.startServer(ctx, "-auth", file); err != nil {
		return nil, err
	}
	t.address, b.server.observer = b.server.address, t.keys["observer"]
	return t, nil
}

// attackJob tells the bad tenant's process what to do.
type attackJob struct {
	Name     string            `json:"name"`
	Address  string            `json:"address"`
	Keys     map[string]string `json:"keys"`
	Fraction float64           `json:"fraction"`
}

const (
	attackLasts    = 15 * time.Second
	lowestPriority = 19
)

// runAttack is the bad tenant's process: it reads a job, runs it and prints the summary.
func runAttack(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	var job attackJob
	if err := json.NewDecoder(stdin).Decode(&job); err != nil {
		return err
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, lowestPriority); err != nil {
		return err
	}
	for _, a := range attacks {
		if a.name != job.Name {
			continue
		}
		o := &options{fraction: job.Fraction}
		ctx, cancel := context.WithTimeout(ctx, scaledTime(o, attackLasts))
		defer cancel()
		done, err := a.run(ctx, o, &target{job.Address, job.Keys})
		<-ctx.Done() // also when the attack ended early
		_, failed := fmt.Fprintln(stdout, done)
		return errors.Join(err, failed)
	}
	return fmt.Errorf("unknown attack %q", job.Name)
}

// attack runs the bad tenant's process.
func (t *target) attack(o *options, name string) (done string, err error) {
	job, err := json.Marshal(attackJob{name, t.address, t.keys, o.fraction})
	if err != nil {
		return "", err
	}
	command := process.Self("-attack")
	command.Stdin, command.Stderr = bytes.NewReader(job), os.Stderr
	// A process group keeps it from being interrupted before this process is.
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

// service is the API as a tenant calls it.
type service struct {
	seqledgerv1connect.LedgerServiceClient
	seqledgerv1connect.IdempotencyServiceClient
}

// api returns a client with a caller's key on its own connection.
func (t *target) api(id string) (s service, disconnect func()) {
	c, disconnect := newHTTP2()
	c, url := t.as(id, c), "http://"+t.address
	return service{
		seqledgerv1connect.NewLedgerServiceClient(c, url), seqledgerv1connect.NewIdempotencyServiceClient(c, url),
	}, disconnect
}

// as returns c with the key of a caller.
func (t *target) as(id string, c *http.Client) *http.Client {
	return &http.Client{Transport: bearer{t.keys[id], c.Transport}}
}

// The good tenant's p99 may be five times what it is alone, or this many milliseconds.
const (
	mostTimes = 5
	mostWait  = 20
)

// measure measures the good tenant alone and during the attack.
func (a *attack) measure(ctx context.Context, b *bed) ([]harness.Line, error) {
	t, err := b.startTenants(ctx)
	if err == nil && a.prepare != nil {
		err = a.prepare(ctx, b.o, t)
	}
	if err != nil {
		return nil, err
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
			told("p99 of "+c.name+", alone", milliseconds(was)),
			held("p99 of "+c.name+", during the attack", milliseconds(is), "5 x or 20 ms",
				is <= max(mostTimes*was, mostWait) && m.meanwhile[i].TotalCount() > 0))
	}
	refused := fmt.Sprint(len(m.refused), " ", strings.Join(m.refused[:min(1, len(m.refused))], ""))
	lines = append(lines, held("calls refused to the good tenant", refused, "0", len(m.refused) == 0))
	after := "yes"
	if err := b.server.healthy(ctx); err != nil {
		after = err.Error()
	}
	return append(lines, held("healthy afterwards, all released", after, "yes", after == "yes")), nil
}

// goodCalls returns the good tenant's calls: a write with a Writer, a unary write of 8 KiB and a read.
func (b *bed) goodCalls(ctx context.Context, t *target) ([]goodCall, error) {
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
	return []goodCall{
		{"writes", func(ctx context.Context) error {
			_, err := w.Write(ctx, operation())
			return err
		}},
		{"unary writes of 8 KiB", writeLarge},
		{"reads", func(ctx context.Context) error {
			_, err := api.GetEntity(ctx, connect.NewRequest(&seqledgerv1.GetEntityRequest{Scope: goodScope, Key: "k"}))
			return err
		}},
	}, writeLarge(ctx) // gives the reads something to read
}

// goodCall is repeated by the good tenant, sequentially.
type goodCall struct {
	name string
	do   func(ctx context.Context) error
}

// besideResult has the latencies of the calls alone and during an attack.
type besideResult struct {
	done             string
	alone, meanwhile []load.Latencies
	memory           int64 // of the server during the attack, largest sample
	refused          []string
}

// beside measures calls alone and then during an attack on the same server and ledger.
func (b *bed) beside(ctx context.Context, calls []goodCall, attack func() (string, error)) (m besideResult, err error) {
	var mu sync.Mutex // guards latency and m.refused
	var latency []load.Latencies
	interval := func() (was []load.Latencies) {
		mu.Lock()
		defer mu.Unlock()
		was, latency = latency, nil
		for range calls {
			latency = append(latency, load.NewLatencies())
		}
		return was
	}
	interval()
	calling, cancel := context.WithCancel(ctx)
	defer cancel()
	var ended sync.WaitGroup
	for i, c := range calls {
		ended.Go(func() { // until cancel; joined below
			for calling.Err() == nil {
				began := time.Now()
				err := c.do(context.WithoutCancel(ctx))
				took := time.Since(began)
				mu.Lock()
				if err != nil {
					m.refused = append(m.refused, err.Error())
				} else {
					latency[i].Record(took)
				}
				mu.Unlock()
				load.Pause(calling, 2*time.Millisecond)
			}
		})
	}
	load.Pause(ctx, scaledTime(b.o, 5*time.Second))
	alone := interval()
	memory := b.server.watchMemory()
	done, err := attack()
	meanwhile, used := interval(), memory()
	cancel()
	ended.Wait()
	m.done, m.alone, m.meanwhile, m.memory = done, alone, meanwhile, used
	return m, err
}

// healthy waits until the server is ready and has released everything the attack took.
func (p *serverProcess) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var last error // more useful than the deadline's
	for {
		err := p.released(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return cmp.Or(last, err)
		}
		last = err
		load.Pause(ctx, 50*time.Millisecond)
	}
}

func (p *serverProcess) released(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close() // only the status is used
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	for name, most := range map[string]float64{
		"seqledger_requests_open": 1, "seqledger_streams_open": 1, "seqledger_arriving_bytes": 0,
		"seqledger_panics_total": 0, "seqledger_queue_items": 1,
		"seqledger_connections_open": 10, // the good tenant's, and idle ones that net/http keeps
	} {
		switch n, err := p.metric(name); {
		case err != nil:
			return err
		case n > most:
			return fmt.Errorf("%s is %g, want at most %g", name, n, most)
		}
	}
	return nil
}
