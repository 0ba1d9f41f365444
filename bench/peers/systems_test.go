package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// TestMain lets the test binary be the server of a system, as the harness's own
// binary is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-serve" {
		if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestSystemsDoTheSameWork holds every system that is here against the work:
// one that compared nothing, or forgot replies, would only look fast.
func TestSystemsDoTheSameWork(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			if _, err := k.version(); err != nil {
				t.Skip(err)
			}
			dir := filepath.Join(t.TempDir(), k.name)
			s := newInstance(&k, dir)
			t.Cleanup(func() {
				if err := s.stop(); err != nil {
					t.Error(err)
				}
			})
			// PostgreSQL is not root and has to reach its directory.
			for above := dir; above != os.TempDir() && above != "/"; above = filepath.Dir(above) {
				if err := os.MkdirAll(above, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(above, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(s.pids()) == 0 {
				t.Error("no process to look at")
			}
			placements := []placement{{connections: 2}}
			if k.keyed {
				samePair(t, s, placements[0])
			}
			if k.unnumbered {
				return
			}
			if k.pipelines {
				placements = append(placements, placement{connections: 1, pipelined: true})
			}
			for i, at := range placements {
				sameWork(t, s, at, 10*i)
			}
		})
	}
}

// sameWork writes two writes to a stream and asks for what must be answered and
// what must be refused, before and after a restart.
func sameWork(t *testing.T, s *instance, at placement, stream int) {
	t.Helper()
	to, err := s.connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	jobs := []*job{{stream: stream, sequence: 1, payload: payload(128)},
		{stream: stream, sequence: 2, payload: payload(4096)}}
	replies := make([]string, len(jobs))
	for i, j := range jobs {
		a, err := to.do(t.Context(), j, false)
		if err != nil || a.replayed || a.reply == "" || slices.Contains(replies[:i], a.reply) {
			t.Fatalf("write %d: %+v, %v", j.sequence, a, err)
		}
		replies[i] = a.reply
	}
	again := func(to conn, when string) {
		for i, j := range jobs {
			if a, err := to.do(t.Context(), j, true); err != nil || !a.replayed || a.reply != replies[i] {
				t.Errorf("%s: retry %d was answered with %+v, %v, want %q", when, j.sequence, a, err, replies[i])
			}
		}
	}
	again(to, "at once")
	// A Writer numbers its writes itself, and nats by subject.
	if !slices.Contains([]string{"nats", "seqledger", "seqledger-3"}, s.kind.name) {
		if a, err := to.do(t.Context(), &job{stream: stream, sequence: 4, payload: payload(128)}, false); err == nil {
			t.Errorf("a gap was answered with %+v", a)
		}
	}
	if s.kind.name != "nats" { // which compares no hash
		if a, err := to.do(t.Context(), &job{stream: stream, sequence: 2, payload: payload(129)}, true); err == nil {
			t.Errorf("another request under a sequence was answered with %+v", a)
		}
	}
	if err := to.close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.stop(), s.start(t.Context())); err != nil {
		t.Fatal(err)
	}
	if to, err = s.connect(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	again(to, "after a restart")
	if err := to.close(); err != nil {
		t.Fatal(err)
	}
}

// samePair does a keyed pair and asks for its key again: while its work is done, afterwards, and after a restart.
func samePair(t *testing.T, s *instance, at placement) {
	t.Helper()
	connect := func() keyedConn {
		to, err := s.connect(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		return to.(keyedConn)
	}
	pending := errPending
	if _, waits := s.system.(*restate); waits {
		pending = nil
	}
	stored := payload(smallPayload)
	refused := func(to keyedConn, when string, allowed error) {
		result, err := to.once(t.Context(), "key", func() []byte {
			t.Errorf("%s: the work was done again", when)
			return []byte("another")
		})
		if !errors.Is(err, allowed) || err == nil && !bytes.Equal(result, stored) {
			t.Errorf("%s: %q, %v", when, result, err)
		}
	}
	to := connect()
	var beside sync.WaitGroup
	result, err := to.once(t.Context(), "key", func() []byte {
		answered := make(chan struct{})
		beside.Go(func() {
			defer close(answered)
			refused(to, "beside the work", pending)
		})
		if pending != nil {
			<-answered
		}
		return stored
	})
	beside.Wait()
	if err != nil || !bytes.Equal(result, stored) {
		t.Fatalf("%q, %v", result, err)
	}
	refused(to, "at once", nil)
	if err := errors.Join(to.close(), s.stop(), s.start(t.Context())); err != nil {
		t.Fatal(err)
	}
	to = connect()
	refused(to, "after a restart", nil)
	if err := to.close(); err != nil {
		t.Fatal(err)
	}
}
