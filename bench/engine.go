package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

const payloadBytes = 128

// withLedger runs a measurement on a ledger in a directory of its own.
func withLedger(ctx context.Context, o *options,
	measure func(l *ledger.Ledger, dir string) (result, error)) (r result, err error) {
	dir, err := os.MkdirTemp(o.dir, "seqledger-bench-*")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := ledger.Open(ctx, ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	stopProfile, err := startProfile(o.profile)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stopProfile()) }()
	return measure(l, dir)
}

// writer is one client's next write.
type writer struct {
	write machine.Write
}

func newWriters(n int) []writer {
	writers := make([]writer, n)
	for i := range writers {
		w := &writers[i].write
		w.Scope = machine.Scope{Organization: "acme", Vault: "main"}
		w.ClientID, w.Actor = fmt.Sprint("client-", i), "system:bench"
		w.Operations = []machine.Operation{{Kind: machine.OpAppend, Value: make([]byte, payloadBytes)}}
		w.Key.Present = true
		binary.BigEndian.PutUint64(w.Key.UUID[:8], uint64(i))
	}
	return writers
}

// next makes the write the one after.
func (w *writer) next() *machine.Write {
	w.write.Sequence++
	binary.BigEndian.PutUint64(w.write.Key.UUID[8:], w.write.Sequence)
	return &w.write
}

func measureEngine(ctx context.Context, o *options, r *row) (result, error) {
	return withLedger(ctx, o, func(l *ledger.Ledger, dir string) (result, error) {
		writers := newWriters(r.concurrent)
		return drive(ctx, o, r.concurrent, func(_ context.Context, i int) error {
			// Like a caller without a deadline.
			out, err := l.Write(context.Background(), writers[i].next())
			if err == nil && out.Code != machine.Committed {
				err = errors.New(out.Code.String())
			}
			return err
		}, sampler(dir))
	})
}

// measureReplay repeats committed writes.
func measureReplay(ctx context.Context, o *options, r *row) (result, error) {
	return withLedger(ctx, o, func(l *ledger.Ledger, dir string) (result, error) {
		const streams = 1_000
		writers := newWriters(streams)
		for i := range writers {
			for range 2 { // the second fills the cache
				writers[i].write.Sequence = 0
				if _, err := l.Write(ctx, writers[i].next()); err != nil {
					return result{}, err
				}
			}
		}
		// A clock read for each replay would distort the result, so an operation is a hundred
		// replays.
		const group = 100
		next := make([]int, r.concurrent)
		measured, err := drive(ctx, o, r.concurrent, func(ctx context.Context, worker int) error {
			for range group {
				next[worker] += 7 // every worker walks through all streams
				out, err := l.Write(ctx, &writers[next[worker]%streams].write)
				if err != nil || out.Code != machine.Replayed {
					return fmt.Errorf("replay: %s %w", out.Code, err)
				}
			}
			return nil
		}, sampler(dir))
		measured.operations *= group
		return measured, err
	})
}
