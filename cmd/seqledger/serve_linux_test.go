package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestServeStorageFailure takes the server's right to write to files away. It must end by itself, with the reason and
// what an operator does in its last line, must not acknowledge what it could not write, and must have everything that
// it had acknowledged when it starts again.
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
	lines := strings.Split(strings.TrimSpace(s.stderr.String()), "\n")
	var last errorReport // the last line, with --json
	must.Do(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
	check.Equal(t, last.ExitCode, exitFailed)
	check.Contains(t, last.Error, ".log", "the error")
	for _, part := range []string{"repair the disk", s.data, "nothing that was acknowledged is lost"} {
		check.Contains(t, last.Next, part, "the next step")
	}
	s = serveOn(t, s.data, "127.0.0.1:0")
	s.do(t, append(write, "--sequence", "1", "--json")...).expect(t, exitDone, `"replayed":true`)
	s.do(t, append(write, "--sequence", "2", "--json")...).expect(t, exitDone, `"sequence":"2"`)
}

// behindPipe is the program with a pipe for its standard error, which takes what the program says although it may not
// write to files any more.
func behindPipe(t *testing.T) (program string) {
	t.Helper()
	return under(t, `mkfifo "$0.fifo"; cat "$0.fifo" >&2 & exec 2>"$0.fifo"`)
}
