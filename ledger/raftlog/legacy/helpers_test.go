package legacy

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
)

// recorder is a Machine that keeps what it is given, as a state store would:
// what is durable survives a restart, what is merely applied does not.
type recorder struct {
	mu      sync.Mutex
	applied []Position
	entries [][]byte
	durable Position
	calls   int // of Apply, skipped ones included

	onApply      func(Position, []byte) any
	onCheckpoint func(Position) error
}

func (r *recorder) Apply(at Position, entry []byte) any {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if n := len(r.applied); n > 0 && at.Index <= r.applied[n-1].Index {
		return nil
	}
	if r.onApply != nil {
		if result := r.onApply(at, entry); result != nil {
			return result
		}
	}
	r.applied = append(r.applied, at)
	r.entries = append(r.entries, bytes.Clone(entry))
	return at
}

func (r *recorder) Checkpoint(at Position) error {
	if r.onCheckpoint != nil {
		if err := r.onCheckpoint(at); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.applied); n == 0 || r.applied[n-1].Index < at.Index {
		return fmt.Errorf("checkpoint at %s, before anything was applied there", at)
	}
	r.durable = at
	return nil
}

// restarted returns the machine as a crash leaves it: with what was durable.
func (r *recorder) restarted() *recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := &recorder{durable: r.durable}
	for i, at := range r.applied {
		if at.Index <= r.durable.Index {
			next.applied = append(next.applied, at)
			next.entries = append(next.entries, r.entries[i])
		}
	}
	return next
}

func (r *recorder) texts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]string, len(r.entries))
	for i, e := range r.entries {
		out[i] = string(e)
	}
	return out
}

// options returns Options for a log in dir that belongs to m.
func options(dir string, m *recorder) Options {
	return Options{
		Dir: dir, NodeID: "one", Identity: []byte("ledger-1"), Machine: m,
		Checkpoint: m.durable, SegmentBytes: 64 << 10, Logger: slog.New(slog.DiscardHandler),
	}
}

// open opens a log, waits until it is ready, and closes it with the test.
func open(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := Open(o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := l.Ready(t.Context()); err != nil {
		t.Fatalf("Ready: %v", err)
	}
	return l
}

// created opens a new log in dir.
func created(t testing.TB, dir string, m *recorder) *Log {
	t.Helper()
	o := options(dir, m)
	o.Create = true
	return open(t, o)
}

// write proposes the texts one after the other, and wants all of them committed.
func write(t testing.TB, l *Log, texts ...string) {
	t.Helper()
	proposals := make([]*Proposal, len(texts))
	for i, s := range texts {
		proposals[i] = l.Propose([]byte(s))
	}
	for i, p := range proposals {
		if _, err := p.Wait(); err != nil {
			t.Fatalf("proposal %q: %v", texts[i], err)
		}
	}
}

func numbered(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("entry-%05d", i)
	}
	return out
}

func closeLog(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

// wantDamage checks that err refuses the log and says something about it.
func wantDamage(t *testing.T, err error, found string) {
	t.Helper()
	d, ok := errors.AsType[*DamageError](err)
	if !ok {
		t.Fatalf("got %v, want a DamageError", err)
	}
	for _, part := range []string{found, "backup", "never delete"} {
		if !bytes.Contains([]byte(d.Error()), []byte(part)) {
			t.Errorf("the message lacks %q: %s", part, d)
		}
	}
}
