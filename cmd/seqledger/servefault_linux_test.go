package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestFault_ServerSaysWhatToDo lets the storage of a running server fail. The
// write that was under way ends with an unknown outcome; the server ends by
// itself, and its last line names the error and what an operator does. A new
// server answers the write with one receipt.
func TestFault_ServerSaysWhatToDo(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed, which makes system calls fail for this test: apt-get install strace")
	}
	for _, tt := range []struct{ call, errno, says, advice string }{
		{"pwrite64", "ENOSPC", "no space left on device", "make room"},
		{"fdatasync", "EIO", "input/output error", "repair the disk"},
	} {
		t.Run(tt.call+" "+tt.errno, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			write := []string{"write", "--scope", "acme", "--client-id", "c", "--append", "x", "--timeout", "5s"}
			s.do(t, write...).expect(t, exitDone)
			inject(t, strace, s, tt.call+":error="+tt.errno)
			check.Equal(t, s.do(t, write...).code, exitUnknown,
				"want exit code 4 for a write that may be on disk: got %v")
			check.Equal(t, s.wait(t), exitFailed, "exit code %d")
			lines := strings.Split(strings.TrimSpace(s.stderr.String()), "\n")
			end := lines[len(lines)-1]
			var last errorReport
			if err := json.Unmarshal([]byte(end), &last); err != nil || last.ExitCode != exitFailed {
				t.Errorf("the last line is not the error in JSON: %s (%v)", end, err)
			}
			for _, part := range []string{tt.says, ".log"} {
				if !strings.Contains(last.Error, part) {
					t.Errorf("the error lacks %q: %s", part, end)
				}
			}
			for _, part := range []string{tt.advice, s.data, "nothing that was acknowledged is lost"} {
				if !strings.Contains(last.Next, part) {
					t.Errorf("the next step lacks %q: %s", part, end)
				}
			}
			s = serveOn(t, s.data, "127.0.0.1:0")
			s.do(t, append(write, "--sequence", "1", "--json")...).expect(t, exitDone, `"replayed":true`)
			s.do(t, append(write, "--sequence", "2", "--json")...).expect(t, exitDone, `"sequence":"2"`)
			s.kill()
			seqledger(t, "verify", "--data", s.data).expect(t, exitDone, "problems")
		})
	}
}

// inject makes a running server's calls fail, and returns once it does.
func inject(t *testing.T, strace string, s *testServer, what string) {
	t.Helper()
	call, _, _ := strings.Cut(what, ":")
	tracer := exec.Command(strace, "-f", "-o", "/dev/null", "-e", "trace="+call, "-e",
		"inject="+what, "-p", strconv.Itoa(s.cmd.Process.Pid))
	said := must.Get(tracer.StderrPipe())(t)
	must.Do(t, tracer.Start())
	lines := bufio.NewReader(said)
	line, err := lines.ReadString('\n')
	if err != nil || !strings.Contains(line, "attached") {
		_ = tracer.Process.Kill()
		_ = tracer.Wait()
		t.Skipf("strace may not trace here, which makes system calls fail for this test: %q %v", line, err)
	}
	t.Cleanup(func() {
		// It ends with the server; the rest of what it says must not block it.
		_, _ = io.Copy(io.Discard, lines)
		_ = tracer.Wait()
	})
}

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
