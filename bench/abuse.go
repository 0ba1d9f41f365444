package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/load"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// attack is something that a client should not do. Other clients must not notice it.
type attack struct {
	name  string
	lasts time.Duration // at full size; 0: until it is done
	// prepare makes what the attack needs, before anything is measured; nil for nothing.
	prepare func(ctx context.Context, o *options, t *target) error
	// run attacks until ctx ends. done says what it did, and with which results.
	run func(ctx context.Context, o *options, t *target) (done string, err error)
	// room is how much may be written before the disk is tight, in mebibytes at full
	// size; 0 leaves the disk as it is.
	room int
	// tight makes the disk tight before the attack begins, after another tenant has stored most of what there is.
	tight bool
	// more returns calls of the good tenant that only this row has, and after further findings; both may be nil.
	more  func(b *bed, t *target) []call
	after func(ctx context.Context, b *bed, t *target) ([]harness.Line, error)
}

// abuses are the attacks on a server without access control.
var abuses = []attack{
	{name: "one-shot clients", run: oneShotClients},
	{name: "idle connections", lasts: 20 * time.Second, run: idleConnections},
	{name: "slow headers", lasts: 20 * time.Second, run: drip(2_000,
		"POST / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")},
	// A client announces a body and sends a byte a second. A server that
	// reserves memory for the whole body would run out of it.
	{name: "slow bodies", lasts: 40 * time.Second, run: drip(2_000, postText(writePath, "{", 1<<20))},
	// A client sends a large body except for its end, so that the server
	// has it in memory and can never use it.
	{name: "half bodies", lasts: 40 * time.Second, run: drip(400,
		postText(writePath, `{"clientId":"`+strings.Repeat("x", 5<<20), 6<<20))},
	{name: "huge headers", run: hugeHeaders},
	{name: "huge frames", lasts: 10 * time.Second, run: hugeFrames},
	{name: "1 ms deadlines", lasts: 10 * time.Second, run: shortDeadlines},
	{name: "only retries", lasts: 10 * time.Second, run: onlyRetries},
	{name: "only gaps", lasts: 10 * time.Second, run: onlyGaps},
	{name: "deaf streams", lasts: 30 * time.Second, run: deafStreams},
	{name: "stalled watchers", lasts: 40 * time.Second, prepare: fillScope, run: stalledWatchers},
	{name: "deaf readers", lasts: 40 * time.Second, prepare: fillScope, run: deafReaders},
}

// abuseRows are the rows of `bench abuse`.
func abuseRows() []row {
	var rows []row
	for i := range abuses {
		rows = append(rows, row{abuses[i].name, abuses[i].measureAbuse})
	}
	for i := range tenantAttacks {
		rows = append(rows, row{"tenant: " + tenantAttacks[i].name, tenantAttacks[i].measureTenant})
	}
	return rows
}

// measureAbuse attacks a server while a well-behaved client uses it. The result is what that client notices.
func (a *attack) measureAbuse(ctx context.Context, b *bed) ([]harness.Line, error) {
	if err := b.startServer(ctx); err != nil {
		return nil, err
	}
	t := &target{address: b.server.address}
	if a.prepare != nil {
		if err := a.prepare(ctx, b.o, t); err != nil {
			return nil, err
		}
	}
	c, err := b.client(client.Options{})
	if err != nil {
		return nil, err
	}
	w, err := writer.Open(ctx, c, writer.Options{Scope: benchScope, ClientID: "bystander"})
	if err != nil {
		return nil, err
	}
	m, err := b.beside(ctx, []call{{"writes", 0, func(ctx context.Context) error {
		_, err := w.Write(ctx, operation())
		return err
	}}}, func() (string, error) { return a.attack(ctx, b.o, t) })
	if err != nil {
		return nil, err
	}
	if len(m.refused) > 0 {
		return nil, fmt.Errorf("the other client failed: %s", m.refused[0])
	}
	state, err := c.GetClientState(ctx, &seqledgerv1.GetClientStateRequest{Scope: benchScope, ClientId: "bystander"})
	if err != nil {
		return nil, err
	}
	if state.LastCommittedSequence != m.acknowledged {
		return nil, fmt.Errorf("%d writes were acknowledged, %d are there", m.acknowledged, state.LastCommittedSequence)
	}
	after := "yes"
	if err := b.server.healthy(ctx); err != nil {
		after = err.Error()
	}
	return []harness.Line{
		told(m.done, ""),
		told("largest RssAnon of the server", mebibytes(m.memory)),
		told("p99 of another client, alone", milliseconds(m.alone[0].Milliseconds(99))),
		told("p99 of another client, beside it", milliseconds(m.meanwhile[0].Milliseconds(99))),
		told("its longest wait", milliseconds(m.meanwhile[0].Milliseconds(100))),
		held("healthy afterwards, all released", after, "yes", after == "yes"),
	}, nil
}

// attack prepares and runs an attack in this process.
func (a *attack) attack(ctx context.Context, o *options, t *target) (done string, err error) {
	if a.lasts > 0 {
		limited, cancel := context.WithTimeout(ctx, scaledTime(o, a.lasts))
		defer cancel()
		ctx = limited
	}
	return a.run(ctx, o, t)
}

// call is a call of a well-behaved client, which makes one after the other.
type call struct {
	name  string
	pause time.Duration // between two of them
	do    func(ctx context.Context) error
}

// besides has the latencies of calls, alone and during an attack.
type besides struct {
	done             string // what the attack says
	alone, meanwhile []load.Latencies
	memory           int64 // the largest of the server during the attack, in bytes
	acknowledged     uint64
	refused          []string
}

// beside measures calls alone and during an attack on the same server, so that
// both have the same machine and the same ledger.
func (b *bed) beside(ctx context.Context, calls []call, attack func() (string, error)) (m besides, err error) {
	var mu sync.Mutex // guards latency and m
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
	for kind, c := range calls {
		// Ended by cancel; joined below.
		ended.Go(func() {
			for calling.Err() == nil {
				began := time.Now()
				err := c.do(context.WithoutCancel(ctx)) // the end of the measurement is no failure
				took := time.Since(began)
				mu.Lock()
				if err != nil {
					m.refused = append(m.refused, err.Error())
				} else {
					m.acknowledged++
					latency[kind].Record(took)
				}
				mu.Unlock()
				if err != nil && c.pause == 0 {
					return
				}
				load.Pause(calling, c.pause)
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

// healthy waits until the server is ready and holds nothing for the attack.
func (p *process) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var last error // says more than the deadline
	for {
		err := p.looksHealthy(ctx)
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

func (p *process) looksHealthy(ctx context.Context) error {
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
		// The bystander's, this process's, and those that net/http keeps for a
		// while rather than closing them.
		"seqledger_connections_open": 10,
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
