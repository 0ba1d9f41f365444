package main

import (
	"net/http"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestFault_ServerWithoutDescriptors: a server that cannot accept a connection tries again, and
// answers waiting clients as soon as it can.
func TestFault_ServerWithoutDescriptors(t *testing.T) {
	t.Parallel()
	s := serve(t, "--log-level", "debug")
	var before unix.Rlimit
	must.Do(t, unix.Prlimit(s.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &before))
	none := unix.Rlimit{Cur: 3, Max: before.Max}
	must.Do(t, unix.Prlimit(s.cmd.Process.Pid, unix.RLIMIT_NOFILE, &none, nil))
	answered := make(chan error, 1)
	// Ends with the answer, which is waited for below.
	go func() {
		response, err := http.Get("http://" + s.address + "/readyz")
		if err == nil {
			err = response.Body.Close()
		}
		answered <- err
	}()
	awaitLog(t, s.process, "too many open files")
	must.Do(t, unix.Prlimit(s.cmd.Process.Pid, unix.RLIMIT_NOFILE, &before, nil))
	must.Do(t, <-answered, "a client that waited for a descriptor")
	s.do(t, "write", "--scope", "acme", "--client-id", "c", "--append", "x").expect(t, exitDone)
}
