package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

var errDisk = errors.New("input/output error")

// recorder is a Machine that records its input like a state store: durable state survives a restart, state that is only
// applied does not.
type recorder struct {
	mu      sync.Mutex
	applied []Position
	entries []string
	durable Position

	onApply func(entry string)
	hung    chan struct{} // Apply waits for it; nil: it does not
}

// hang makes Apply wait for a channel.
func (r *recorder) hang(until chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hung = until
}

func (r *recorder) Apply(at Position, entry []byte) any {
	if r.onApply != nil {
		r.onApply(string(entry))
	}
	r.mu.Lock()
	hung := r.hung
	r.mu.Unlock()
	if hung != nil {
		<-hung
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.applied); n > 0 && at.Index <= r.applied[n-1].Index {
		panic(fmt.Sprintf("entry %s is applied behind %s", at, r.applied[n-1]))
	}
	r.applied, r.entries = append(r.applied, at), append(r.entries, string(entry))
	return "result of " + string(entry)
}

// checkpoint makes everything applied up to a position durable.
func (r *recorder) checkpoint(at Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.durable = at
}

// truncate makes the machine's state durable, and drops the log up to there.
func (r *recorder) truncate(l *Log) error {
	at := l.Covered()
	r.checkpoint(at)
	return l.Truncate(at.Index)
}

// restarted returns the machine after a crash, with its durable state only.
func (r *recorder) restarted() *recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := &recorder{durable: r.durable}
	for i, at := range r.applied {
		if at.Index <= r.durable.Index {
			next.applied, next.entries = append(next.applied, at), append(next.entries, r.entries[i])
		}
	}
	return next
}

func (r *recorder) texts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.entries)
}

const testSegmentBytes = 16 << 10

var testIdentity = []byte("ledger-1")

// options returns the Options of a log in dir that belongs to m.
func options(dir string, m *recorder) Options {
	return Options{
		Dir: dir, Identity: testIdentity, Machine: m, Checkpoint: m.durable,
		SegmentBytes: testSegmentBytes, Logger: slog.New(slog.DiscardHandler),
	}
}

// open opens a log, waits until it is ready, and closes it when the test ends.
func open(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := Open(o)
	must.Do(t, err, "Open")
	t.Cleanup(func() { _ = l.Close() })
	must.Do(t, l.Ready(t.Context()), "Ready")
	return l
}

// created creates a log in dir and opens it.
func created(t testing.TB, dir string, m *recorder) *Log {
	t.Helper()
	o := options(dir, m)
	o.Create = true
	return open(t, o)
}

// onDisk returns the Options of a log on a disk in memory that belongs to m.
func onDisk(d segment.Disk, m *recorder) Options {
	o := options("in memory", m)
	o.disk = func(string) segment.Disk { return d }
	o.setDefaults()
	return o
}

var sole = Members{Voters: []uint64{1}, Highest: 1}

// createOn creates a log on a disk.
func createOn(t testing.TB, d segment.Disk, members Members) {
	t.Helper()
	o := onDisk(d, &recorder{})
	must.Do(t, segment.Create(o.segments(false), segment.Checkpoint{Data: members.Encode()}, State{}))
}

// startOn opens the log on a disk. The test closes it when it ends.
func startOn(t testing.TB, d segment.Disk, m *recorder, change func(*Options)) *Log {
	t.Helper()
	o := onDisk(d, m)
	if change != nil {
		change(&o)
	}
	files := must.Get(segment.Open(o.segments(false)))(t)
	members := must.Get(mustFit(&o, files))(t)
	l := must.Get(start(o, files, members))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// started creates a log on a disk and starts its sole voter.
func started(t testing.TB, d segment.Disk, m *recorder, change func(*Options)) *Log {
	t.Helper()
	createOn(t, d, sole)
	l := startOn(t, d, m, change)
	must.Do(t, l.Ready(t.Context()))
	return l
}

// write proposes the texts one after the other, and wants all of them committed.
func write(t testing.TB, l *Log, texts ...string) {
	t.Helper()
	proposals := make([]*Proposal, len(texts))
	for i, s := range texts {
		proposals[i] = l.ProposeIn(l.Role().Term, []byte(s))
	}
	for i, p := range proposals {
		if result, err := p.Wait(); err != nil || result != "result of "+texts[i] {
			t.Fatalf("proposal %q: %v, %v", texts[i], result, err)
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
	must.Do(t, l.Close(), "Close")
}

// copyOf returns a copy of a directory, which is what a crash at this moment leaves.
func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	must.Do(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

// wantDamage checks that err refuses the log and that its message contains found.
func wantDamage(t *testing.T, err error, found string) {
	t.Helper()
	d, ok := errors.AsType[*DamageError](err)
	if !ok || !IsDamage(err) {
		t.Fatalf("got %v, want a DamageError", err)
	}
	for _, part := range []string{found, "backup", "never delete"} {
		if !bytes.Contains([]byte(d.Error()), []byte(part)) {
			t.Errorf("the message lacks %q: %s", part, d)
		}
	}
}
