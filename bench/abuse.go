package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/internal/testkit/process"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
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
	Address string
	Keys    map[string]string
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

func abuseRows(*options) []row {
	var rows []row
	for i := range attacks {
		rows = append(rows, row{attacks[i].name, attacks[i].measure})
	}
	return rows
}

// startTenants starts a server with access control.
func (b *bed) startTenants(ctx context.Context) (*target, error) {
	t := &target{Keys: map[string]string{}}
	content := "keys:\n"
	for id, rights := range tenantRights {
		key, hash, err := auth.NewKey(id)
		if err != nil {
			return nil, err
		}
		t.Keys[id] = key
		content += fmt.Sprintf("- %s, id: %s, hash: %q}\n", rights, id, hash)
	}
	file := filepath.Join(b.dir, "auth.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		return nil, err
	}
	if err := b.startServer(ctx, "-auth", file); err != nil {
		return nil, err
	}
	t.Address, b.server.observer = b.server.address, t.Keys["observer"]
	return t, nil
}

// attackJob tells the bad tenant's process what to do.
type attackJob struct {
	Name     string
	Target   *target
	Fraction float64
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
		done, err := a.run(ctx, o, job.Target)
		<-ctx.Done() // also when the attack ended early
		_, failed := fmt.Fprintln(stdout, done)
		return errors.Join(err, failed)
	}
	return fmt.Errorf("unknown attack %q", job.Name)
}

// attack runs the bad tenant's process.
func (t *target) attack(o *options, name string) (done string, err error) {
	job, err := json.Marshal(attackJob{name, t, o.fraction})
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

// The good tenant's p99 may be five times what it is alone, or this many milliseconds.
const (
	mostTimes = 5
	mostWait  = 20
)

// measure measures the good tenant alone and during the attack.
func (a *attack) measure(ctx context.Context, b *bed) error {
	t, err := b.startTenants(ctx)
	if err == nil && a.prepare != nil {
		err = a.prepare(ctx, b.o, t)
	}
	if err != nil {
		return err
	}
	good, err := b.goodCalls(ctx, t)
	if err != nil {
		return err
	}
	calling, cancel := context.WithCancel(ctx)
	defer cancel()
	var ended sync.WaitGroup
	var attacked atomic.Bool
	for _, c := range good {
		ended.Go(func() { c.repeat(calling, &attacked) })
	}
	load.Pause(ctx, scaledTime(b.o, 5*time.Second))
	attacked.Store(true)
	done, err := t.attack(b.o, a.name)
	cancel()
	ended.Wait()
	if err != nil {
		return err
	}
	memory := fmt.Sprint(harness.Memory("VmHWM", b.server.Pid)>>20, " MiB")
	lines := []harness.Line{told(done, ""), told("largest RSS of the server", memory)}
	var refused []error
	for _, c := range good {
		was, is := c.alone.Milliseconds(99), c.meanwhile.Milliseconds(99)
		lines = append(lines,
			told("p99 of "+c.name+", alone", milliseconds(was)),
			held("p99 of "+c.name+", during the attack", milliseconds(is), "5 x or 20 ms",
				is <= max(mostTimes*was, mostWait) && c.meanwhile.TotalCount() > 0))
		refused = append(refused, c.refused...)
	}
	lines = append(lines, held("calls refused to the good tenant",
		fmt.Sprint(len(refused), refused[:min(1, len(refused))]), "0", len(refused) == 0))
	after := "yes"
	ctx, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	if err := b.server.Ready(ctx, b.server.released); err != nil {
		after = err.Error()
	}
	return b.tell(append(lines, held("healthy afterwards, all released", after, "yes", after == "yes"))...)
}

// goodCall is repeated by the good tenant, sequentially.
type goodCall struct {
	name             string
	do               func(ctx context.Context) error
	alone, meanwhile load.Latencies
	refused          []error
}

// repeat calls until ctx ends.
func (c *goodCall) repeat(ctx context.Context, attacked *atomic.Bool) {
	for ctx.Err() == nil {
		began := time.Now()
		err := c.do(context.WithoutCancel(ctx))
		switch took := time.Since(began); {
		case err != nil:
			c.refused = append(c.refused, err)
		case attacked.Load():
			c.meanwhile.Record(took)
		default:
			c.alone.Record(took)
		}
		load.Pause(ctx, 2*time.Millisecond)
	}
}

// goodCalls returns the good tenant's calls: a write with a Writer, a unary write of 8 KiB and a read.
func (b *bed) goodCalls(ctx context.Context, t *target) ([]*goodCall, error) {
	c, err := b.client(client.Options{Token: client.StaticToken(t.Keys["good"])})
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
	all := []*goodCall{
		{name: "writes", do: func(ctx context.Context) error {
			_, err := w.Write(ctx, op.Append(zeros[:]))
			return err
		}},
		{name: "unary writes of 8 KiB", do: func(ctx context.Context) error {
			sequence++
			_, err := api.Write(ctx, connect.NewRequest(&seqledgerv1.WriteRequest{
				Scope: goodScope, ClientId: "unary", Sequence: sequence,
				Operations: []*seqledgerv1.Operation{op.Set("k", large)},
			}))
			return err
		}},
		{name: "reads", do: func(ctx context.Context) error { // of what the one before has written
			_, err := api.GetEntity(ctx, connect.NewRequest(&seqledgerv1.GetEntityRequest{Scope: goodScope, Key: "k"}))
			return err
		}},
	}
	for _, c := range all {
		c.alone, c.meanwhile = load.NewLatencies(), load.NewLatencies()
		if err := c.do(ctx); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// released returns an error until the server is ready and has released everything that the attack took.
func (p *serverProcess) released(ctx context.Context) error {
	if _, err := p.get(ctx, "/readyz"); err != nil {
		return err
	}
	for name, most := range map[string]float64{
		"seqledger_requests_open": 1, "seqledger_streams_open": 1, "seqledger_arriving_bytes": 0,
		"seqledger_panics_total": 0, "seqledger_queue_items": 1,
		"seqledger_connections_open": 10, // the good tenant's, and idle ones that net/http keeps
	} {
		switch n, err := p.metric(ctx, name); {
		case err != nil:
			return err
		case n > most:
			return fmt.Errorf("%s is %g, want at most %g", name, n, most)
		}
	}
	return nil
}
