package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/internal/load"
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
	largestSlowdown      = 2   // of the p99, caused by concurrent work
	leastJournalRate     = 0.6 // the part of the rate that a journal must leave
)

const (
	// outstanding is how many writes are under way while a large ledger is measured.
	outstanding = 64
	// sustainedOutstanding is the same for the load that is sustained for a minute.
	sustainedOutstanding = 512
	// besideFor is an interval in which a load is measured beside something else.
	besideFor = 5 * time.Second
)

// scaleRows are the rows of `bench scale`.
func scaleRows() []row {
	return []row{
		{"sustained", measureSustained},
		// The same with more memory, because what a checkpoint gathers, it need not write.
		{"sustained, 512 MiB", func(ctx context.Context, b *bed) ([]harness.Line, error) {
			with := *b.o
			with.checkpointBytes = 512 << 20
			b.o = &with
			return measureSustained(ctx, b)
		}},
		{"million streams", measureMillion},
		// The same pace in large rounds, the default, and in small ones,
		// because a large round holds up the writes behind it.
		{"eviction 1000/2000", measureEviction(1_000, 2_000)},
		{"eviction 100/200", measureEviction(100, 200)},
		{"journal/1", measureJournal(1)},
		{"journal/64", measureJournal(64)},
		{"journal/256", measureJournal(256)},
		{"backup", measureBackup},
	}
}

// measureSustained writes to random entities for a minute.
func measureSustained(ctx context.Context, b *bed) ([]harness.Line, error) {
	p := newPopulation("client-", scaled(b.o, 100_000), scaled(b.o, 1_000_000))
	if err := b.startServer(ctx); err != nil {
		return nil, err
	}
	if err := p.seed(ctx, b.server.address); err != nil {
		return nil, err
	}
	m, err := p.load(ctx, b, sustainedOutstanding, b.o.warmup, scaledTime(b.o, time.Minute))
	if err != nil {
		return nil, err
	}
	p50, p99 := m.Latency.Milliseconds(50), m.p99()
	payload := float64(m.Operations * payloadBytes)
	amplification := m.Used["charged_bytes_per_write"] / payload
	wait := time.Duration(m.Latency.Max())
	return []harness.Line{
		told("writes a second", harness.Count(m.PerSecond())),
		held("longest pause between acknowledgements", inMilliseconds(m.pause), "<= 250 ms", m.pause <= largestPause),
		held("longest wait of one write", inMilliseconds(wait), "<= 250 ms", max(m.pause, wait) <= largestPause),
		told("p50", milliseconds(p50)),
		held("p99", milliseconds(p99), "<= 10 x p50", p99 <= largestSpread*p50),
		held("bytes written for a byte of payload (process)", fmt.Sprintf("%.1f", amplification), "<= 8",
			amplification <= largestAmplification),
		told("the same, as the block device counts", fmt.Sprintf("%.1f", m.Used["bytes_per_write"]/payload)),
	}, nil
}

// measureMillion opens a ledger of a million streams, after a clean stop and
// after a crash.
func measureMillion(ctx context.Context, b *bed) ([]harness.Line, error) {
	p := newPopulation("client-", scaled(b.o, 1_000_000), 0)
	if err := b.startServer(ctx); err != nil {
		return nil, err
	}
	watch := b.server.watchMemory()
	err := p.seed(ctx, b.server.address)
	filled := watch()
	if err := errors.Join(err, b.server.Stop()); err != nil {
		return nil, err
	}
	if err := b.startServer(ctx); err != nil {
		return nil, err
	}
	clean := b.server.opened
	watch = b.server.watchMemory()
	err = errors.Join(p.fillLog(ctx, b), b.server.Kill())
	used := watch()
	if err != nil {
		return nil, err
	}
	if err := b.startServer(ctx); err != nil {
		return nil, err
	}
	watch = b.server.watchMemory()
	m, err := p.load(ctx, b, outstanding, b.o.warmup, scaledTime(b.o, 10*time.Second))
	used = max(used, watch())
	if err != nil {
		return nil, err
	}
	return []harness.Line{
		told("streams", harness.Count(float64(len(p.sequences)))),
		held("open after a clean stop", inMilliseconds(clean), "< 1 s", clean < largestCleanOpen),
		held("open after kill -9 with a full log", inMilliseconds(b.server.opened), "< 10 s",
			b.server.opened < largestCrashOpen),
		told("largest RssAnon while the streams are made", mebibytes(filled)),
		held("largest RssAnon afterwards, under load", mebibytes(used), "< 512 MiB", used < largestMemory),
		told("p99 of that load", milliseconds(m.p99())),
	}, nil
}

// fillLog writes until nearly as much log waits as there may be, so that a
// start after a crash has the most to do.
func (p *population) fillLog(ctx context.Context, b *bed) error {
	const inOneMessage = 100
	want := 0.85 * float64(128<<20) * min(b.o.fraction, 1)
	lanes := openLanes(ctx, b.server.address, 1)
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
		pending, err := b.server.metric("seqledger_log_pending_bytes")
		if err != nil || pending >= want {
			return err
		}
	}
}

// measureEviction writes while a million streams expire, in rounds of so many
// entries after every so many commands.
func measureEviction(interval, limit uint64) func(context.Context, *bed) ([]harness.Line, error) {
	return func(ctx context.Context, b *bed) ([]harness.Line, error) {
		if err := b.startServer(ctx); err != nil {
			return nil, err
		}
		idle, busy := newPopulation("idle-", scaled(b.o, 1_000_000), 0), newPopulation("busy-", outstanding, 0)
		if err := idle.seed(ctx, b.server.address); err != nil {
			return nil, err
		}
		// As long as the idle streams take to be older than the TTL is to be, and
		// the same load as afterwards.
		const ttl = 2 * time.Second
		before, err := busy.load(ctx, b, outstanding, b.o.warmup, max(ttl+time.Second, scaledTime(b.o, 10*time.Second)))
		if err != nil {
			return nil, err
		}
		c, err := b.client(client.Options{})
		if err != nil {
			return nil, err
		}
		_, err = admin.UpdateConfig(ctx, c, &seqledgerv1.UpdateConfigRequest{
			ClientTtl:           durationpb.New(ttl),
			EvictionIntervalSet: &seqledgerv1.UpdateConfigRequest_EvictionInterval{EvictionInterval: interval},
			EvictionLimitSet:    &seqledgerv1.UpdateConfigRequest_EvictionLimit{EvictionLimit: limit},
		})
		if err != nil {
			return nil, err
		}
		began := time.Now()
		start, err := b.server.metric("seqledger_clients")
		if err != nil {
			return nil, err
		}
		meanwhile, err := busy.loadUntil(ctx, b, 0, func() (bool, error) { // no warm-up: eviction has begun
			left, err := b.server.metric("seqledger_clients")
			if err == nil && time.Since(began) > 10*time.Minute {
				err = fmt.Errorf("%.0f streams are left after ten minutes", left)
			}
			return left <= outstanding, err
		})
		if err != nil {
			return nil, err
		}
		p99 := meanwhile.all.Milliseconds(99)
		return []harness.Line{
			told("streams evicted", harness.Count(start-outstanding)),
			told("until the last was gone", inMilliseconds(time.Since(began))),
			told("p99 before", milliseconds(before.p99())),
			held("p99 of all writes meanwhile", milliseconds(p99), "<= 2 x before",
				p99 <= largestSlowdown*before.p99()),
			told("worst p99 of an interval meanwhile", milliseconds(meanwhile.worst)),
			told("longest pause meanwhile", inMilliseconds(meanwhile.pause)),
		}, nil
	}
}

// intervals is what a load in several intervals came to.
type intervals struct {
	all   load.Latencies
	worst float64 // p99 of an interval, in milliseconds
	pause time.Duration
}

// loadUntil loads in intervals until something else is done.
func (p *population) loadUntil(
	ctx context.Context, b *bed, warmup time.Duration, done func() (bool, error),
) (i intervals, err error) {
	i.all = load.NewLatencies()
	for {
		m, err := p.load(ctx, b, outstanding, warmup, scaledTime(b.o, besideFor))
		if err != nil {
			return i, err
		}
		i.all.Merge(m.Latency.Histogram)
		i.worst, i.pause = max(i.worst, m.p99()), max(i.pause, m.pause)
		if ended, err := done(); ended || err != nil {
			return i, err
		}
	}
}

// measureJournal compares Writers with and without a journal.
func measureJournal(writers int) func(context.Context, *bed) ([]harness.Line, error) {
	return func(ctx context.Context, b *bed) ([]harness.Line, error) {
		var found [2]load.Result
		for i, r := range []rate{{server: true, prepare: streamWrites}, {server: true, prepare: journaledWrites}} {
			err := onBed(ctx, b.o, func(ctx context.Context, b *bed) (err error) {
				found[i], err = r.measure(ctx, b, writers)
				return err
			})
			if err != nil {
				return nil, err
			}
		}
		part := found[1].PerSecond() / found[0].PerSecond()
		return []harness.Line{
			told("writes a second without", harness.Count(found[0].PerSecond())),
			told("writes a second with a journal", harness.Count(found[1].PerSecond())),
			held("part of the rate", fmt.Sprintf("%.0f %%", 100*part), ">= 60 %", part >= leastJournalRate),
		}, nil
	}
}

// measureBackup copies a ledger of a gibibyte while it is written to.
func measureBackup(ctx context.Context, b *bed) ([]harness.Line, error) {
	if err := b.startServer(ctx); err != nil {
		return nil, err
	}
	// A stream with its block, and ten entities with theirs, take some 3.5 KiB.
	streams := scaled(b.o, 1<<30/(7<<9))
	p := newPopulation("client-", streams, 10*streams)
	if err := p.seed(ctx, b.server.address); err != nil {
		return nil, err
	}
	before, err := p.load(ctx, b, outstanding, b.o.warmup, scaledTime(b.o, besideFor))
	if err != nil {
		return nil, err
	}
	c, err := b.client(client.Options{})
	if err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(b.dir, "backup"))
	if err != nil {
		return nil, err
	}
	b.later(f.Close)
	var size uint64
	copied := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Ends with the backup, or with ctx; received by loadUntil's function.
	go func() {
		info, err := admin.Backup(ctx, c, f, nil)
		size = info.Bytes
		copied <- err
	}()
	meanwhile, err := p.loadUntil(ctx, b, b.o.warmup, func() (bool, error) {
		select {
		case err := <-copied:
			return true, err
		default:
			return false, nil
		}
	})
	if err != nil {
		return nil, err
	}
	return []harness.Line{
		told("size of the backup", mebibytes(int64(size))),
		told("p99 before", milliseconds(before.p99())),
		held("worst p99 of an interval during the backup", milliseconds(meanwhile.worst), "<= 2 x before",
			meanwhile.worst <= largestSlowdown*before.p99()),
	}, nil
}
