package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const payloadBytes = 128

// zeros are the payload of most writes. They are only read.
var zeros [payloadBytes]byte

// rateColumns are those of the table of rates. bench check reads the first two.
var rateColumns = harness.Columns{
	{Head: "row", Name: "row", Width: -14},
	{Head: "per second", Name: "throughput_per_s", Width: 11, Format: ","},
	{Head: "must reach", Name: "must_reach", Width: 11, Format: ","},
	{Name: "verdict", Width: -8},
	{Head: "p50 ms", Name: "p50_ms", Width: 9, Format: "%.3f"},
	{Head: "p99 ms", Name: "p99_ms", Width: 9, Format: "%.3f"},
	{Head: "p99.9 ms", Name: "p999_ms", Width: 9, Format: "%.3f"},
	{Head: "disk B/op", Name: "bytes_per_write", Width: 10, Format: "%.1f"},
	{Head: "allocs/op", Name: "allocs_per_write", Width: 10, Format: "%.1f"},
	{Head: "own µs/op", Name: "client_cpu_us_per_write", Width: 10, Format: "%.1f"},
	{Head: "server µs/op", Name: "cpu_us_per_write", Width: 12, Format: "%.1f"},
}

// rate has rows of the table of rates: one kind of operation by different numbers of workers.
type rate struct {
	kind    string
	server  bool // on a server process; else on a ledger in this process
	workers []int
	targets map[int]float64 // operations a second, by workers
	group   int64           // operations in each call; 0 is 1
	// prepare sets up the ledger, and returns the operation that each worker repeats.
	prepare func(ctx context.Context, b *bed, workers int) (load.Operation, error)
}

var rates = []rate{
	{kind: "engine", prepare: engineWrites, workers: []int{1, 16, 256},
		targets: map[int]float64{1: 8_000, 16: 50_000, 256: 200_000}},
	{kind: "replay", prepare: engineReplays, workers: []int{2}, targets: map[int]float64{2: 1_000_000},
		group: replayGroup},
	{kind: "keyed", prepare: keyedPairs, workers: []int{1, 256}, targets: map[int]float64{256: 80_000}},
	{kind: "stream", server: true, prepare: streamWrites, workers: []int{1, 2, 16, 64, 256, 1024},
		targets: map[int]float64{1: 4_500, 64: 45_000, 256: 65_000, 1024: 80_000}},
	{kind: "unary", server: true, prepare: unaryCalls(client.Options{}), workers: []int{1, 64, 256},
		targets: map[int]float64{1: 2_500, 64: 20_000, 256: 28_000}},
	{kind: "unary-h2", server: true, prepare: unaryCalls(client.Options{HTTP2: true}), workers: []int{1, 64, 256},
		targets: map[int]float64{1: 1_500, 64: 11_000, 256: 15_000}},
}

func rateRows(*options) []row {
	var rows []row
	for _, r := range rates {
		for _, n := range r.workers {
			rows = append(rows, row{fmt.Sprintf("%s/%d", r.kind, n), func(ctx context.Context, b *bed) error {
				measured, err := r.measure(ctx, b, n)
				if err != nil {
					return err
				}
				line := harness.Line{}.With(measured.Values())
				if target := r.targets[n]; target > 0 {
					line["must_reach"], line["verdict"] = target, verdict(measured.PerSecond() >= target)
				}
				return b.tell(line)
			}})
		}
	}
	return append(rows, row{"dedup-off", measureDedup})
}

// measure measures one row.
func (r *rate) measure(ctx context.Context, b *bed, workers int) (load.Result, error) {
	open := b.openLedger
	if r.server {
		open = b.startServer
	}
	if err := errors.Join(open(ctx), b.profile()); err != nil {
		return load.Result{}, err
	}
	operation, err := r.prepare(ctx, b, workers)
	if err != nil {
		return load.Result{}, err
	}
	return load.RunSome(ctx, load.Load{
		Workers: workers, Warmup: b.o.warmup, Duration: b.o.duration, Group: r.group, Meter: b.meter,
	}, operation)
}

// engineWrite returns a write of a stream to a ledger in this process.
func engineWrite(name string, stream int, sequence uint64) *machine.Write {
	w := &machine.Write{
		Scope: machine.Scope{Organization: "acme", Vault: "main"}, ClientID: fmt.Sprint(name, stream),
		Actor: "system:bench", Sequence: sequence,
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: zeros[:]}},
	}
	w.Key.Present = true
	binary.BigEndian.PutUint64(w.Key.UUID[:8], uint64(stream))
	binary.BigEndian.PutUint64(w.Key.UUID[8:], sequence)
	return w
}

// newWrites returns a write for each of n streams; next makes it the first one.
func newWrites(n int) []*machine.Write {
	writes := make([]*machine.Write, n)
	for i := range writes {
		writes[i] = engineWrite("client-", i, 0)
	}
	return writes
}

// next makes a write the one after.
func next(w *machine.Write) *machine.Write {
	w.Sequence++
	binary.BigEndian.PutUint64(w.Key.UUID[8:], w.Sequence)
	return w
}

// decided returns an error unless a command has the wanted outcome.
func decided(out machine.Outcome, err error, want machine.Code) error {
	if err == nil && out.Code != want {
		err = fmt.Errorf("%s instead of %s", out.Code, want)
	}
	return err
}

func engineWrites(_ context.Context, b *bed, workers int) (load.Operation, error) {
	writes := newWrites(workers)
	return func(_ context.Context, i int) error {
		// As a caller without a deadline calls.
		out, err := b.ledger.Write(context.Background(), next(writes[i]))
		return decided(out, err, machine.Committed)
	}, nil
}

// replayGroup is how many replays are one operation, because a clock read for each would distort the
// result.
const replayGroup = 100

// engineReplays repeats committed writes.
func engineReplays(ctx context.Context, b *bed, workers int) (load.Operation, error) {
	const streams = 1_000
	writes := newWrites(streams)
	for _, w := range writes {
		next(w)
		for range 2 { // the second fills the cache
			if _, err := b.ledger.Write(ctx, w); err != nil {
				return nil, err
			}
		}
	}
	places := make([]int, workers)
	return func(ctx context.Context, worker int) error {
		for range replayGroup {
			places[worker] += 7 // every worker walks through all streams
			out, err := b.ledger.Write(ctx, writes[places[worker]%streams])
			if err := decided(out, err, machine.Replayed); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// keyedPairs reserves a fresh key and completes it, as one operation.
func keyedPairs(_ context.Context, b *bed, workers int) (load.Operation, error) {
	response, pairs := make([]byte, payloadBytes), make([]uint64, workers)
	return func(_ context.Context, i int) error {
		c := machine.KeyedCommand{Actor: "system:bench", MaxKeys: 1 << 40, ID: machine.KeyedID{
			Scope: machine.Scope{Organization: "acme", Vault: "main"}, Namespace: "bench",
			Principal: "client:" + strconv.Itoa(i),
		}}
		pairs[i]++
		binary.BigEndian.PutUint64(c.ID.Key[:8], uint64(i))
		binary.BigEndian.PutUint64(c.ID.Key[8:16], pairs[i])
		attempt := keyed.AttemptID(c.ID.Key[:16])
		attempt[0] = 1                        // all zeros is no attempt
		c.ID.Key = sha256.Sum256(c.ID.Key[:]) // as the API has them: at random places
		c.Command = keyed.Command{
			Kind: keyed.Reserve, AttemptID: attempt, ValidUntil: time.Now().Add(time.Minute).UnixNano(),
			Lease: int64(time.Minute), TTL: int64(time.Hour),
		}
		out, err := b.ledger.Keyed(context.Background(), &c, 0, nil)
		if err := decided(out, err, machine.Keyed(keyed.Acquired)); err != nil {
			return err
		}
		c.Command = keyed.Command{Kind: keyed.Complete, AttemptID: attempt, Token: out.Keyed.Record.Token,
			Response: response}
		out, err = b.ledger.Keyed(context.Background(), &c, 0, nil)
		return decided(out, err, machine.Keyed(keyed.OK))
	}, nil
}

var benchScope = &seqledgerv1.Scope{Organization: "acme", Vault: "main"}

// streamWrites has one Writer for each worker, all over one connection.
func streamWrites(ctx context.Context, b *bed, workers int) (load.Operation, error) {
	c, err := b.client(client.Options{})
	if err != nil {
		return nil, err
	}
	writers := make([]*writer.Writer, workers)
	for i := range writers {
		o := writer.Options{Scope: benchScope, ClientID: fmt.Sprint("client-", i)}
		if writers[i], err = writer.Open(ctx, c, o); err != nil {
			return nil, err
		}
	}
	payload := op.Append(zeros[:])
	return func(ctx context.Context, i int) error {
		_, err := writers[i].Write(ctx, payload)
		return err
	}, nil
}

// unaryCalls has a caller of Client.Write for each worker, over the pool of HTTP/1.1 connections
// or over HTTP/2.
func unaryCalls(o client.Options) func(context.Context, *bed, int) (load.Operation, error) {
	return func(_ context.Context, b *bed, workers int) (load.Operation, error) {
		c, err := b.client(o)
		if err != nil {
			return nil, err
		}
		requests := make([]*seqledgerv1.WriteRequest, workers)
		for i := range requests {
			requests[i] = &seqledgerv1.WriteRequest{
				Scope: benchScope, ClientId: fmt.Sprint("client-", i),
				Operations: []*seqledgerv1.Operation{op.Append(zeros[:])},
			}
			advance(requests[i])
		}
		return func(ctx context.Context, i int) error {
			_, err := c.Write(ctx, requests[i])
			advance(requests[i])
			return err
		}, nil
	}
}

// advance makes a request the next one of its client.
func advance(w *seqledgerv1.WriteRequest) {
	w.Sequence++
	w.IdempotencyKey = fmt.Sprintf("00000000-0000-4000-8000-%012x", w.Sequence)
}
