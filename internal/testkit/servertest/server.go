package servertest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

// Server is a server of a test. Its methods fail the test.
type Server struct {
	URL     string // for clients
	Address string // host and port
	Dir     string // its files

	t       testing.TB
	process *process.Process
	command func() *exec.Cmd
	user    *syscall.Credential
	// children is true if the server has child processes.
	children bool
	answers  func(ctx context.Context) error
}

// required is read at the start, because tests of commands clear such variables.
var required = os.Getenv("SEQLEDGER_TEST_SERVERS") == "1"

// missing ends a test whose server is not installed.
func missing(t testing.TB, what, install string) {
	t.Helper()
	if required {
		t.Fatalf("SEQLEDGER_TEST_SERVERS=1, and there is no %s: %s", what, install)
	}
	t.Skipf("skipped: there is no %s; %s", what, install)
}

// newServer makes a directory and takes a port.
func newServer(t testing.TB, name string, credential *syscall.Credential) *Server {
	t.Helper()
	// Not t.TempDir, which other users cannot enter.
	dir, err := os.MkdirTemp("", "seqledger-"+name+"-")
	if err != nil {
		t.Fatal(err)
	}
	if credential != nil {
		if err := os.Chown(dir, int(credential.Uid), int(credential.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	s := &Server{Dir: dir, t: t, user: credential}
	if s.Address, err = freeport.Address(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.process != nil {
			s.end()
		}
		if t.Failed() && s.process != nil {
			t.Logf("%s: %s", name, s.process.Tail())
		}
		_ = os.RemoveAll(dir)
	})
	return s
}

// end ends the server for good; its data is thrown away.
func (s *Server) end() {
	if s.children {
		_ = s.process.Stop() // which waits for them: they would write to the directory while it is removed
		return
	}
	_ = s.process.Kill()
}

func (s *Server) port() string {
	_, port, _ := net.SplitHostPort(s.Address) // our own
	return port
}

// Start starts the server, again after Kill, and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	for deadline := time.Now().Add(process.StartsWithin); ; {
		process, err := process.Launch(s.command(), filepath.Join(s.Dir, "log"), s.user)
		if err != nil {
			s.t.Fatal(err)
		}
		process.Signal = syscall.SIGQUIT // to PostgreSQL: at once
		s.process = process
		if err = process.Ready(s.t.Context(), s.answers); err == nil {
			return
		}
		// After a kill, children of the last process may still hold its memory for a moment.
		if time.Now().After(deadline) || s.t.Context().Err() != nil {
			s.t.Fatal(err)
		}
	}
}

// Kill ends the server like a crash (kill -9).
func (s *Server) Kill() {
	s.t.Helper()
	// Its processes would continue to answer for a moment. A parent that is stopped starts no others, and does not reap
	// them, so that their ids go to no other process. It may have ended.
	if s.children && syscall.Kill(s.process.Pid, syscall.SIGSTOP) == nil {
		for _, child := range s.process.Tree()[1:] {
			_ = syscall.Kill(child, syscall.SIGKILL) // it may have ended
		}
	}
	_ = s.process.Kill() // it may have ended
}

// Pid returns the id of the server's process.
func (s *Server) Pid() int { return s.process.Pid }

// Pause stops the server without ending it, with all its processes, until Continue.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Continue ends Pause.
func (s *Server) Continue() { s.signal(syscall.SIGCONT) }

// signal sends a signal to the server, and then to its processes, which it cannot start or reap while it is stopped.
func (s *Server) signal(signal syscall.Signal) {
	s.t.Helper()
	if err := syscall.Kill(s.process.Pid, signal); err != nil {
		s.t.Error(err)
	}
	if s.children {
		for _, child := range s.process.Tree()[1:] {
			_ = syscall.Kill(child, signal) // it may have ended
		}
	}
}

// dials is an answers function for servers that are ready when they accept connections.
func (s *Server) dials(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Address, err)
	}
	return conn.Close()
}
