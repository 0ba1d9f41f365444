package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/load"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type benchCommand struct {
	clientFlags `embed:""`
	// Not --scope, because its environment variable and configuration name the scope of real writes.
	Into     string        `help:"Organization to write to." default:"seqledger-bench" env:"-"`
	Streams  int           `help:"Number of streams, each with one write outstanding." default:"64" env:"-"`
	Duration time.Duration `help:"Measure for so long, after a second that is not measured." default:"10s" env:"-"`
	Rate     float64       `help:"Writes to begin each second, whether or not earlier ones are answered; 0 waits for each answer." default:"0" env:"-"`
	Payload  int           `help:"Bytes that each write appends." default:"128" env:"-"`
}

func (*benchCommand) Help() string {
	return `Every write is real: it stays in the ledger. Therefore it goes to a scope of its own, seqledger-bench unless
--into names another, and to streams with new names, bench-RANDOM-1 and so on, which the
ledger evicts after its client TTL.

With --rate a latency counts from the moment at which its write was due, so that a server that stalls is
charged for all who would have waited. Writes that were due and had not begun when the time was over are
counted as unserved.

    seqledger bench --server 127.0.0.1:7450 --streams 256 --duration 30s
    seqledger bench --streams 256 --rate 20000 --json`
}

// benchResult is what bench prints with --json.
type benchResult struct {
	Streams   int     `json:"streams"`
	Payload   int     `json:"payloadBytes"`
	Rate      float64 `json:"ratePerSecond,omitempty"`
	Seconds   float64 `json:"seconds"`
	Writes    int64   `json:"writes"`
	Unserved  int64   `json:"unserved"`
	PerSecond float64 `json:"writesPerSecond"`
	P50       float64 `json:"p50Milliseconds"`
	P99       float64 `json:"p99Milliseconds"`
	P999      float64 `json:"p999Milliseconds"`
	Max       float64 `json:"maxMilliseconds"`
}

// These limits keep a typing mistake from filling the disk or the memory.
const (
	maxBenchStreams = 100_000
	maxBenchPayload = 1 << 20
	maxBenchRate    = 1_000_000
)

// check refuses values that cannot be measured.
func (c *benchCommand) check() error {
	switch {
	case c.Streams < 1 || c.Streams > maxBenchStreams:
		return usage("--streams %d: must be from 1 to %d", c.Streams, maxBenchStreams)
	case c.Payload < 1 || c.Payload > maxBenchPayload:
		return usage("--payload %d: must be from 1 to %d", c.Payload, maxBenchPayload)
	case c.Duration <= 0:
		return usage("--duration must be more than 0")
	case !(c.Rate >= 0 && c.Rate <= maxBenchRate): // also refuses NaN
		return usage("--rate must be from 0 to %d", maxBenchRate)
	}
	return c.clientFlags.check()
}

func (c *benchCommand) Run(e *environment) error {
	if err := c.check(); err != nil {
		return err
	}
	scope := &seqledgerv1.Scope{Organization: c.Into}
	return c.connected(e, func(conn *client.Client) error {
		e.notice("opening %d streams in %s", c.Streams, scopeName(scope))
		var writers []*writer.Writer
		err := c.within(e, func(ctx context.Context) (err error) {
			writers, err = c.open(ctx, conn, scope)
			return err
		})
		if err != nil {
			return err
		}
		measured, err := c.measure(e.ctx, writers)
		if err != nil {
			return err
		}
		return c.show(e, &measured)
	})
}

// open returns a Writer for each stream. The names are new, so that two runs do not fence each
// other.
func (c *benchCommand) open(ctx context.Context, conn *client.Client,
	scope *seqledgerv1.Scope) ([]*writer.Writer, error) {
	name := make([]byte, 6)
	_, _ = rand.Read(name) // never fails: it ends the program instead
	writers := make([]*writer.Writer, c.Streams)
	group, ctx := errgroup.WithContext(ctx)
	const atOnce = 64
	group.SetLimit(atOnce)
	for i := range writers {
		group.Go(func() (err error) {
			writers[i], err = writer.Open(ctx, conn, writer.Options{
				Scope: scope, ClientID: fmt.Sprintf("bench-%s-%d", hex.EncodeToString(name), i+1),
			})
			return err
		})
	}
	return writers, group.Wait()
}

func (c *benchCommand) measure(ctx context.Context, writers []*writer.Writer) (load.Result, error) {
	payload := make([]byte, c.Payload)
	_, _ = rand.Read(payload) // random, because real payloads are not all zeros
	operation := &seqledgerv1.Operation{
		Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{Payload: payload}}}
	write := func(ctx context.Context, worker int) error {
		ctx, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel()
		_, err := writers[worker].Write(ctx, operation)
		return err
	}
	o := load.Load{Workers: c.Streams, Warmup: time.Second, Duration: c.Duration, Rate: c.Rate}
	measured, err := load.Run(ctx, o, write)
	switch {
	case err != nil && ctx.Err() == nil:
		// Not the exit code of an unknown outcome, because these writes need not be settled.
		return measured, fail(exitFailed,
			"is the server still running? --timeout waits longer for an answer", "a write failed: %w", err)
	case err == nil && measured.Operations == 0:
		return measured, fail(exitFailed, "give it longer with --duration", "no write was answered in the time")
	}
	return measured, err
}

func (c *benchCommand) show(e *environment, m *load.Result) error {
	r := benchResult{
		Streams: c.Streams, Payload: c.Payload, Rate: c.Rate, Seconds: m.Elapsed.Seconds(), Writes: m.Operations,
		Unserved: m.Unserved, PerSecond: m.PerSecond(),
		P50: m.Latency.Milliseconds(50), P99: m.Latency.Milliseconds(99), P999: m.Latency.Milliseconds(99.9),
		Max: m.Latency.Milliseconds(100),
	}
	return e.show(r, func(t *table) {
		t.field("streams", fmt.Sprint(r.Streams))
		t.field("writes", fmt.Sprintf("%d of %d bytes in %.1f s", r.Writes, r.Payload, r.Seconds))
		t.field("per second", fmt.Sprintf("%.0f", r.PerSecond))
		if r.Rate > 0 {
			t.field("wanted", fmt.Sprintf("%.0f per second, %d unserved", r.Rate, r.Unserved))
		}
		t.field("latency", fmt.Sprintf("p50 %.3f ms, p99 %.3f ms, p99.9 %.3f ms, at most %.3f ms", r.P50, r.P99, r.P999,
			r.Max))
	})
}
