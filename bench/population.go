package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// population is many clients, each with a stream of its own, and the entities
// that they write.
type population struct {
	prefix    string // of the client ids
	entities  int    // 0: they append instead
	sequences []uint64
}

func newPopulation(prefix string, streams, entities int) *population {
	return &population{prefix: prefix, entities: entities, sequences: make([]uint64, streams)}
}

// write returns the next write of a client. Only one goroutine may ask for the
// writes of a client.
func (p *population) write(client int, operations ...*seqledgerv1.Operation) *seqledgerv1.WriteRequest {
	p.sequences[client]++
	sequence := p.sequences[client]
	return &seqledgerv1.WriteRequest{
		Scope: benchScope, ClientId: fmt.Sprint(p.prefix, client), Sequence: sequence,
		IdempotencyKey: fmt.Sprintf("00000000-0000-4000-8000-%012x", sequence), Operations: operations,
	}
}

func (p *population) set(entity int) *seqledgerv1.Operation {
	return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_SetEntity{SetEntity: &seqledgerv1.SetEntity{
		Key: fmt.Sprintf("account/%08d", entity), Value: make([]byte, payloadBytes),
	}}}
}

// random returns the next write of a random client of a worker's share, to a
// random entity.
func (p *population) random(worker, workers int) *seqledgerv1.WriteRequest {
	share := (len(p.sequences) - worker + workers - 1) / workers
	client := worker + workers*rand.IntN(share)
	if p.entities == 0 {
		return p.write(client, operation())
	}
	return p.write(client, p.set(rand.IntN(p.entities)))
}

// lanesOfLoad is how many writes are outstanding while a large ledger is
// measured.
const lanesOfLoad = 64

// sustainedLanes is the same for the load that is sustained for a minute.
const sustainedLanes = 512

// seed makes every client write once, so that every stream and every entity is
// there.
func (p *population) seed(ctx context.Context, address string) error {
	const inOneMessage = 250
	lanes := openLanes(ctx, address, 16)
	defer closeLanes(lanes)
	group, ctx := errgroup.WithContext(ctx)
	perClient := 0
	if p.entities > 0 {
		perClient = (p.entities + len(p.sequences) - 1) / len(p.sequences)
	}
	for worker, l := range lanes {
		// Ends with its clients; joined by Wait.
		group.Go(func() error {
			var writes []*seqledgerv1.WriteRequest
			for client := worker; client < len(p.sequences) && ctx.Err() == nil; client += len(lanes) {
				operations := []*seqledgerv1.Operation{operation()}
				for i := range perClient {
					operations = append(operations[:i], p.set((client*perClient+i)%p.entities))
				}
				writes = append(writes, p.write(client, operations...))
				if len(writes) == inOneMessage || client+len(lanes) >= len(p.sequences) {
					if err := l.exchange(writes...); err != nil {
						return fmt.Errorf("seed: %w", err)
					}
					writes = writes[:0]
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// loaded is what a load of single writes came to.
type loaded struct {
	result

	pause   time.Duration // the longest between two acknowledgements
	written int64         // bytes, by the server process
}

// load has every lane write one write after another, for a time.
func (p *population) load(
	ctx context.Context, o *options, s *process, dir string, d time.Duration, outstanding int,
) (m loaded, err error) {
	lanes := openLanes(ctx, s.address, min(outstanding, len(p.sequences)))
	defer closeLanes(lanes)
	gaps := newPauses()
	disk := sampler(dir)
	var written [2]int64
	samples := 0
	timed := *o
	timed.duration = d
	m.result, err = drive(ctx, &timed, len(lanes), func(_ context.Context, worker int) error {
		err := lanes[worker].exchange(p.random(worker, len(lanes)))
		gaps.acknowledged()
		return err
	}, func() (counters, error) { // before the measurement, and after it
		if samples == 0 {
			gaps.restart()
		} else {
			m.pause = time.Duration(gaps.longest.Load())
		}
		bytes, err := s.written()
		written[samples] = bytes
		samples++
		c, diskErr := disk()
		return c, errors.Join(err, diskErr)
	})
	m.written = written[1] - written[0]
	return m, err
}

// scaled returns a part of the full size.
func scaled(o *options, n int) int { return max(1, int(float64(n)*o.fraction)) }

// scaledTime is the same for a time, but not so short that nothing happens.
func scaledTime(o *options, d time.Duration) time.Duration {
	return min(d, max(300*time.Millisecond, time.Duration(float64(d)*o.fraction)))
}

// inDirectory runs something with a data directory that is removed afterwards.
func inDirectory(o *options, run func(dir string) ([]finding, error)) (findings []finding, err error) {
	dir, err := os.MkdirTemp(o.dir, "seqledger-bench-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return run(dir)
}

// onServer is inDirectory with a server on a new ledger.
func onServer(ctx context.Context, o *options, run func(s *process, dir string) ([]finding, error)) ([]finding, error) {
	return inDirectory(o, func(dir string) (findings []finding, err error) {
		s, err := startServer(ctx, o, dir)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
		return run(s, dir)
	})
}
