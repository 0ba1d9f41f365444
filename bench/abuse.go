package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/seqledger/seqledger/client"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// attack is something that a client should not do. It says what it did, and
// what came of it.
type attack func(ctx context.Context, o *options, address string) (done string, err error)

// abuseRows are the rows of `bench abuse`.
func abuseRows() []largeRow {
	var rows []largeRow
	for _, a := range []struct {
		name string
		run  attack
	}{
		{"one-shot clients", oneShotClients},
		{"idle connections", idleConnections},
		{"slow headers", slowHeaders},
		{"slow bodies", slowBodies},
		{"half bodies", halfBodies},
		{"huge headers", hugeHeaders},
		{"huge frames", hugeFrames},
		{"1 ms deadlines", shortDeadlines},
		{"only retries", onlyRetries},
		{"only gaps", onlyGaps},
		{"deaf streams", deafStreams},
		{"stalled watchers", stalledWatchers},
		{"deaf readers", deafReaders},
	} {
		rows = append(rows, largeRow{a.name, func(ctx context.Context, o *options) ([]finding, error) {
			return measureAbuse(ctx, o, a.run)
		}})
	}
	return append(rows, tenantRows()...)
}

// measureAbuse attacks a server beside which a client of good manners works.
func measureAbuse(ctx context.Context, o *options, run attack) ([]finding, error) {
	return onServer(ctx, o, func(s *process, _ string) (findings []finding, err error) {
		c, err := client.New(client.Options{Server: s.address})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		b, err := newBystander(ctx, c)
		if err != nil {
			return nil, err
		}
		pause(ctx, scaledTime(o, 5*time.Second))
		alone := b.interval()
		memory := s.watchMemory(ctx)
		done, attackErr := run(ctx, o, s.address)
		beside := b.interval()
		used := memory.stop()
		if err := errors.Join(attackErr, b.stop(ctx)); err != nil {
			return nil, err
		}
		after := "yes"
		if err := healthy(ctx, s.address); err != nil {
			after = err.Error()
		}
		return []finding{
			{Measure: done},
			{Measure: "largest RssAnon of the server", Value: mebibytes(used)},
			{Measure: "p99 of another client, alone", Value: milliseconds(alone.ValueAtQuantile(99))},
			{Measure: "p99 of another client, beside it", Value: milliseconds(beside.ValueAtQuantile(99))},
			{Measure: "its longest wait", Value: milliseconds(beside.Max())},
			{Measure: "healthy afterwards, all released", Value: after, Target: "yes",
				Verdict: verdict(after == "yes")},
		}, nil
	})
}

// bystander is a client of good manners: it writes, waits for the answer, and
// writes the next.
type bystander struct {
	client *client.Client
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu           sync.Mutex
	latency      *hdrhistogram.Histogram
	acknowledged uint64
	err          error
}

const bystanderID = "bystander"

// newBystander begins to write.
func newBystander(ctx context.Context, c *client.Client) (*bystander, error) {
	w, err := c.NewWriter(ctx, client.WriterOptions{Scope: benchScope, ClientID: bystanderID})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	b := &bystander{client: c, cancel: cancel}
	b.interval()
	// Ended by stop, which waits for it.
	b.ended.Go(func() {
		for {
			began := time.Now()
			// Without the context: a write that is cut short is not answered.
			_, err := w.Write(context.WithoutCancel(ctx), operation())
			b.mu.Lock()
			if b.err = err; err == nil {
				b.acknowledged++
				_ = b.latency.RecordValue(int64(time.Since(began))) // out of range: more than a minute
			}
			b.mu.Unlock()
			if err != nil || ctx.Err() != nil {
				return
			}
		}
	})
	return b, nil
}

// interval returns what was measured since the last call.
func (b *bystander) interval() *hdrhistogram.Histogram {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.latency
	b.latency = hdrhistogram.New(minLatency, maxLatency, digits)
	return was
}

// stop ends the writes and checks that the ledger has exactly the acknowledged ones.
func (b *bystander) stop(ctx context.Context) error {
	b.cancel()
	b.ended.Wait()
	if b.err != nil {
		return fmt.Errorf("the other client failed: %w", b.err)
	}
	state, err := b.client.GetClientState(ctx,
		&seqledgerv1.GetClientStateRequest{Scope: benchScope, ClientId: bystanderID})
	if err != nil {
		return err
	}
	if state.LastCommittedSequence != b.acknowledged {
		return fmt.Errorf("%d writes were acknowledged, %d are there", b.acknowledged, state.LastCommittedSequence)
	}
	return nil
}

// healthy waits until a server is ready and nothing of an attack is left.
func healthy(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var last error // what was wrong, and not that the time was up
	for {
		err := looksHealthy(ctx, address)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return cmp.Or(last, err)
		}
		last = err
		pause(ctx, 50*time.Millisecond)
	}
}

func looksHealthy(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close() // only the status is of interest
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	for name, most := range map[string]float64{
		"seqledger_requests_open": 1, "seqledger_streams_open": 1, "seqledger_arriving_bytes": 0,
		"seqledger_panics_total": 0, "seqledger_queue_items": 1,
		// The bystander's, ours, and those that Go keeps for a while.
		"seqledger_connections_open": 10,
	} {
		if n, err := serverMetric(address, name); err != nil || n > most {
			return errors.Join(fmt.Errorf("%s is %g, want at most %g", name, n, most), err)
		}
	}
	return nil
}
