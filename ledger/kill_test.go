package ledger_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
)

// The kill test runs this test binary as a process of its own that opens a
// ledger, writes with several writers, and says on its standard output what was
// acknowledged. It is killed with SIGKILL at a random moment, again and again;
// then everything that was acknowledged is asked for.

const killChildEnv = "SEQLEDGER_KILL_TEST_DIR"

// shortSegmentsEnv makes log files small in this process and in its children. With -short it is set:
// a file of 64 MiB is read at each start, which takes the race detector most of the tests' time.
const shortSegmentsEnv = "SEQLEDGER_TEST_SHORT_SEGMENTS"

// children are what the test binary is in a process of its own, on the directory that a variable names.
var children = map[string]func(dir string) error{
	killChildEnv: killChild, retainChildEnv: retainChild, restoreChildEnv: restoreChild, faultChildEnv: faultChild,
	archiveChildEnv: archiveChild, dropChildEnv: dropChild, receiptChildEnv: receiptChild,
}

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		os.Setenv(shortSegmentsEnv, "1")
	}
	if os.Getenv(shortSegmentsEnv) != "" {
		ledger.SetSegmentBytes(1 << 20)
	}
	ledger.SetSealBytes(100 << 10)
	for variable, child := range children {
		if dir := os.Getenv(variable); dir != "" {
			if err := child(dir); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	os.Exit(m.Run())
}

const killWriters = 8

func killChild(dir string) error {
	l, err := ledger.Open(context.Background(), ledger.Options{
		Dir: dir, Logger: slog.New(slog.DiscardHandler),
		// Small, so that kills fall into checkpoints and truncations, too, and the
		// writes into several block files.
		CheckpointBytes: 64 << 10, LogBytes: 256 << 10,
	})
	if err != nil {
		return err
	}
	var stdout sync.Mutex
	errs := make(chan error)
	for i := range killWriters {
		// The parent ends it, by SIGKILL.
		go func() { errs <- writeForEver(l, i, &stdout) }()
	}
	return <-errs
}

func writeForEver(l *ledger.Ledger, writer int, stdout *sync.Mutex) error {
	w := killWrite(writer, 1)
	var last uint64
	err := l.View(context.Background(), func(v machine.View) error {
		s, _, err := v.Stream(w.Scope, w.ClientID)
		last = s.Last
		return err
	})
	if err != nil {
		return err
	}
	for sequence := max(last, 1); ; sequence++ { // the last one is asked for again
		out, err := l.Write(context.Background(), killWrite(writer, sequence))
		if err != nil {
			return err
		}
		if out.Code != machine.Committed && out.Code != machine.Replayed {
			return fmt.Errorf("writer %d sequence %d: %s", writer, sequence, out.Code)
		}
		stdout.Lock()
		fmt.Printf("%d %d %d\n", writer, sequence, out.Receipt.Index)
		stdout.Unlock()
	}
}

func killWrite(writer int, sequence uint64) *machine.Write {
	w := appendWrite(fmt.Sprint("writer-", writer), sequence, fmt.Appendf(nil, "%d/%d", writer, sequence))
	w.Key = machine.Key{UUID: [16]byte{byte(writer), byte(sequence >> 16), byte(sequence >> 8), byte(sequence)},
		Present: true}
	w.Operations = append(w.Operations, machine.Operation{
		Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "counter/%d", writer), Value: fmt.Appendf(nil, "%d", sequence),
	})
	return w
}

// TestInvariant2_AcknowledgedSurvivesKill: acknowledged ⇒ durable, with an
// identical receipt; and invariants 1, 3 and 8 by the audit of the whole state.
func TestInvariant2_AcknowledgedSurvivesKill(t *testing.T) {
	t.Parallel()
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	seed := must.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	acknowledged := map[[2]uint64]uint64{} // writer, sequence → ledger index
	leftovers := 0
	for round := 0; round < rounds || leftovers == 0 && !testing.Short() && round < 5*rounds; round++ {
		runAndKill(t, killChildEnv, dir, 1+random.IntN(3_000), acknowledged)
		if aheadOfCheckpoint(t, dir) {
			leftovers++
		}
	}
	if leftovers == 0 && !testing.Short() {
		t.Error("no kill came between a block and a checkpoint")
	}
	if len(acknowledged) < rounds {
		t.Fatalf("only %d writes were acknowledged: the test tested nothing", len(acknowledged))
	}
	report := must.Get(verify.Directory(t.Context(), dir, verify.Options{}))(t)
	must.Equal(t, len(report.Problems), 0, "verify %+v")
	auditAcknowledged(t, dir, acknowledged)
	t.Logf("%d acknowledged, %d transactions, %d of %d kills left blocks behind the checkpoint",
		len(acknowledged), report.Transactions, leftovers, rounds)
}

// runAndKill starts the child and kills it after some acknowledgements.
func runAndKill(t *testing.T, variable, dir string, after int, acknowledged map[[2]uint64]uint64) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), variable+"="+dir)
	var stderr strings.Builder
	child.Stderr = &stderr
	stdout := must.Get(child.StdoutPipe())(t)
	must.Do(t, child.Start())
	lines := bufio.NewReader(stdout)
	for n := 0; ; n++ {
		if n == after {
			must.Do(t, child.Process.Kill())
		}
		line, err := lines.ReadString('\n')
		if err == io.EOF { // a line that was cut off is no acknowledgement
			break
		}
		must.Do(t, err)
		var writer, sequence, index uint64
		must.Do(t, check.Err(fmt.Sscan(line, &writer, &sequence, &index)), "child said %q", line)
		if before, ok := acknowledged[[2]uint64{writer, sequence}]; ok && before != index {
			t.Fatalf("writer %d sequence %d was acknowledged at index %d, and its retry at %d", writer, sequence,
				before, index)
		}
		acknowledged[[2]uint64{writer, sequence}] = index
	}
	if err := child.Wait(); err == nil || stderr.Len() > 0 {
		t.Fatalf("child ended by itself: %v %s", err, stderr.String())
	}
}

// auditAcknowledged looks up every acknowledged write.
func auditAcknowledged(t *testing.T, dir string, acknowledged map[[2]uint64]uint64) {
	t.Helper()
	l := open(t, ledger.Options{Dir: dir})
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		for write, index := range acknowledged {
			tx, err := v.Transaction(v.TxIDAt(index))
			if err != nil {
				return fmt.Errorf("acknowledged write %v at index %d: %w", write, index, err)
			}
			want := fmt.Sprintf("%d/%d", write[0], write[1])
			if tx.Sequence != write[1] || string(tx.Operations[0].Value) != want {
				return fmt.Errorf("index %d has sequence %d payload %q, want %d %q",
					index, tx.Sequence, tx.Operations[0].Value, write[1], want)
			}
		}
		return nil
	}))
}
