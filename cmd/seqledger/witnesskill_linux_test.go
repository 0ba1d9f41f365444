package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// trace attaches strace to a running process, and returns once it has.
func trace(t *testing.T, p *process, args ...string) *process {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed, which kills the process of this test at a call: apt-get install strace")
	}
	s := launch(t, exec.Command(strace, append([]string{"-f", "-y", "-p", fmt.Sprint(p.cmd.Process.Pid)}, args...)...))
	must.Await(t, func() bool { return strings.Contains(s.stderr.String(), "attached") || s.hasEnded() }, s.stderr)
	if s.hasEnded() {
		t.Skipf("strace may not trace here, which kills the process of this test at a call: %s", s.stderr)
	}
	return s
}

// TestWitnessKilled kills a witness at each call with which it stores a checkpoint. Afterwards it has the one that it
// has cosigned last, or the one that it was about to cosign, and goes on from there.
func TestWitnessKilled(t *testing.T) {
	t.Parallel()
	for _, at := range []struct {
		call, suffix string // of the path of the log's file, or / for the directory
		stored       int64
	}{
		{"openat", ".new", 10}, {"write", ".new", 10}, {"fsync", ".new", 10}, {"close", ".new", 10},
		{"renameat", ".new", 10}, {"openat", "/", 20}, {"fsync", "/", 20}, {"close", "/", 20},
	} {
		t.Run(at.call+at.suffix, func(t *testing.T) {
			t.Parallel()
			w := newWitnessed(t)
			w.start(t)
			must.Equal(t, w.add(t, 0, 10), http.StatusOK)
			state := w.args[5]
			path := state
			if at.suffix != "/" {
				files := must.Get(filepath.Glob(filepath.Join(state, strings.Repeat("?", 64))))(t)
				path = files[0] + at.suffix
			}
			trace(t, w.process, "-P", path, "-e", "trace="+at.call, "-e", "inject="+at.call+":signal=KILL")
			must.Equal(t, w.add(t, 10, 20), 0, "an answer: %d")
			w.wait(t)
			w.start(t)
			check.Equal(t, w.newest(t), at.stored)
			check.Equal(t, w.add(t, 9, 20), http.StatusConflict)
			check.Equal(t, w.add(t, at.stored, 30), http.StatusOK)
			check.Equal(t, w.newest(t), 30)
		})
	}
}

// TestWitnessStoresBeforeItAnswers looks at the order of a witness's calls: the file is synced before it gets its name,
// the directory afterwards, and then the answer is written. A start syncs the directory, too: an earlier process
// may have been killed before it did.
func TestWitnessStoresBeforeItAnswers(t *testing.T) {
	t.Parallel()
	w := newWitnessed(t)
	must.Do(t, os.Mkdir(w.args[5], 0o700))
	out := filepath.Join(t.TempDir(), "trace")
	const calls = "trace=fsync,renameat,write"
	w.start(t)
	tracer := trace(t, w.process, "-o", out, "-e", calls)
	must.Equal(t, w.add(t, 0, 10), http.StatusOK)
	w.kill()
	<-tracer.ended
	order := regexp.MustCompile(`(?s)fsync\(\d+<\S+\.new>.*renameat\(.*fsync\(\d+<\S+/state>.*write\(\d+<.*HTTP/1.1 200`)
	seen := string(must.Get(os.ReadFile(out))(t))
	check.Equal(t, order.MatchString(seen), true, "%s: %v", seen)

	w.start(t, tracer.cmd.Path, "-D", "-f", "-y", "-qq", "-o", out, "-e", calls) // the witness is the child
	order = regexp.MustCompile(`(?s)fsync\(\d+<\S+/state>.*write\(1<.*address`)
	must.Await(t, func() bool {
		seen := must.Get(os.ReadFile(out))(t)
		return order.Match(seen) || bytes.Contains(seen, []byte("write(1<"))
	}, out)
	seen = string(must.Get(os.ReadFile(out))(t))
	check.Equal(t, order.MatchString(seen), true, "%s: %v", seen)
}
