package main

import (
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	processes "github.com/seqledger/seqledger/internal/testkit/process"
)

// under returns a program that runs the one under test after some commands of the shell.
func under(t *testing.T, commands string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "seqledger")
	must.Do(t, processes.Script(path, commands+"\nexec "+binary+" \"$@\"\n"))
	return path
}

// runs runs a program to its end.
func runs(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// mustBePrivate fails if other users have rights on something below a path.
func mustBePrivate(t *testing.T, path string, least int) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if n++; info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %v", name, info.Mode())
		}
		return nil
	})
	if err != nil || n < least {
		t.Errorf("%s: %d files: %v", path, n, err)
	}
}

// Whatever the umask is, only the owner may read what is written: of a node that began or joined a ledger, of one that
// is restored, of backups, archives, gateways and journals. What others may read is narrowed at the next start.
func TestWhatIsWrittenIsPrivate(t *testing.T) {
	t.Parallel()
	open := under(t, "umask 0")
	c := serveClusterWith(t, open, 2)
	dir := t.TempDir()
	for i := range 3 {
		c.nodes[i%2].do(t, "write", "--scope", "acme/main", "--client-id", "c", "--append", "x").expect(t, exitDone)
	}
	for _, n := range c.nodes {
		mustBePrivate(t, n.data, 6)
	}
	backup, restored := filepath.Join(dir, "backup"), filepath.Join(dir, "restored")
	runs(t, open, "backup", backup, "--server", c.nodes[0].address)
	mustBePrivate(t, backup, 1)
	runs(t, open, "restore", backup, "--data", restored)
	mustBePrivate(t, restored, 5)

	archive, alone := filepath.Join(dir, "archive"), filepath.Join(dir, "alone")
	for path, mode := range map[string]fs.FileMode{archive: 0o755, alone: 0o755} {
		must.Do(t, os.Mkdir(path, mode))
	}
	s := serveWith(t, open, alone, "127.0.0.1:0", "--archive", archive)
	s.do(t, "write", "--scope", "acme/main", "--client-id", "c", "--append", "x").expect(t, exitDone)
	mustBePrivate(t, alone, 5)
	check.Contains(t, s.stderr.String(), "narrowed", "the directory was narrowed without a word")
	s.kill()
	must.Do(t, filepath.WalkDir(alone, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(name, 0o755)
	}))
	serveWith(t, open, alone, "127.0.0.1:0", "--archive", archive)
	mustBePrivate(t, alone, 5)

	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(service.Close)
	journal, data := filepath.Join(dir, "journal"), filepath.Join(dir, "gateway")
	g := startsGateway(t, open, "--upstream", service.URL, "--journal", journal, "--data", data)
	if status, _, text := g.charge(`"k"`, "5"); status != http.StatusOK {
		t.Fatal(status, text)
	}
	mustBePrivate(t, journal, 1)
	mustBePrivate(t, data, 5)
}

// flood opens idle connections to an address until the end of the test.
func flood(t *testing.T, address string, n int) {
	t.Helper()
	for range n {
		conn, err := net.Dial("tcp", address)
		must.Do(t, err, "%v", address)
		t.Cleanup(func() { _ = conn.Close() })
	}
}

// files returns how many files a process has open.
func (p *process) files(t *testing.T) int {
	t.Helper()
	open := must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid)))(t)
	return len(open)
}

// Idle connections to all ports of a process leave files for the ledger, and room for those who ask for something.
func TestIdleConnectionsLeaveFiles(t *testing.T) {
	t.Parallel()
	const limit, reserved = 300, 100
	few := under(t, fmt.Sprint("ulimit -n ", limit))
	peer, debug := freeAddress(t), freeAddress(t)
	s := serveWith(t, few, t.TempDir(), "127.0.0.1:0", "--peer-listen", peer, "--debug-listen", debug)
	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(service.Close)
	dir, gatewayDebug := t.TempDir(), freeAddress(t)
	g := startsGateway(t, few, "--upstream", service.URL, "--journal", filepath.Join(dir, "journal"), "--data",
		filepath.Join(dir, "data"), "--ledger-listen", "127.0.0.1:0", "--debug-listen", gatewayDebug)
	ports := []string{s.address, peer, debug, g.Address, g.Ledger, gatewayDebug}
	for _, address := range ports {
		flood(t, address, limit)
	}
	get := func(address, path string) (status int) {
		must.Await(t, func() bool { // connections that have just come have a moment to ask for something
			answer, err := http.Get("http://" + address + path)
			if err == nil {
				_ = answer.Body.Close()
				status = answer.StatusCode
			}
			return err == nil
		}, address)
		return status
	}
	for address, want := range map[string]int{
		s.address: http.StatusOK, debug: http.StatusOK, g.Ledger: http.StatusOK,
		peer: http.StatusServiceUnavailable, // it answers, and refuses who is no node
	} {
		check.Equal(t, get(address, "/healthz"), want, "%s answers %d", address)
	}
	check.Equal(t, get(gatewayDebug, "/metrics"), http.StatusOK, "the gateway's metrics: %v")
	s.do(t, "write", "--scope", "acme/main", "--client-id", "c", "--append", "x").expect(t, exitDone)
	if status, _, text := g.charge(`"k"`, "5"); status != http.StatusOK {
		t.Error("the gateway answers", status, text)
	}
	for name, p := range map[string]*process{"server": s.process, "gateway": g.process} {
		if n := p.files(t); n > limit-reserved {
			t.Errorf("the %s has %d of %d files open", name, n, limit)
		}
	}
}
