package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// launch starts a shell script that says when it is there.
func launch(t *testing.T, script string) *Process {
	t.Helper()
	p, line, err := LaunchServer(t.Context(), exec.Command("sh", "-c", script), filepath.Join(t.TempDir(), "log"))
	if err != nil || line != "here" {
		t.Fatalf("%q, %v", line, err)
	}
	t.Cleanup(func() {
		select {
		case <-p.ended:
		default:
			_ = p.Kill()
		}
	})
	return p
}

// TestReady: a server is asked until it answers, and one that ends meanwhile is told apart, with what it said.
func TestReady(t *testing.T) {
	t.Parallel()
	p := launch(t, "echo here; cat")
	asked := 0
	if err := p.Ready(t.Context(), func(context.Context) error {
		if asked++; asked < 3 {
			return errors.New("not yet")
		}
		return nil
	}); err != nil || asked != 3 {
		t.Errorf("%v after %d questions", err, asked)
	}
	never := func(context.Context) error { return errors.New("connection refused") }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Ready(ctx, never); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the last answer is lost: %v", err)
	}
	for code, says := range map[int]string{0: "exit status 0", 3: "exit status 3"} {
		ended := launch(t, fmt.Sprintf("echo here; echo no room >&2; exit %d", code))
		err := ended.Ready(t.Context(), never)
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "no room") ||
			strings.Contains(err.Error(), "%!") {
			t.Errorf("it ended with %d: %v", code, err)
		}
	}
}

// TestTail shows the end of a long output, and says where the output is if there is no file.
func TestTail(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	must.Do(t, os.WriteFile(log, []byte("the beginning"+strings.Repeat(".", 5000)+"the end"), 0o600))
	tail := (&Process{log: log}).Tail()
	if !strings.HasSuffix(tail, "the end") || strings.Contains(tail, "beginning") || len(tail) > 1000 {
		t.Errorf("%d bytes: %s", len(tail), tail)
	}
	check.Equal(t, new(Process).Tail(), "its output is above")
}

// TestStopWithASignal: for servers that do not end with their input.
func TestStopWithASignal(t *testing.T) {
	t.Parallel()
	p := launch(t, `trap 'kill $!; exit 0' TERM; sleep 600 & echo here; wait`)
	p.Signal = syscall.SIGTERM
	for range 2 {
		must.Do(t, p.Stop())
	}
	p = launch(t, "echo here; exec cat") // which the signal ends: that is no failure
	p.Signal = syscall.SIGTERM
	must.Do(t, p.Stop())
	must.Do(t, (*Process)(nil).Stop())
}

// TestWhatDoesNotStart leaves no process, and says why.
func TestWhatDoesNotStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	check.Is(t, check.Err(Launch(exec.Command(filepath.Join(dir, "none")), "", nil)), fs.ErrNotExist,
		"a program that is not there")
	check.Is(t, check.Err(Launch(exec.Command("true"), filepath.Join(dir, "no", "log"), nil)), fs.ErrNotExist,
		"a log that cannot be made")
	if _, _, err := LaunchServer(t.Context(), exec.Command(filepath.Join(dir, "none")), ""); err == nil {
		t.Error("a server that is not there has started")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("the test is over")
	cancel(over)
	_, _, err := LaunchServer(ctx, exec.Command("cat"), filepath.Join(dir, "log")) // it says nothing
	if !errors.Is(err, over) || !strings.Contains(err.Error(), "did not start") {
		t.Errorf("a server that was not waited for: %v", err)
	}
}

// TestTree finds the processes below one.
func TestTree(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid())); err != nil {
		t.Skip("this kernel does not tell the children of a process")
	}
	p := launch(t, "sleep 600 & echo here; cat; kill $!")
	tree := p.Tree()
	if len(tree) < 2 || tree[0] != p.Pid || slices.Contains(tree[1:], p.Pid) {
		t.Errorf("%v, of %d", tree, p.Pid)
	}
	must.Do(t, p.Stop())
}

// A process ends when it is told, as it is told, and what it has said is kept.
func TestProcess(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	p, line, err := LaunchServer(t.Context(), exec.Command("sh", "-c", "echo here; cat; echo gone >&2; exit 3"),
		log)
	if err != nil || line != "here" || len(p.Tree()) == 0 || p.Tree()[0] != p.Pid {
		t.Fatalf("got %q, %v", line, err)
	}
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("it ended with 3 after its input, got %v", err)
	}
	if p, _, err = LaunchServer(t.Context(), exec.Command("sh", "-c", "echo here; cat"), log); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil || p.Stop() != nil {
		t.Errorf("killed: %v, %v", err, p.Stop())
	}
	_, _, err = LaunchServer(t.Context(), exec.Command("sh", "-c", "echo no room >&2; exit 1"), log)
	if err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("it did not start, and the error is %v", err)
	}
}
