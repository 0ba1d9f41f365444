package ledger_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
)

// The fault tests run this test binary as a process of its own that opens a
// ledger, writes one stream, and says on its standard output what was
// acknowledged, and on its standard error why it stopped. Faults come from
// outside: from strace, or from a file system that is really full. Afterwards
// the parent opens the directory without them and asks for everything.

const (
	faultChildEnv = "SEQLEDGER_FAULT_TEST_DIR"
	// faultBallastEnv has the child fill its file system before it writes, but
	// for so many bytes.
	faultBallastEnv = "SEQLEDGER_FAULT_TEST_LEAVE"
	faultWrites     = 60
	faultClient     = "fault"
	ballastName     = "ballast"
)

func faultOptions(dir string) ledger.Options {
	// Small, so that sixty writes make some checkpoints and truncations.
	return ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler), CheckpointBytes: 48 << 10,
		LogBytes: 64 << 10}
}

func faultWrite(sequence uint64) *machine.Write {
	payload := fmt.Appendf(nil, "%d:%s", sequence, strings.Repeat("p", 4<<10))
	return appendWrite(faultClient, sequence, payload)
}

// limitFaultChild limits what the process may take before it opens the ledger,
// on systems that have a test of it.
var limitFaultChild = func() error { return nil }

// faultChild is the process under test.
func faultChild(dir string) (err error) {
	if err := limitFaultChild(); err != nil {
		return err
	}
	l, err := ledger.Open(context.Background(), faultOptions(dir))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if leave := os.Getenv(faultBallastEnv); leave != "" {
		if err := fillDisk(filepath.Join(filepath.Dir(dir), ballastName), leave); err != nil {
			return err
		}
	}
	for sequence := uint64(1); sequence <= faultWrites; sequence++ {
		out, err := l.Write(context.Background(), faultWrite(sequence))
		if err != nil {
			return fmt.Errorf("write %d: %w", sequence, err)
		}
		if _, err := fmt.Printf("%d %d\n", sequence, out.Receipt.Index); err != nil {
			return err
		}
	}
	return nil
}

// fillDisk writes a file until there is no room, and gives some of it back.
func fillDisk(path, leave string) error {
	var room int64
	if _, err := fmt.Sscan(leave, &room); err != nil {
		return err
	}
	ballast, err := os.Create(path)
	if err != nil {
		return err
	}
	defer ballast.Close()
	for size := 64 << 10; size > 0; {
		if _, err := ballast.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	end, err := ballast.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	return ballast.Truncate(end - room)
}

// faultRun is what became of a child.
type faultRun struct {
	acknowledged map[uint64]uint64 // sequence → ledger index
	said         string            // on its standard error
	code         int
}

// runFaultChild runs the child under a command such as strace, which may be
// empty, and returns when it has ended.
func runFaultChild(t *testing.T, dir string, under []string, env ...string) faultRun {
	t.Helper()
	return runFaulty(t, under, append(env, faultChildEnv+"="+dir)...)
}

// runFaulty runs the child that the environment names.
func runFaulty(t *testing.T, under []string, env ...string) faultRun {
	t.Helper()
	argv := append(under[:len(under):len(under)], os.Args[0])
	child := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	child.Env = append(os.Environ(), env...)
	var stdout, stderr strings.Builder
	child.Stdout, child.Stderr = &stdout, &stderr
	err := child.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok || ok && exit.ExitCode() < 0 {
		t.Fatalf("%v: %v %s", argv, err, stderr.String())
	}
	run := faultRun{acknowledged: map[uint64]uint64{}, said: stderr.String(), code: child.ProcessState.ExitCode()}
	lines := bufio.NewScanner(strings.NewReader(stdout.String()))
	for lines.Scan() {
		var sequence, index uint64
		if _, err := fmt.Sscan(lines.Text(), &sequence, &index); err != nil {
			t.Fatalf("child said %q: %v", lines.Text(), err)
		}
		run.acknowledged[sequence] = index
	}
	return run
}

// wantKept opens the directory without faults and wants every acknowledged write
// with its receipt, the next one answered, and a clean verification.
func (r faultRun) wantKept(t *testing.T, dir string) {
	t.Helper()
	l := open(t, faultOptions(dir))
	last := uint64(len(r.acknowledged))
	for sequence := uint64(1); sequence <= last; sequence++ {
		out := mustWrite(t, l, faultWrite(sequence), machine.Replayed)
		if out.Receipt.Index != r.acknowledged[sequence] {
			t.Errorf("write %d was acknowledged at index %d and is at %d", sequence, r.acknowledged[sequence],
				out.Receipt.Index)
		}
	}
	// The one whose outcome nobody knows is there whole or not at all.
	out, err := l.Write(t.Context(), faultWrite(last+1))
	if err != nil || out.Code != machine.Committed && out.Code != machine.Replayed {
		t.Errorf("the repeat of write %d: %v %v", last+1, out.Code, err)
	}
	mustWrite(t, l, faultWrite(last+2), machine.Committed)
	closeLedger(t, l)
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Transactions != last+2 {
		t.Errorf("verify: %v %+v, want %d transactions", err, report, last+2)
	}
}
