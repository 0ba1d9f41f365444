package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/journal"
)

// openJournal returns a journal that all Writers of a measurement share, and a
// function that closes it.
func openJournal(dir string) (func(*client.WriterOptions), func() error, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	j, err := journal.Open(filepath.Join(dir, "journal"), journal.Options{})
	if err != nil {
		return nil, nil, err
	}
	return func(w *client.WriterOptions) { w.Journal = j }, j.Close, nil
}

// takeBackup copies the ledger of a server into a file and returns its size in
// bytes.
func takeBackup(ctx context.Context, address, file string) (bytes int64, err error) {
	c, err := client.New(client.Options{Server: address})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	f, err := os.Create(file)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := c.Backup(ctx, f, nil)
	return int64(info.Bytes), err
}

// measuredBeside is how long an interval is in which a load is measured beside
// something else.
const measuredBeside = 5 * time.Second

// leastJournalRate is the part of the rate that a journal must leave.
const leastJournalRate = 0.6

// measureJournal compares Writers with and without a journal.
func measureJournal(ctx context.Context, o *options, writers int) ([]finding, error) {
	rates := make([]float64, 2)
	for i, journaled := range []bool{false, true} {
		m, err := measureWriters(ctx, o, writers, journaled)
		if err != nil {
			return nil, err
		}
		rates[i] = float64(m.operations) / m.elapsed.Seconds()
	}
	part := rates[1] / rates[0]
	return []finding{
		{Measure: "writes a second without", Value: thousands(rates[0])},
		{Measure: "writes a second with a journal", Value: thousands(rates[1])},
		{
			Measure: "part of the rate", Value: fmt.Sprintf("%.0f %%", 100*part),
			Target: ">= 60 %", Verdict: verdict(part >= leastJournalRate),
		},
	}, nil
}

// measureBackup copies a ledger of a gibibyte while it is written to.
func measureBackup(ctx context.Context, o *options) ([]finding, error) {
	return onServer(ctx, o, func(s *process, dir string) ([]finding, error) {
		// A stream with its block, and ten entities with theirs, take some 3.5 KiB.
		streams := scaled(o, 1<<30/(7<<9))
		p := newPopulation("client-", streams, 10*streams)
		if err := p.seed(ctx, s.address); err != nil {
			return nil, err
		}
		before, err := p.load(ctx, o, s, dir, scaledTime(o, measuredBeside), lanesOfLoad)
		if err != nil {
			return nil, err
		}
		var size int64
		copied := make(chan error, 1)
		// Ends with the backup; received below.
		go func() {
			file := filepath.Join(dir, "backup")
			bytes, err := takeBackup(ctx, s.address, file)
			size = bytes
			copied <- errors.Join(err, os.Remove(file))
		}()
		var worst int64
		for done := false; !done; {
			m, err := p.load(ctx, o, s, dir, scaledTime(o, measuredBeside), lanesOfLoad)
			if err != nil {
				return nil, errors.Join(err, <-copied)
			}
			worst = max(worst, m.latency.ValueAtQuantile(99))
			select {
			case err := <-copied:
				if err != nil {
					return nil, err
				}
				done = true
			default:
			}
		}
		p99 := before.latency.ValueAtQuantile(99)
		return []finding{
			{Measure: "size of the backup", Value: mebibytes(size)},
			{Measure: "p99 before", Value: milliseconds(p99)},
			{
				Measure: "worst p99 of an interval during the backup", Value: milliseconds(worst),
				Target: "<= 2 x before", Verdict: verdict(worst <= largestSlowdown*p99),
			},
		}, nil
	})
}
