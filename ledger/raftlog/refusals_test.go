package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// What keeps a log from being read, and is no damage, must not send an operator to the backups.
func TestRefusalsTellDamageApart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		cause  error
		damage bool
	}{
		{nil, true},
		{errors.New("checksum"), true},
		{fs.ErrNotExist, true},
		{syscall.EINVAL, true},
		{syscall.EMFILE, false},
		{&fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}, false},
		{fmt.Errorf("segment: %w", &fs.PathError{Op: "read", Path: "x", Err: syscall.EIO}), false},
		{errors.Join(errors.New("another"), syscall.ENOSPC), false},
		{syscall.EROFS, false}, {syscall.ENOMEM, false}, {syscall.ENOLCK, false}, {syscall.EDQUOT, false},
	} {
		err := refusal("/data/log", test.cause, "entry %d is %s", 7, "gone")
		if IsDamage(err) != test.damage || IsDamage(fmt.Errorf("log: %w", err)) != test.damage {
			t.Errorf("%v: damage: %v", err, IsDamage(err))
		}
		if text := err.Error(); !strings.Contains(text, "/data/log") || !strings.Contains(text, "entry 7 is gone") ||
			strings.Contains(text, "backup") != test.damage {
			t.Errorf("%v says %q", test.cause, text)
		}
		if test.cause != nil && (!errors.Is(err, test.cause) || !strings.Contains(err.Error(), test.cause.Error())) {
			t.Errorf("%v does not tell its cause %v", err, test.cause)
		}
	}
	if IsDamage(nil) || IsDamage(errors.New("x")) || IsDamage(ErrNeedsCluster) {
		t.Error("what is no damage is told as damage")
	}
}

// A log is made where there is none, for a state that is empty, and is opened where there is one.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	used, m := filepath.Join(dir, "used"), &recorder{}
	l := created(t, used, m)
	write(t, l, "a", "b", "c")
	must.Do(t, l.Close())
	file := filepath.Join(dir, "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	at := m.applied[len(m.applied)-1]
	for _, test := range []struct {
		what, says string
		change     func(*Options)
		damage     bool
	}{
		{what: "no directory", says: "Options.Dir is empty", change: func(o *Options) { o.Dir = "" }},
		{what: "no machine", says: "Options.Machine is nil", change: func(o *Options) { o.Machine = nil }},
		{what: "made for a state that is not empty", says: "that is at index 9 of term 1", change: func(o *Options) {
			o.Dir, o.Create, o.Checkpoint = filepath.Join(dir, "new"), true, Position{Index: 9, Term: 1}
		}},
		{what: "a clock that runs backwards", says: "Cluster.Tick is -1ns",
			change: func(o *Options) { o.Cluster = &Cluster{Tick: -1} }},
		{what: "made twice", says: "exists already", change: func(o *Options) { o.Create = true }},
		{what: "made in a file", says: "not a directory", change: func(o *Options) { o.Dir, o.Create = file, true }},
		{what: "absent", says: "cannot be found", damage: true,
			change: func(o *Options) { o.Dir = filepath.Join(dir, "absent") }},
		{what: "of another ledger", says: "", change: func(o *Options) { o.Identity = []byte("ledger-2") },
			damage: true},
		{what: "shorter than the state", says: "before the state store's index 1000", damage: true,
			change: func(o *Options) { o.Checkpoint = Position{Index: 1000, Term: at.Term} }},
		{what: "of another history", says: "the logs of two histories are mixed", damage: true,
			change: func(o *Options) { o.Checkpoint = Position{Index: at.Index, Term: at.Term + 1} }},
		{what: "of another node", says: "is node 2, and its log names the voters [1]",
			change: func(o *Options) { o.Node = 2 }},
	} {
		o := options(used, &recorder{})
		test.change(&o)
		l, err := Open(o)
		if err == nil {
			t.Errorf("%s: it was opened: %v", test.what, l.Close())
			continue
		}
		if !strings.Contains(err.Error(), test.says) || IsDamage(err) != test.damage {
			t.Errorf("%s: %v, damage: %v", test.what, err, IsDamage(err))
		}
	}
	for _, name := range []string{"new", "absent"} {
		check.Is(t, check.Err(os.Stat(filepath.Join(dir, name))), fs.ErrNotExist, "%s was made", name)
	}
	// None of it has changed the log.
	again := &recorder{}
	open(t, options(used, again))
	check.Equal(t, fmt.Sprint(again.texts()), "[a b c]", "it holds %s")
}

// A log for the state of another node needs members that can be read: without them the node would not know its peers.
func TestCreateAtRefuses(t *testing.T) {
	t.Parallel()
	sound := Members{Voters: []uint64{1, 2}, Highest: 2}
	at := Position{Index: 40, Term: 3}
	for what, members := range map[string][]byte{
		"nothing": nil, "cut off": sound.Encode()[:15], "more than that": append(sound.Encode(), 0),
		"no members": new(Members).Encode(), "no voters": (&Members{Highest: 2}).Encode(),
	} {
		o := options(filepath.Join(t.TempDir(), "log"), &recorder{})
		check.ErrorContains(t, CreateAt(o, at, members, State{}), "cannot be read", "%s", what)
		check.Is(t, check.Err(os.Stat(o.Dir)), fs.ErrNotExist, "%s: a log was made", what)
	}
	m := &recorder{durable: at}
	o := options(filepath.Join(t.TempDir(), "log"), m)
	must.Do(t, CreateAt(o, at, sound.Encode(), State{}))
	check.Is(t, CreateAt(o, at, sound.Encode(), State{}), os.ErrExist, "twice")
	if _, err := Open(o); !errors.Is(err, ErrNeedsCluster) || !strings.Contains(err.Error(), "--peer-listen") {
		t.Errorf("alone: %v", err)
	}
	out, err := ReadOutline(o.Dir, testIdentity)
	if err != nil || out.Last() != at || out.State.Commit != at.Index || out.State.Term != at.Term ||
		len(out.Members.Voters) != 2 {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := ReadOutline(o.Dir, []byte("ledger-2")); !IsDamage(err) {
		t.Errorf("as that of another ledger: %v", err)
	}
	if _, err := ReadOutline(t.TempDir(), testIdentity); err == nil {
		t.Error("an empty directory has an outline")
	}
}

// An interrupted step leaves the old log in place until the new one is whole, and a repeat finishes either.
func TestSettleAlone(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what          string
		final, before bool
		want          string // what is at the final name
	}{
		{"nothing was begun", true, false, "final"},
		{"the old log was put aside", false, true, "before"},
		{"the new log has its name", true, true, "final"},
		{"there is no log", false, false, ""},
	} {
		dir := t.TempDir()
		final, before := filepath.Join(dir, "final"), filepath.Join(dir, "before")
		for path, there := range map[string]bool{final: test.final, before: test.before} {
			if !there {
				continue
			}
			must.Do(t, os.MkdirAll(filepath.Join(path, filepath.Base(path)), 0o700))
		}
		for range 2 { // again, after another kill
			must.Do(t, settleAlone(final, before), "%s", test.what)
		}
		entries, _ := os.ReadDir(final)
		got := ""
		if len(entries) == 1 {
			got = entries[0].Name()
		}
		if _, err := os.Stat(before); got != test.want || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the log is %q, and the one put aside: %v", test.what, got, err)
		}
	}
}
