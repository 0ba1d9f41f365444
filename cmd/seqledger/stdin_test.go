package main

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestInterruptible: a read that waits for input ends with the context, and other reads return
// the input.
func TestInterruptible(t *testing.T) {
	t.Parallel()
	const text = "some text that is read in pieces"
	must.Do(t, iotest.TestReader(interruptible{t.Context(), strings.NewReader(text)}, []byte(text)))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		silent, end := io.Pipe()
		read := make(chan error)
		// Ends with ctx; received below.
		go func() {
			_, err := interruptible{ctx, silent}.Read(make([]byte, 10))
			read <- err
		}()
		synctest.Wait()
		cancel(interruptedError{os.Interrupt})
		check.Is(t, <-read, interruptedError{os.Interrupt}, "the read ended with")
		_ = end.Close() // and with it the read itself
	})
}

// TestSignalsEndCommands: a signal ends each command that waits for a server that
// does not answer, or for input, with the code that a shell expects.
func TestSignalsEndCommands(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code    int
		command []string
	}{
		{130, []string{"get", "k"}},
		{130, []string{"write", "--client-id", "c", "--append", "x"}},
		{exitUnknown, []string{"write", "--client-id", "c", "--append", "x", "--sequence", "3"}},
		{130, []string{"import", "--client-id", "c", numberedLines(t, 3)}},
		{exitDone, []string{"watch"}},
	} {
		t.Run(strings.Join(test.command, " "), func(t *testing.T) {
			t.Parallel()
			hole := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
			defer hole.Close()
			p := start(t, append(test.command, "--scope", "a", "--server", hole.Addr().String())...)
			conn := must.Get(hole.Accept())(t)
			defer conn.Close()
			must.Get(conn.Read(make([]byte, 1)))(t) // it asks, and gets no answer
			must.Do(t, p.cmd.Process.Signal(os.Interrupt))
			if code := p.wait(t); code != test.code ||
				test.code == 130 && !strings.Contains(p.stderr.String(), "stopped by signal: interrupt") {
				t.Errorf("want exit code %d and why, got %d: %s", test.code, code, p.stderr.String())
			}
		})
	}
	t.Run("restore", func(t *testing.T) {
		t.Parallel()
		data := filepath.Join(t.TempDir(), "restored")
		silent, end, err := os.Pipe()
		must.Do(t, err)
		defer end.Close()
		cmd := exec.Command(binary, "restore", "-", "--data", data)
		cmd.Stdin = silent
		must.Do(t, cmd.Start())
		_ = silent.Close()
		awaitFile(t, filepath.Join(data, "CREATING")) // then it reads
		must.Do(t, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait() // the exit code says it
		check.Equal(t, cmd.ProcessState.ExitCode(), 143, "want exit code 143: got %d")
	})
}

// awaitFile returns once a file is there.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	must.Await(t, func() bool { return exists(path) }, path)
}

// TestOutputLost: what was done is said where its answer could not be shown.
func TestOutputLost(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no /dev/full:", err)
	}
	defer full.Close()
	s := serve(t)
	file := filepath.Join(t.TempDir(), "auth.yaml")
	for _, test := range []struct {
		command []string
		says    []string
	}{
		{[]string{"write", "--scope", "a", "--client-id", "c", "--append", "x", "--server", s.address},
			[]string{"sequence 1 is committed", "same receipt"}},
		{[]string{"session", "open", "--scope", "a", "--client-id", "d", "--server", s.address},
			[]string{"the session is open", "--attempt-id"}},
		{[]string{"auth", "new-key", "--id", "k", "--scope", "a", "--role", "reader", "--append", file},
			[]string{"was added to " + file, "entry k"}},
	} {
		cmd := exec.Command(binary, test.command...)
		var stderr strings.Builder
		cmd.Stdout, cmd.Stderr = full, &stderr
		_ = cmd.Run() // the exit code says it
		check.Equal(t, cmd.ProcessState.ExitCode(), exitFailed, "%v: want exit code 1, got %d", test.command)
		for _, text := range append(test.says, "no space left") {
			check.Contains(t, stderr.String(), text, "%v", test.command)
		}
	}
}
