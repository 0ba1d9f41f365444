package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

// memoryEnv has the test binary be the process of TestMemoryOfCheckpoints, on a ledger in this directory.
const memoryEnv = "SEQLEDGER_MEMORY_TEST_DIR"

func init() { children[memoryEnv] = memoryChild }

// mostMemory is what docs/operations.md promises: the memory of a process, without the pages of its files, while a
// checkpoint of a large state is written.
const (
	mostMemory = 768 << 20
	leastState = 300 << 20
)

// TestMemoryOfCheckpoints: random writes over a state that is several times as large as the changes that may wait for
// it, so that checkpoints are written all the time and in steps, stay within the promised memory.
func TestMemoryOfCheckpoints(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes five million entities")
	}
	run := runFaulty(t, nil, memoryEnv+"="+t.TempDir())
	if run.code != 0 {
		t.Fatalf("exit code %d: %s", run.code, run.said)
	}
	peak := run.acknowledged[1]
	t.Logf("%d MiB at most, with a state file of %d MiB", peak>>20, run.acknowledged[2]>>20)
	if peak > mostMemory || run.acknowledged[2] < leastState {
		t.Errorf("more than %d MiB, or a state of less than %d", mostMemory>>20, leastState>>20)
	}
}

// memoryChild writes, and prints the most memory that it had and the size of the state file.
func memoryChild(dir string) (err error) {
	debug.SetGCPercent(50) // as the command does
	ledger.SetSealBytes(64 << 20)
	var peak atomic.Int64
	o := ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)}
	l, err := ledger.Open(context.Background(), o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	const writers, perWrite, entities = 16, 500, 3_200_000
	write := func(writer int, sequence uint64, entity func(i int) int) error {
		w := appendWrite(fmt.Sprint("writer-", writer), sequence, nil)
		w.Operations = make([]machine.Operation, perWrite)
		for i := range w.Operations {
			key := fmt.Appendf(nil, "%016x", uint64(entity(i))*0x9e3779b97f4a7c15)
			w.Operations[i] = machine.Operation{Kind: machine.OpSetEntity, Key: key, Value: []byte("v")}
		}
		out, err := l.Write(context.Background(), w)
		peak.Store(max(peak.Load(), anonymousMemory()))
		if err == nil && out.Code != machine.Committed {
			err = fmt.Errorf("a write gives %v", out.Code)
		}
		return err
	}
	var group errgroup.Group
	for writer := range writers {
		group.Go(func() error {
			const filling = entities / writers / perWrite
			random := rand.New(rand.NewPCG(uint64(writer), 1))
			for n := range filling * 3 / 2 {
				err := write(writer, uint64(n+1), func(i int) int {
					if n < filling {
						return (n*writers+writer)*perWrite + i
					}
					return random.IntN(entities)
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	state, err := os.Stat(dir + "/state.db")
	if err == nil {
		fmt.Printf("1 %d\n2 %d\n", peak.Load(), state.Size())
	}
	return err
}

// anonymousMemory returns the bytes of memory that the process has and no file.
func anonymousMemory() (bytes int64) {
	status, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(status), "RssAnon:")
	_, _ = fmt.Sscan(rest, &bytes)
	return bytes << 10
}
