package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// preloadCallers write the streams that have to be there.
const preloadCallers = 512

// preload fills every system with streams of one write each, restarts it, and
// measures 64 writers beside them.
func (f *findings) preload(ctx context.Context, s *stage, streams int) error {
	r := row{"fresh", 64, false, smallPayload}
	for _, in := range s.instances {
		if !in.kind.retries {
			continue // keeps no streams
		}
		connections, err := f.suited(ctx, s.o, in, r)
		if err != nil {
			return err
		}
		p, err := in.preloaded(ctx, s.o, r, connections, streams)
		if err != nil {
			return fmt.Errorf("%d streams: %s: %w", streams, in.kind.name, err)
		}
		f.preloaded = append(f.preloaded, p)
		s.o.notice("streams  %8d there        %-20s %9.0f/s  p50 %8.3f ms  p99 %8.3f ms", streams,
			in.kind.name, p.Throughput, p.P50, p.P99)
	}
	return nil
}

func (in *instance) preloaded(ctx context.Context, o *options, r row, connections,
	streams int) (p preloadPoint, err error) {
	at := placement{
		callers: preloadCallers, connections: min(connections, 8), pipelined: in.kind.pipelines, numbered: true,
	}
	to, err := in.system.connect(ctx, at)
	if err != nil {
		return p, err
	}
	idle := &store{first: maxWriters, replies: make([]string, streams), payload: payload(r.payload)}
	if err := errors.Join(idle.fill(ctx, to, preloadCallers), to.close()); err != nil {
		return p, err
	}
	began := time.Now()
	if err := in.system.restart(ctx); err != nil {
		return p, err
	}
	p.Restart = time.Since(began).Seconds()
	measured, err := in.measure(ctx, o, r, connections, false)
	p.System, p.Streams, p.Writers = in.kind.name, streams, r.writers
	p.Throughput, p.P50, p.P99, p.Resident = measured.perSecond, measured.p50, measured.p99, measured.resident
	return p, err
}
