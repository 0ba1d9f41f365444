package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"runtime"
	"slices"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/server"
)

// allowedAllocations has the accepted figures, by row.
//
//go:embed allocs.json
var allowedAllocations []byte

const allowedFile = "bench/allocs.json"

// allocationsGrow is how much larger a figure may be than the accepted one. It can be
// small because the figures vary by about a hundredth.
const allocationsGrow = 0.03

// allocRow is a way to write whose allocations do not depend on timing: the number of
// writes in a log entry is fixed.
type allocRow struct {
	name    string
	writes  int // in one operation
	prepare func(ctx context.Context, b *bed) (operation func() error, err error)
}

func allocRows() []allocRow {
	return []allocRow{
		{"engine alone", 1, engineAllocs(1)},
		{"engine 256 at once", 256, engineAllocs(256)},
		{"client and server", 1, wireAllocs(streamWrites)},
		{"unary call", 1, wireAllocs(unaryCalls(client.Options{}))},
		{"keyed pair", 1, keyedAllocs},
		{"replay", replayGroup, replayAllocs},
	}
}

// checkAllocs compares allocations per write with the committed figures. Unlike
// speed they are the same on every machine, so that CI can check them.
func checkAllocs(ctx context.Context, arguments []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("allocs", flag.ContinueOnError)
	update := flags.Bool("update", false, "write "+allowedFile+" anew")
	var o options
	flags.StringVar(&o.dir, "dir", "", "write below this directory (default: the system's temporary directory)")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	allowed := make(map[string]float64)
	if err := json.Unmarshal(allowedAllocations, &allowed); err != nil {
		return fmt.Errorf("%s: %w", allowedFile, err)
	}
	found := make(map[string]float64)
	for _, r := range allocRows() {
		n, err := r.measure(ctx, &o, 7, 40)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		found[r.name] = n
	}
	if *update {
		return harness.WriteJSON(allowedFile, found)
	}
	return judgeAllocs(stdout, found, allowed)
}

// measure returns the allocations of one write: the least of some tries, because a try may
// include a checkpoint or work of the runtime.
func (r *allocRow) measure(ctx context.Context, o *options, tries, operations int) (least float64, err error) {
	least = math.Inf(1)
	err = onBed(ctx, o, func(ctx context.Context, b *bed) error {
		if err := b.openLedger(ctx); err != nil {
			return err
		}
		operation, err := r.prepare(ctx, b)
		if err != nil {
			return err
		}
		for range tries + 1 { // the first fills pools and caches
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range operations {
				if err := errors.Join(operation(), ctx.Err()); err != nil {
					return err
				}
			}
			runtime.ReadMemStats(&after)
			least = min(least, float64(after.Mallocs-before.Mallocs)/float64(operations*r.writes))
		}
		return nil
	})
	return math.Round(least*10) / 10, err
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

// keyedAllocs has one caller that reserves a key and completes it.
func keyedAllocs(ctx context.Context, b *bed) (func() error, error) {
	pair, err := keyedPairs(ctx, b, 1)
	return func() error { return pair(ctx, 0) }, err
}

// wireAllocs has one caller: a Writer with one write in each frame, or unary calls. The server
// is in this process, so that client and server are counted together.
func wireAllocs(
	prepare func(context.Context, *bed, int) (load.Operation, error),
) func(context.Context, *bed) (func() error, error) {
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
		served := make(chan error, 1)
		// Ends with serving; received from served.
		go func() { served <- s.Serve(serving, listener) }()
		b.later(func() error {
			stop()
			return <-served
		})
		b.server = &serverProcess{address: listener.Addr().String()}
		write, err := prepare(ctx, b, 1)
		return func() error { return write(ctx, 0) }, err
	}
}

// judgeAllocs fails when a figure has grown, or when a row has no accepted figure to compare with.
func judgeAllocs(stdout io.Writer, found, allowed map[string]float64) error {
	var grown []string
	for _, name := range slices.Sorted(maps.Keys(found)) {
		limit, known := allowed[name]
		verdict := "ok"
		switch {
		case !known:
			verdict = "NOT COMMITTED"
			grown = append(grown, name+" has no committed figure")
		case found[name] > limit*(1+allocationsGrow)+0.1:
			verdict = "MORE"
			grown = append(grown, fmt.Sprintf("%s: %.1f, committed %.1f", name, found[name], limit))
		}
		if _, err := fmt.Fprintf(stdout, "%-20s %7.1f allocations per write, committed %7.1f  %s\n", name,
			found[name], limit, verdict); err != nil {
			return err
		}
	}
	if len(grown) > 0 {
		return fmt.Errorf("more allocations per write: %v; find them with go run ./bench -only engine/256 "+
			"-profile /tmp/p, "+
			"or, if they are worth it, commit the new figures with go run ./bench allocs -update and say why", grown)
	}
	return nil
}

// replayAllocs has one caller that repeats committed writes.
func replayAllocs(ctx context.Context, b *bed) (func() error, error) {
	replay, err := engineReplays(ctx, b, 1)
	return func() error { return replay(ctx, 0) }, err
}
