package main

import (
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestServeStorageFailure takes the server's right to write to files away. It
// must end by itself with the reason, must not acknowledge what it could not
// write, and must have everything that it had acknowledged when it starts again.
func TestServeStorageFailure(t *testing.T) {
	t.Parallel()
	s := serve(t)
	write := []string{"write", "--scope", "acme", "--client-id", "c", "--append", "x", "--timeout", "5s"}
	s.do(t, write...).expect(t, exitDone)
	limit := unix.Rlimit{Cur: 1, Max: math.MaxUint64}
	must.Do(t, unix.Prlimit(s.cmd.Process.Pid, unix.RLIMIT_FSIZE, &limit, nil))
	failed := s.do(t, write...)
	if failed.code != exitUnknown {
		t.Errorf("want exit code 4 for a write that may be on disk, got %v", failed)
	}
	if code := s.wait(t); code != exitFailed || !strings.Contains(s.stderr.String(), "repair the disk") {
		t.Errorf("want exit code 1 and what to do, got %d: %s", code, s.stderr.String())
	}
	s = serveOn(t, s.data, "127.0.0.1:0")
	s.do(t, append(write, "--sequence", "1", "--json")...).expect(t, exitDone, `"replayed":true`)
}
