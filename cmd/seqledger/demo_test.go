package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/cmd/seqledger/demo"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// startDemo starts a demo whose temporary directory is the returned one.
func startDemo(t *testing.T, args ...string) (*process, string) {
	t.Helper()
	temporary := t.TempDir()
	cmd := exec.Command(binary, append([]string{"demo"}, args...)...)
	// SEQLEDGER_LISTEN would reach the servers if the demo handed it on.
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary, "SEQLEDGER_LISTEN=nonsense")
	p := launch(t, cmd)
	return p, temporary
}

// children counts the processes that have to do with a demo's directory.
func children(t *testing.T, temporary string) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Log("only Linux lists the processes: not checked")
		return 0
	}
	paths := must.Get(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	count := 0
	for _, path := range paths {
		line, _ := os.ReadFile(path) // gone meanwhile
		if strings.Contains(string(line), temporary) {
			count++
		}
	}
	return count
}

// nothingLeft fails when a demo that has ended has left something behind.
func nothingLeft(t *testing.T, temporary string) {
	t.Helper()
	check.Equal(t, children(t, temporary), 0, "%d processes are left")
	check.Equal(t, len(must.Get(os.ReadDir(temporary))(t)), 0, "want nothing left in the temporary directory: got %v")
}

// TestDemo runs a short one with all that belongs to it: each fault and kill
// has happened, the ledger kept its word, and plain retries paid twice.
func TestDemo(t *testing.T) {
	t.Parallel()
	seed := must.Seed(t)
	// On a busy machine three seconds may be over before each fault has happened.
	for _, duration := range []string{"3s", "12s", "45s"} {
		if missing := demoOnce(t, seed, duration); missing == "" {
			return
		} else if duration == "45s" {
			t.Error(missing)
		}
	}
}

// demoOnce runs a demo and checks what it reports. It returns what has not happened, if anything.
func demoOnce(t *testing.T, seed uint64, duration string) (missing string) {
	t.Helper()
	p, temporary := startDemo(t, "--duration", duration, "--clients", "2", "--seed",
		strconv.FormatUint(seed, 10), "--json")
	if code := p.wait(t); code != exitDone {
		t.Fatalf("want exit code 0, got %d:\n%s%s", code, p.stdout.String(), p.stderr.String())
	}
	var report demo.Report
	if err := json.Unmarshal([]byte(p.stdout.String()), &report); err != nil || report.Seed != seed {
		t.Fatalf("want a report of seed %d, got %q (%v)", seed, p.stdout.String(), err)
	}
	t.Logf("protected %+v", *report.Protected)
	t.Logf("plain %+v", *report.Plain)
	one := report.Protected
	if one.Duplicates+one.Lost+one.Extra != 0 || one.Attempted != one.Acknowledged || one.Found != one.Attempted ||
		one.CentsFound != one.CentsAcknowledged {
		t.Errorf("want each payment once, got %+v", *one)
	}
	if one.Attempted == 0 || one.Retried == 0 || one.Replayed == 0 {
		missing = fmt.Sprintf("want retries that were answered with their receipts, got %+v", *one)
	}
	if report.Plain.Lost != 0 {
		t.Errorf("want nothing lost by plain retries, got %+v", *report.Plain)
	}
	if report.Plain.Duplicates == 0 || report.Plain.CentsFound <= report.Plain.CentsAcknowledged {
		missing = fmt.Sprintf("want duplicates from plain retries, got %+v", *report.Plain)
	}
	for _, c := range []*demo.Side{report.Protected, report.Plain} {
		for i, n := range []uint64{c.LostRequests, c.LostAnswers, c.Delayed, c.Twice, c.ServersKilled,
			c.ClientsKilled} {
			if n == 0 {
				missing = fmt.Sprintf("fault %d has not happened: %+v", i, *c)
			}
		}
	}
	nothingLeft(t, temporary)
	return missing
}

// TestDemoInterrupted: Ctrl-C ends everything, whenever it comes.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	for after, signal := range map[string]syscall.Signal{"seed": syscall.SIGTERM, "plain retries": syscall.SIGINT} {
		p, temporary := startDemo(t, "--duration", "1h", "--clients", "2")
		awaitLog(t, p, after)
		must.Do(t, p.cmd.Process.Signal(signal))
		if code := p.wait(t); code != exitSignal+int(signal) || p.stdout.String() != "" ||
			!strings.Contains(p.stderr.String(), "stopped by signal") {
			t.Errorf("want exit code %d, no report and why, got %d:\n%s", exitSignal+int(signal), code, p.stderr)
		}
		nothingLeft(t, temporary)
	}
}

// TestDemoKilled: the processes of a demo that is killed die with it.
func TestDemoKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere a server outlives a demo that is killed with SIGKILL")
	}
	p, temporary := startDemo(t, "--duration", "1h", "--clients", "2")
	awaitLog(t, p, "plain retries")
	if children(t, temporary) == 0 {
		t.Error("no process has to do with the demo's directory: the test says nothing")
	}
	p.kill()
	must.Await(t, func() bool { return children(t, temporary) == 0 }, "the end of its processes")
}

// TestDemoKeeps: with --keep the ledgers are there afterwards, and sound.
func TestDemoKeeps(t *testing.T) {
	t.Parallel()
	p, temporary := startDemo(t, "--duration", "1s", "--clients", "1", "--keep")
	if code := p.wait(t); code != exitDone {
		t.Fatalf("want exit code 0, got %d:\n%s", code, p.stderr.String())
	}
	_, dir, _ := strings.Cut(p.stdout.String(), "kept in ")
	dir = strings.TrimSpace(dir)
	if filepath.Dir(dir) != temporary {
		t.Fatalf("want a directory in %s, got %q in:\n%s", temporary, dir, p.stdout.String())
	}
	if !regexp.MustCompile(`payments attempted +[1-9]\d* +[1-9]`).MatchString(p.stdout.String()) {
		t.Errorf("want payments on both sides, got:\n%s", p.stdout.String())
	}
	for _, side := range []string{"protected", "plain-retries"} {
		seqledger(t, "verify", "--data", filepath.Join(dir, side, "data")).expect(t, exitDone, "problems")
	}
	for _, file := range []string{"payments", "journal"} {
		must.Get(os.Stat(filepath.Join(dir, "protected", "client-1", file)))(t)
	}
	check.Equal(t, children(t, temporary), 0, "%d processes are left")
}
