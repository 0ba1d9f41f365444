package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

func TestServeReadyLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, "serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(dir, "new"))
	said := awaitOutput(t, p, "console")
	line, console, _ := strings.Cut(strings.TrimSuffix(said, "\n"), "\n")
	address, rest, _ := strings.Cut(strings.TrimPrefix(line, "serving on "), ", ")
	if strings.HasSuffix(address, ":0") || !strings.Contains(rest, dir) || !strings.Contains(rest, "ledger ") {
		t.Errorf("want a line with the real port, the directory and the ledger id, got %q", said)
	}
	if console != "console at http://"+address+"/console/" {
		t.Errorf("want a second line with the console's page, got %q", said)
	}
}

// awaitOutput polls what a process has printed until it holds a text and ends
// in a newline.
func awaitOutput(t *testing.T, p *process, text string) (out string) {
	t.Helper()
	must.Await(t, func() bool {
		ended := p.hasEnded()
		out = p.stdout.String()
		whole := strings.Contains(out, text) && strings.HasSuffix(out, "\n")
		if ended && !whole {
			t.Fatalf("the process ended with %d, stderr:\n%s", p.cmd.ProcessState.ExitCode(), p.stderr)
		}
		return whole
	}, text, p.stdout)
	return out
}

// TestServeDrains stops a server while a watch and an import are under way: it
// must end by itself, with exit code 0, and the import must be able to go on.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	s := serve(t)
	input := numberedLines(t, 20_000)
	watch := start(t, "watch", "--server", s.address, "--scope", "acme/main", "--json")
	load := start(t, importArgs(input, "--server", s.address)...)
	awaitOutput(t, watch, "transactions")
	must.Do(t, s.cmd.Process.Signal(syscall.SIGTERM))
	if code := s.wait(t); code != exitDone {
		t.Errorf("want exit code 0 after a drain, got %d, stderr:\n%s", code, s.stderr)
	}
	s = serveOn(t, s.data, s.address)
	if code := load.wait(t); code != exitDone {
		t.Errorf("want the import to go on with the new server, got exit code %d: %s", code, load.stderr)
	}
	audit(t, s, "acme/main", 20_000)
}

// busy makes a server drain for as long as the returned connection is open.
func busy(t *testing.T, s *testServer) net.Conn {
	t.Helper()
	conn := must.Get(net.Dial("tcp", s.address))(t)
	t.Cleanup(func() { _ = conn.Close() })
	must.Get(conn.Write([]byte("POST /seqledger.v1.LedgerService/Write HTTP/1.1\r\nHost: " + s.address +
		"\r\nContent-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")))(t)
	// The server asks for the body once a handler reads it: now it is under way.
	must.Get(conn.Read(make([]byte, 1)))(t)
	return conn
}

// TestServeSecondSignal holds a server up with a request that never ends, so
// that the drain lasts, and expects a later signal to cut it short.
func TestServeSecondSignal(t *testing.T) {
	t.Parallel()
	s := serve(t, "--drain-timeout", "10m")
	busy(t, s)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ended := false; !ended; {
		_ = s.cmd.Process.Signal(syscall.SIGTERM) // until it has ended
		select {
		case <-s.ended:
			ended = true
		case <-tick.C:
		}
	}
	if code := s.wait(t); code != exitSignal+15 || !strings.Contains(s.stderr.String(), "stopping") {
		t.Errorf("want exit code %d after a second signal, got %d: %s", exitSignal+15, code, s.stderr.String())
	}
}

func awaitLog(t testing.TB, p *process, text string) {
	t.Helper()
	awaitCount(t, p, text, 1)
}

// awaitCount waits until a process has logged a text n times.
func awaitCount(t testing.TB, p *process, text string, n int) {
	t.Helper()
	must.Await(t, func() bool { return strings.Count(p.stderr.String(), text) >= n }, n, text, p.stderr)
}

// TestServeRefuses covers what must keep a server from starting, each with its
// exit code and a message that says why and what to do.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	running := serve(t)
	foreign := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(foreign, "holiday.jpg"), []byte("x"), 0o600))
	file := writeFile(t, "file", "x")
	other := ledgerWithMarker(t, func(marker string) string {
		return strings.Replace(marker, `"format":1`, `"format":99`, 1)
	})
	damaged := ledgerWithMarker(t, func(marker string) string { return marker[:len(marker)/2] })
	free := "127.0.0.1:0"
	for _, test := range []struct {
		name, listen, data string
		code               int
		says               []string
	}{
		{"directory in use", free, running.data, exitFailed, []string{"in use", "stop it"}},
		{"port in use", running.address, filepath.Join(t.TempDir(), "never"), exitFailed,
			[]string{"address already in use", "another --listen"}},
		{"foreign directory", free, foreign, exitFailed, []string{"not a seqledger data directory", "holiday.jpg"}},
		{"other format", free, other, exitFailed, []string{"format version 99"}},
		{"damaged marker", free, damaged, exitFailed, []string{"damaged", "backup"}},
		{"a file", free, file, exitFailed, []string{file}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := seqledger(t, "serve", "--listen", test.listen, "--data", test.data).expect(t, test.code, test.says...)
			check.Equal(t, r.stdout, "", "want nothing on standard output: got %q")
			if test.name == "port in use" {
				if _, err := os.Stat(test.data); err == nil {
					t.Error("a ledger was created although nothing can serve it")
				}
			}
		})
	}
	seqledgerInput(t, "", "restore", "-", "--data", foreign).expect(t, exitFailed, "holiday.jpg")
	if got, _ := os.ReadDir(foreign); len(got) != 1 {
		t.Errorf("want a foreign directory left as it was, got %v", got)
	}
}

// ledgerWithMarker creates a ledger and then changes its marker file.
func ledgerWithMarker(t *testing.T, change func(string) string) string {
	t.Helper()
	s := serve(t)
	s.kill()
	path := filepath.Join(s.data, "LEDGER")
	marker := must.Get(os.ReadFile(path))(t)
	changed := change(string(marker))
	if changed == string(marker) {
		t.Fatalf("the marker %s is not what this test changes", marker)
	}
	must.Do(t, os.WriteFile(path, []byte(changed), 0o600))
	return s.data
}

func TestVerify(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.do(t, "write", "--scope", "acme", "--client-id", "a", "--append", "a payload to be found").expect(t, exitDone)
	seqledger(t, "verify", "--data", s.data).expect(t, exitFailed, "in use")
	must.Do(t, s.cmd.Process.Signal(syscall.SIGTERM))
	s.wait(t)
	r := seqledger(t, "verify", "--data", s.data, "--json").expect(t, exitDone)
	if r.field(t, "problems") != "0" || r.field(t, "transactions") != "1" || r.field(t, "ledgerId") != s.ledgerID {
		t.Errorf("want one transaction of ledger %s and no problem, got %v", s.ledgerID, r)
	}
	seqledger(t, "verify", "--data", filepath.Join(s.data, "absent")).expect(t, exitUsage, "no such file")

	// One changed byte of a payload must be found.
	path := filepath.Join(s.data, "blocks", "0000000001.blocks")
	content := must.Get(os.ReadFile(path))(t)
	changed := strings.ReplaceAll(string(content), "a payload to be found", "a payload to be Found")
	if changed == string(content) {
		t.Fatal("the payload is not in the block file")
	}
	must.Do(t, os.WriteFile(path, []byte(changed), 0o600))
	seqledger(t, "verify", "--data", s.data).expect(t, exitFailed, "block", "problems", "restore it from a backup")
}
