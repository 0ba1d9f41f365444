package main

import (
	"math"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestServeStorageFailure takes the server's right to write to files away. It
// must end by itself with the reason, must not acknowledge what it could not
// write, and must have everything that it had acknowledged when it starts again.
func TestServeStorageFailure(t *testing.T) {
	t.Parallel()
	s := serveWith(t, behindPipe(t), t.TempDir(), "127.0.0.1:0")
	write := []string{"write", "--scope", "acme", "--client-id", "c", "--append", "x", "--timeout", "5s"}
	s.do(t, write...).expect(t, exitDone)
	limit := unix.Rlimit{Cur: 1, Max: math.MaxUint64}
	must.Do(t, unix.Prlimit(s.cmd.Process.Pid, unix.RLIMIT_FSIZE, &limit, nil))
	failed := s.do(t, write...)
	if failed.code != exitUnknown {
		t.Errorf("want exit code 4 for a write that may be on disk, got %v", failed)
	}
	check.Equal(t, s.wait(t), exitFailed, "exit code %d")
	awaitLog(t, s.process, "repair the disk")
	s = serveOn(t, s.data, "127.0.0.1:0")
	s.do(t, append(write, "--sequence", "1", "--json")...).expect(t, exitDone, `"replayed":true`)
}

// behindPipe is the program with a pipe for its standard error, which takes what the program says although it may not
// write to files any more.
func behindPipe(t *testing.T) (program string) {
	t.Helper()
	return under(t, `mkfifo "$0.fifo"; cat "$0.fifo" >&2 & exec 2>"$0.fifo"`)
}
