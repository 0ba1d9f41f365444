package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestLogLives: after a stop and after a crash, the acknowledged entries after the state store's position are applied
// again. Terms rise and indexes continue.
func TestLogLives(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	m := &recorder{}
	l := created(t, dir, m)
	texts := numbered(60)
	write(t, l, texts[:20]...)
	before := l.Role()
	if !before.Leads || before.Term == 0 {
		t.Errorf("the role is %+v", before)
	}
	must.Do(t, l.ReadBarrier(t.Context()))
	closeLog(t, l)
	check.Is(t, check.Err(l.ProposeIn(l.Role().Term, []byte("x")).Wait()), ErrClosed, "a proposal to a closed log")
	m.durable = m.applied[9]
	m = m.restarted()
	l = open(t, options(dir, m))
	if fmt.Sprint(m.texts()) != fmt.Sprint(texts[:20]) {
		t.Fatalf("after a stop the log has %s", m.texts())
	}
	if after := l.Role(); after.Term <= before.Term {
		t.Errorf("term %d follows term %d", after.Term, before.Term)
	}
	write(t, l, texts[20:]...)
	crashed := copyOf(t, dir)
	closeLog(t, l)
	m = m.restarted()
	l = open(t, options(crashed, m))
	if fmt.Sprint(m.texts()) != fmt.Sprint(texts) {
		t.Fatalf("after a crash the log has %s", m.texts())
	}
	closeLog(t, l)
	read := []string{}
	o := Options{Dir: crashed, Identity: testIdentity, Checkpoint: m.durable}
	err := Read(o, func(at Position, entry []byte, decided bool) error {
		if at.Index <= m.durable.Index || at.Term == 0 || !decided {
			t.Errorf("entry %q at %s", entry, at)
		}
		read = append(read, string(entry))
		return nil
	})
	if err != nil || fmt.Sprint(read) != fmt.Sprint(texts[10:]) {
		t.Errorf("read %v, %v", read, err)
	}
}

// TestTruncate: files are removed that have nothing after what the machine has made durable, and no others.
func TestTruncate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	m := &recorder{}
	l := created(t, dir, m)
	long := strings.Repeat("x", 1<<10)
	for i := range 100 {
		write(t, l, fmt.Sprint(i, long))
	}
	files := func() int {
		names := must.Get(filepath.Glob(filepath.Join(dir, segmentsDir, "*.log")))(t)
		return len(names)
	}
	before := files()
	if before < 5 || l.BytesSinceTruncate() < 100<<10 {
		t.Fatalf("%d files, %d bytes", before, l.BytesSinceTruncate())
	}
	if err := l.Truncate(m.applied[10].Index); err != nil || files() >= before || files() == 1 {
		t.Errorf("behind the tenth of 100 entries: %v, %d files of %d", err, files(), before)
	}
	for range 2 {
		if err := m.truncate(l); err != nil || files() != 1 || l.BytesSinceTruncate() != 0 {
			t.Errorf("%v: %d files, %d bytes", err, files(), l.BytesSinceTruncate())
		}
	}
	write(t, l, "last")
	closeLog(t, l)
	m = m.restarted()
	l = open(t, options(dir, m))
	if len(m.entries) != 101 || m.entries[100] != "last" || l.BytesSinceTruncate() > 1<<10 {
		t.Errorf("%d entries, %d bytes since the truncation", len(m.entries), l.BytesSinceTruncate())
	}
	must.Do(t, errors.Join(l.Close(), l.Close()))
	check.Is(t, m.truncate(l), ErrClosed, "truncation of a closed log")
}

// TestLogMustFit: Open refuses a log that does not belong to the state store, one that is missing, and an existing log
// where a new one should be created.
func TestLogMustFit(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	m := &recorder{}
	l := created(t, dir, m)
	write(t, l, numbered(10)...)
	must.Do(t, m.truncate(l))
	write(t, l, numbered(10)...)
	closeLog(t, l)
	last := m.applied[len(m.applied)-1]
	for found, change := range map[string]func(*Options){
		"before the state store's": func(o *Options) { o.Checkpoint.Index += 1000 },
		"older than the log":       func(o *Options) { o.Checkpoint = m.applied[3] },
		"two histories":            func(o *Options) { o.Checkpoint = last; o.Checkpoint.Term += 7 },
		"another log":              func(o *Options) { o.Identity = []byte("ledger-2") },
		"segments cannot be found": func(o *Options) { o.Dir = filepath.Join(dir, "other") },
	} {
		o := options(dir, m)
		change(&o)
		_, err := Open(o)
		wantDamage(t, err, found)
		wantDamage(t, Read(o, nil), found)
	}
	o := options(dir, m)
	o.Create = true
	if _, err := Open(o); err == nil || IsDamage(err) {
		t.Errorf("a log for a state store that is further: %v", err)
	}
	o.Checkpoint = Position{}
	check.Is(t, check.Err(Open(o)), os.ErrExist, "a second log")
	if _, err := Open(Options{}); err == nil {
		t.Error("no options were enough")
	}
	// None of this has changed the log.
	l = open(t, options(dir, m.restarted()))
	closeLog(t, l)
}

// TestCreationIsBegunAgain: the remains of an interrupted creation are not a log.
func TestCreationIsBegunAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Do(t, errors.Join(os.Mkdir(filepath.Join(dir, newSegmentsDir), 0o700),
		os.WriteFile(filepath.Join(dir, newSegmentsDir, "0000000000000001.log"), []byte("half"), 0o600)))
	m := &recorder{}
	l := created(t, dir, m)
	write(t, l, "one")
	closeLog(t, l)
}
