package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/client"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// What is asked of a large ledger.
const (
	largestPause         = 250 * time.Millisecond
	largestSpread        = 10 // p99 to p50
	largestAmplification = 8  // bytes written for a byte of payload
	largestCleanOpen     = time.Second
	largestCrashOpen     = 10 * time.Second
	largestMemory        = 512 << 20
	largestSlowdown      = 2 // of the p99, caused by concurrent work
)

// scaleRows are the rows of `bench scale`.
func scaleRows() []largeRow {
	rows := []largeRow{
		{"sustained", measureSustained},
		// The same with more memory: what a checkpoint gathers, it need not write.
		{"sustained, 512 MiB", func(ctx context.Context, o *options) ([]finding, error) {
			with := *o
			with.checkpointBytes = 512 << 20
			return measureSustained(ctx, &with)
		}},
		{"million streams", measureMillion},
	}
	// The same pace in large rounds, as is the default, and in small ones.
	for _, rounds := range []struct{ interval, limit uint64 }{{1_000, 2_000}, {100, 200}} {
		name := fmt.Sprintf("eviction %d/%d", rounds.interval, rounds.limit)
		rows = append(rows, largeRow{name, func(ctx context.Context, o *options) ([]finding, error) {
			return measureEviction(ctx, o, rounds.interval, rounds.limit)
		}})
	}
	for _, n := range []int{1, 64, 256} {
		rows = append(rows, largeRow{fmt.Sprint("journal/", n),
			func(ctx context.Context, o *options) ([]finding, error) {
				return measureJournal(ctx, o, n)
			}})
	}
	return append(rows, largeRow{"backup", measureBackup})
}

// measureSustained writes to random entities for a minute.
func measureSustained(ctx context.Context, o *options) ([]finding, error) {
	return onServer(ctx, o, func(s *process, dir string) ([]finding, error) {
		p := newPopulation("client-", scaled(o, 100_000), scaled(o, 1_000_000))
		if err := p.seed(ctx, s.address); err != nil {
			return nil, err
		}
		m, err := p.load(ctx, o, s, dir, scaledTime(o, time.Minute), sustainedLanes)
		if err != nil {
			return nil, err
		}
		p50, p99 := m.latency.ValueAtQuantile(50), m.latency.ValueAtQuantile(99)
		payload := m.operations * payloadBytes
		amplification := float64(m.written) / float64(payload)
		longest := max(m.pause, time.Duration(m.latency.Max()))
		return []finding{
			{Measure: "writes a second", Value: thousands(float64(m.operations) / m.elapsed.Seconds())},
			{
				Measure: "longest pause between acknowledgements", Value: milliseconds(int64(m.pause)),
				Target: "<= 250 ms", Verdict: verdict(m.pause <= largestPause),
			},
			{
				Measure: "longest wait of one write", Value: milliseconds(m.latency.Max()),
				Target: "<= 250 ms", Verdict: verdict(longest <= largestPause),
			},
			{Measure: "p50", Value: milliseconds(p50)},
			{
				Measure: "p99", Value: milliseconds(p99),
				Target: "<= 10 x p50", Verdict: verdict(p99 <= largestSpread*p50),
			},
			{
				Measure: "bytes written for a byte of payload (process)", Value: fmt.Sprintf("%.1f", amplification),
				Target: "<= 8", Verdict: verdict(amplification <= largestAmplification),
			},
			{
				Measure: "the same, as the block device counts",
				Value:   fmt.Sprintf("%.1f", float64(m.diskBytes)/float64(payload)),
			},
		}, nil
	})
}

// measureMillion opens a ledger of a million streams, after a clean stop and
// after a crash.
func measureMillion(ctx context.Context, o *options) ([]finding, error) {
	return inDirectory(o, func(dir string) (findings []finding, err error) {
		p := newPopulation("client-", scaled(o, 1_000_000), 0)
		filled, err := fill(ctx, o, p, dir)
		if err != nil {
			return nil, err
		}
		s, err := startServer(ctx, o, dir)
		if err != nil {
			return nil, err
		}
		clean := s.opened
		memory := s.watchMemory(ctx)
		err = errors.Join(p.fillLog(ctx, o, s), s.kill())
		used := memory.stop()
		if err != nil {
			return nil, err
		}
		if s, err = startServer(ctx, o, dir); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
		memory = s.watchMemory(ctx)
		m, err := p.load(ctx, o, s, dir, scaledTime(o, 10*time.Second), lanesOfLoad)
		used = max(used, memory.stop())
		if err != nil {
			return nil, err
		}
		return []finding{
			{Measure: "streams", Value: thousands(float64(len(p.sequences)))},
			{
				Measure: "open after a clean stop", Value: milliseconds(int64(clean)),
				Target: "< 1 s", Verdict: verdict(clean < largestCleanOpen),
			},
			{
				Measure: "open after kill -9 with a full log", Value: milliseconds(int64(s.opened)),
				Target: "< 10 s", Verdict: verdict(s.opened < largestCrashOpen),
			},
			{Measure: "largest RssAnon while the streams are made", Value: mebibytes(filled)},
			{
				Measure: "largest RssAnon afterwards, under load", Value: mebibytes(used),
				Target: "< 512 MiB", Verdict: verdict(used < largestMemory),
			},
			{Measure: "p99 of that load", Value: milliseconds(m.latency.ValueAtQuantile(99))},
		}, nil
	})
}

// fill makes the streams and stops cleanly. It returns the largest memory.
func fill(ctx context.Context, o *options, p *population, dir string) (memory int64, err error) {
	s, err := startServer(ctx, o, dir)
	if err != nil {
		return 0, err
	}
	watch := s.watchMemory(ctx)
	err = p.seed(ctx, s.address)
	memory = watch.stop()
	return memory, errors.Join(err, s.stop())
}

// fillLog writes until nearly as much log waits as there may be, so that a
// start after a crash has the most to do.
func (p *population) fillLog(ctx context.Context, o *options, s *process) error {
	const inOneMessage = 100
	want := 0.85 * float64(128<<20) * min(o.fraction, 1)
	lanes := openLanes(ctx, s.address, 1)
	defer closeLanes(lanes)
	for {
		for range 20 {
			var writes []*seqledgerv1.WriteRequest
			for range inOneMessage {
				writes = append(writes, p.random(0, 1))
			}
			if err := lanes[0].exchange(writes...); err != nil {
				return err
			}
		}
		pending, err := serverMetric(s.address, "seqledger_log_pending_bytes")
		if err != nil || pending >= want {
			return err
		}
	}
}

// measureEviction writes while a million streams expire, in rounds of so many
// entries after every so many commands.
func measureEviction(ctx context.Context, o *options, interval, limit uint64) ([]finding, error) {
	return onServer(ctx, o, func(s *process, dir string) (findings []finding, err error) {
		idle := newPopulation("idle-", scaled(o, 1_000_000), 0)
		if err := idle.seed(ctx, s.address); err != nil {
			return nil, err
		}
		busy := newPopulation("busy-", lanesOfLoad, 0)
		// As long as the idle streams take to be older than the TTL is to be, and
		// the same load as afterwards.
		const ttl = 2 * time.Second
		before, err := busy.load(ctx, o, s, dir, max(ttl+time.Second, scaledTime(o, 10*time.Second)), lanesOfLoad)
		if err != nil {
			return nil, err
		}
		c, err := client.New(client.Options{Server: s.address})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		_, err = c.UpdateConfig(ctx, &seqledgerv1.UpdateConfigRequest{
			ClientTtl:           durationpb.New(ttl),
			EvictionIntervalSet: &seqledgerv1.UpdateConfigRequest_EvictionInterval{EvictionInterval: interval},
			EvictionLimitSet:    &seqledgerv1.UpdateConfigRequest_EvictionLimit{EvictionLimit: limit},
		})
		if err != nil {
			return nil, err
		}
		return watchEviction(ctx, o, s, dir, busy, before)
	})
}

// watchEviction measures until the idle streams are gone.
func watchEviction(
	ctx context.Context, o *options, s *process, dir string, busy *population, before loaded,
) ([]finding, error) {
	began := time.Now()
	start, err := serverMetric(s.address, "seqledger_clients")
	if err != nil {
		return nil, err
	}
	timed := *o
	timed.warmup = 0 // eviction has begun
	var worst, pause int64
	all := hdrhistogram.New(minLatency, maxLatency, digits)
	for left := start; left > lanesOfLoad; {
		m, err := busy.load(ctx, &timed, s, dir, scaledTime(o, 5*time.Second), lanesOfLoad)
		if err != nil {
			return nil, err
		}
		all.Merge(m.latency)
		worst, pause = max(worst, m.latency.ValueAtQuantile(99)), max(pause, int64(m.pause))
		if left, err = serverMetric(s.address, "seqledger_clients"); err != nil {
			return nil, err
		}
		if time.Since(began) > 10*time.Minute {
			return nil, fmt.Errorf("%.0f streams are left after ten minutes", left)
		}
	}
	p99 := before.latency.ValueAtQuantile(99)
	return []finding{
		{Measure: "streams evicted", Value: thousands(start - lanesOfLoad)},
		{Measure: "until the last was gone", Value: milliseconds(int64(time.Since(began)))},
		{Measure: "p99 before", Value: milliseconds(p99)},
		{
			Measure: "p99 of all writes meanwhile", Value: milliseconds(all.ValueAtQuantile(99)),
			Target: "<= 2 x before", Verdict: verdict(all.ValueAtQuantile(99) <= largestSlowdown*p99),
		},
		{Measure: "worst p99 of an interval meanwhile", Value: milliseconds(worst)},
		{Measure: "longest pause meanwhile", Value: milliseconds(pause)},
	}, nil
}
