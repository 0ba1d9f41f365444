package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/freeport"
	"github.com/seqledger/seqledger/internal/load"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	// newNodeBytes is the size of the ledger when another node joins, in payloads of newNodePayload.
	newNodeBytes   = 1 << 30
	newNodePayload = 64 << 10
	// newNodeWriters write newNodeRate times a second meanwhile, about a tenth of the most that two nodes on one
	// machine take.
	newNodeWriters = 64
	newNodeRate    = 2_000
	// mostNewNodeMemory bounds the growth of a process's memory, mostNewNodeWait the factor of the p99.
	mostNewNodeMemory = 128 << 20
	mostNewNodeWait   = 2
	// newNodeWithin bounds the time of the node.
	newNodeWithin = 10 * time.Minute
)

// clusterRows are the rows of `bench cluster`.
func clusterRows() []row { return []row{{"a new node", measureNewNode}} }

// newNodeBed is a node that others can join, and Writers.
type newNodeBed struct {
	*bed

	binary  string
	first   string // name of the first node
	peer    string // where it is reached by others
	ledger  *client.Client
	writers []*writer.Writer
}

// measureNewNode measures what a node that joins a large ledger costs its writers.
func measureNewNode(ctx context.Context, shared *bed) ([]harness.Line, error) {
	b := &newNodeBed{bed: shared, binary: filepath.Join(shared.dir, "seqledger")}
	const program = "github.com/seqledger/seqledger/cmd/seqledger"
	if err := command(ctx, "", "go", "build", "-o", b.binary, program); err != nil {
		return nil, err
	}
	first, err := b.node(ctx, "first")
	if err != nil {
		return nil, err
	}
	bytes, err := b.fill(ctx, scaled(b.o, newNodeBytes/newNodePayload))
	if err != nil {
		return nil, err
	}
	if err := b.openWriters(ctx); err != nil {
		return nil, err
	}
	before, err := b.load(ctx, func(context.Context) error { return nil }, first.Pid)
	if err != nil {
		return nil, err
	}
	var joined time.Duration
	var second *harness.Process
	during, err := b.load(ctx, func(ctx context.Context) (err error) {
		began := time.Now()
		if second, err = b.node(ctx, "second"); err == nil {
			err = b.awaitVoters(ctx, 2)
		}
		joined = time.Since(began)
		return err
	}, first.Pid)
	if err != nil {
		return nil, err
	}
	after, err := b.load(ctx, func(context.Context) error { return nil }, second.Pid)
	if err != nil {
		return nil, err
	}
	p99 := func(l *newNodeLoad) float64 { return l.result.Latency.Milliseconds(99) }
	factor := p99(during) / p99(before)
	mebibytes := func(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }
	grown := during.memory - before.memory
	fetching := during.newest - after.memory
	return []harness.Line{
		told("in the ledger", mebibytes(bytes)),
		told("from the start of the new node to its vote", fmt.Sprintf("%.1f s, %.0f MiB/s", joined.Seconds(),
			float64(bytes>>20)/joined.Seconds())),
		told("writes a second before, meanwhile, after", fmt.Sprintf("%.0f, %.0f, %.0f", before.result.PerSecond(),
			during.result.PerSecond(), after.result.PerSecond())),
		told("p99 before, meanwhile, after", fmt.Sprintf("%.1f, %.1f, %.1f ms", p99(before), p99(during), p99(after))),
		held("p99 meanwhile, times that before", fmt.Sprintf("%.2f", factor), fmt.Sprint("≤ ", mostNewNodeWait),
			factor <= mostNewNodeWait),
		held("memory of the first node, above that before", mebibytes(grown), "≤ "+mebibytes(mostNewNodeMemory),
			grown <= mostNewNodeMemory),
		held("memory of the new node, above that afterwards", mebibytes(fetching), "≤ "+mebibytes(mostNewNodeMemory),
			fetching <= mostNewNodeMemory),
	}, nil
}

// node starts a node. All but the first one join it.
func (b *newNodeBed) node(ctx context.Context, name string) (*harness.Process, error) {
	address, err := freeport.Address()
	if err != nil {
		return nil, err
	}
	peer, err := freeport.Address()
	if err != nil {
		return nil, err
	}
	arguments := []string{
		"serve", "--data", filepath.Join(b.dir, name), "--listen", address, "--peer-listen", peer, "--no-console",
	}
	if b.peer != "" {
		token := filepath.Join(b.dir, b.first, "JOIN-TOKEN")
		arguments = append(arguments, "--join", b.peer, "--join-token-file", token)
	}
	p, _, err := harness.LaunchServer(ctx, exec.Command(b.binary, arguments...), filepath.Join(b.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	p.Signal = syscall.SIGTERM
	b.later(p.Stop)
	if b.peer == "" {
		b.peer, b.first = peer, name
		if b.ledger, err = client.New(client.Options{Server: address}); err != nil {
			return nil, err
		}
		b.later(b.ledger.Close)
	}
	return p, nil
}

// fill writes so many payloads, and returns how many bytes they have.
func (b *newNodeBed) fill(ctx context.Context, payloads int) (int64, error) {
	const writers, outstanding = 4, 8
	g, ctx := errgroup.WithContext(ctx)
	for i := range writers {
		// Ends with its share of the payloads.
		g.Go(func() error {
			id := fmt.Sprint("filler-", i)
			w, err := writer.Open(ctx, b.ledger, writer.Options{Scope: newNodeScope, ClientID: id})
			if err != nil {
				return err
			}
			var open []*writer.Pending
			for n := i; n < payloads; n += writers {
				payload := make([]byte, newNodePayload)
				copy(payload, fmt.Sprint(n))
				p, err := w.Submit(ctx, op.Append(payload))
				if err != nil {
					return err
				}
				if open = append(open, p); len(open) == outstanding {
					if _, err := open[0].Wait(ctx); err != nil {
						return err
					}
					open = open[1:]
				}
			}
			return w.Close(ctx)
		})
	}
	return int64(payloads) * newNodePayload, g.Wait()
}

var newNodeScope = &seqledgerv1.Scope{Organization: "bench", Vault: "new-node"}

func (b *newNodeBed) openWriters(ctx context.Context) error {
	for i := range newNodeWriters {
		w, err := writer.Open(ctx, b.ledger, writer.Options{Scope: newNodeScope, ClientID: fmt.Sprint("writer-", i)})
		if err != nil {
			return err
		}
		b.writers = append(b.writers, w)
	}
	return nil
}

// newNodeLoad is what was measured while something else was done.
type newNodeLoad struct {
	result load.Result
	memory int64 // the most that the processes had together, without mapped files
	newest int64 // the most that a process had that was started meanwhile, without mapped files
}

// load writes while something is done, at least for the duration of a row.
func (b *newNodeBed) load(ctx context.Context, do func(ctx context.Context) error, pids ...int) (*newNodeLoad, error) {
	var l newNodeLoad
	known := b.processes()
	const every = 50 * time.Millisecond
	largest := harness.Largest(every, func() int64 { return harness.Anonymous(pids...) })
	newest := harness.Largest(every, func() int64 {
		var most int64
		for _, pid := range b.processes() {
			if !slices.Contains(known, pid) {
				most = max(most, harness.Anonymous(pid))
			}
		}
		return most
	})
	var over atomic.Bool
	g, ctx := errgroup.WithContext(ctx)
	// Ends when do has returned and the row's time is over.
	g.Go(func() error {
		defer over.Store(true)
		began := time.Now()
		if err := do(ctx); err != nil {
			return err
		}
		load.Pause(ctx, time.Until(began.Add(b.o.duration)))
		return nil
	})
	// Ends once over is set.
	g.Go(func() (err error) {
		payload := make([]byte, 128)
		l.result, err = load.Run(ctx, load.Load{
			Workers: len(b.writers), Rate: newNodeRate, Duration: newNodeWithin,
		}, func(ctx context.Context, worker int) error {
			if over.Load() {
				return load.ErrDone
			}
			_, err := b.writers[worker].Write(ctx, op.Append(payload))
			return err
		})
		return err
	})
	err := g.Wait()
	l.memory, l.newest = largest(), newest()
	return &l, err
}

// processes returns this process and those that it has started.
func (*newNodeBed) processes() []int { return (&harness.Process{Pid: os.Getpid()}).Tree() }

// awaitVoters waits until want nodes have a vote.
func (b *newNodeBed) awaitVoters(ctx context.Context, want int) error {
	for {
		cluster, err := admin.GetCluster(ctx, b.ledger)
		if err != nil {
			return err
		}
		voters := 0
		for _, m := range cluster.Members {
			if m.Voter {
				voters++
			}
		}
		if voters == want {
			return nil
		}
		if load.Pause(ctx, 20*time.Millisecond); ctx.Err() != nil {
			return errors.Join(fmt.Errorf("%d nodes have a vote, want %d", voters, want), ctx.Err())
		}
	}
}
