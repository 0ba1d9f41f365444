package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net"
	"runtime"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/server"
)

// committedAllocations has the accepted figures, by row.
//
//go:embed allocs.json
var committedAllocations []byte

// allocationsGrow is how much larger a figure may be than the accepted one. It can be
// small because the figures vary by about a hundredth.
const allocationsGrow = 0.03

const allocsFailure = "more allocations per write: find them with go run ./bench -only engine/256 -profile /tmp/p, " +
	"or, if they are worth it, write the new figures into bench/allocs.json and say why"

var allocColumns = harness.Columns{
	{Head: "row", Name: "row", Width: -20},
	{Head: "allocs/write", Name: "allocs_per_write", Width: 12, Format: "%.1f"},
	{Head: "committed", Name: "committed", Width: 10, Format: "%.1f"},
	{Name: "verdict", Width: -8},
}

// allocRow is a way to write whose allocations do not depend on timing: the number of
// writes in a log entry is fixed.
type allocRow struct {
	name    string
	writes  int // in one operation
	prepare func(ctx context.Context, b *bed) (operation func() error, err error)
}

var allAllocRows = []allocRow{
	{"engine alone", 1, engineAllocs(1)},
	{"engine 256 at once", 256, engineAllocs(256)},
	{"client and server", 1, served(streamWrites)},
	{"unary call", 1, served(unaryCalls(client.Options{}))},
	{"keyed pair", 1, alone(keyedPairs)},
	{"replay", replayGroup, alone(engineReplays)},
}

// allocRows compare allocations per write with the committed figures. Unlike speed they are the same on every machine,
// so that CI can check them.
func allocRows(*options) []row {
	var rows []row
	for _, r := range allAllocRows {
		rows = append(rows, row{r.name, func(ctx context.Context, b *bed) error {
			var committed map[string]float64
			if err := json.Unmarshal(committedAllocations, &committed); err != nil {
				return err
			}
			n, err := r.measure(ctx, b)
			if err != nil {
				return err
			}
			most := committed[r.name]
			return b.tell(harness.Line{
				"allocs_per_write": n, "committed": most, "verdict": verdict(acceptable(n, most)),
			})
		}})
	}
	return rows
}

// acceptable reports whether a figure has not grown beyond the committed one, which is 0 where there is none.
func acceptable(found, committed float64) bool {
	return committed > 0 && found <= committed*(1+allocationsGrow)+0.1
}

// measure returns the allocations of one write: the least of some tries, because a try may
// include a checkpoint or work of the runtime.
func (r *allocRow) measure(ctx context.Context, b *bed) (float64, error) {
	if err := b.openLedger(ctx); err != nil {
		return 0, err
	}
	operation, err := r.prepare(ctx, b)
	if err != nil {
		return 0, err
	}
	least, operations := math.Inf(1), scaled(b.o, 40)
	for range scaled(b.o, 7) + 1 { // the first fills pools and caches
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range operations {
			if err := errors.Join(operation(), ctx.Err()); err != nil {
				return 0, err
			}
		}
		runtime.ReadMemStats(&after)
		least = min(least, float64(after.Mallocs-before.Mallocs)/float64(operations*r.writes))
	}
	return math.Round(least*10) / 10, nil
}

// engineAllocs submits one write of each of several streams together.
func engineAllocs(together int) func(context.Context, *bed) (func() error, error) {
	return func(ctx context.Context, b *bed) (func() error, error) {
		writes, commands := newWrites(together), make([]machine.Command, together)
		var memory []byte
		return func() (err error) {
			memory = memory[:0]
			for i, w := range writes {
				if commands[i], memory, err = next(w).Encode(memory); err != nil {
					return err
				}
			}
			submission, err := b.ledger.Submit(ctx, commands)
			if err != nil {
				return err
			}
			outcomes, err := submission.Wait(ctx)
			if err != nil {
				return err
			}
			return decided(outcomes[0], nil, machine.Committed)
		}, nil
	}
}

// preparation is that of a rate, whose first worker is the one caller here.
type preparation func(ctx context.Context, b *bed, workers int) (load.Operation, error)

// alone has one caller of a ledger in this process.
func alone(prepare preparation) func(context.Context, *bed) (func() error, error) {
	return func(ctx context.Context, b *bed) (func() error, error) {
		operation, err := prepare(ctx, b, 1)
		return func() error { return operation(ctx, 0) }, err
	}
}

// served has one caller of a server, a Writer with one write in each frame, or unary calls. The server is in this
// process, so that client and server are counted together.
func served(prepare preparation) func(context.Context, *bed) (func() error, error) {
	return func(ctx context.Context, b *bed) (func() error, error) {
		s, err := server.New(server.Options{Ledger: b.ledger, Version: "bench", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, err
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		serving, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		// Ends with serving; received from ended.
		go func() { ended <- s.Serve(serving, listener) }()
		b.later(func() error {
			stop()
			return <-ended
		})
		b.server = &serverProcess{address: listener.Addr().String()}
		return alone(prepare)(ctx, b)
	}
}
