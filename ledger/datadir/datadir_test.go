package datadir

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// begin opens a directory until the end of the test.
func begin(t *testing.T, path string, from Origin) *Directory {
	t.Helper()
	d := must.Get(Open(path, from))(t)
	t.Cleanup(func() { _ = d.Close() }) // again, where the test has closed it
	return d
}

// made makes a directory that holds a ledger and returns its identity.
func made(t *testing.T, path string) []byte {
	t.Helper()
	d := begin(t, path, Created)
	put(t, path, StateName, LogName)
	must.Do(t, errors.Join(d.Finish(), d.Close()))
	return d.Identity()
}

func put(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte("of before"), 0o600))
	}
}

// names returns what lies in a directory, in the order of names.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	var found []string
	for _, e := range entries {
		found = append(found, e.Name())
	}
	return strings.Join(found, " ")
}

// The marker comes last, and a directory keeps its identity.
func TestCreation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "not", "there[1]*")
	d := begin(t, path, Created)
	if !d.Fresh() || d.Path() != path || len(d.Identity()) != identityBytes || names(t, path) != "CREATING LOCK" {
		t.Errorf("fresh %v, path %s, identity %x; it holds %s", d.Fresh(), d.Path(), d.Identity(), names(t, path))
	}
	must.Do(t, d.Finish())
	if d.Fresh() || names(t, path) != "LEDGER LOCK" {
		t.Errorf("fresh %v when it is finished; it holds %s", d.Fresh(), names(t, path))
	}
	check.Is(t, check.Err(Open(path, Created)), ErrInUse, "a second process")
	check.Is(t, check.Err(OpenLedger(path)), ErrInUse, "a second process that reads")
	must.Do(t, d.Close())
	again := begin(t, path, Created)
	if again.Fresh() || !bytes.Equal(again.Identity(), d.Identity()) || again.NodeID() != d.NodeID() {
		t.Errorf("opened again: fresh %v, identity %x instead of %x", again.Fresh(), again.Identity(), d.Identity())
	}
	if again.State() != filepath.Join(path, "state.db") || again.Log() != filepath.Join(path, "log") {
		t.Errorf("the parts are %s and %s", again.State(), again.Log())
	}
}

// What a crash has left of a creation is removed, and nothing of it is used.
func TestCreationBeginsAgain(t *testing.T) {
	t.Parallel()
	for _, from := range []Origin{Created, Restored} {
		for _, left := range [][]string{
			nil, {StateName}, {LogName}, {StateName, LogName}, {StateName + newSuffix + "1"}, {"." + markerName + "-1"},
		} {
			path := t.TempDir()
			before := begin(t, path, from)
			put(t, path, left...)
			must.Do(t, before.Close())
			d := begin(t, path, from)
			if !d.Fresh() || bytes.Equal(d.Identity(), before.Identity()) || names(t, path) != "CREATING LOCK" {
				t.Errorf("%q after %v: fresh %v, identity %x after %x; it holds %s",
					from, left, d.Fresh(), d.Identity(), before.Identity(), names(t, path))
			}
		}
	}
	// A crash between the last two steps: everything is whole already.
	path := t.TempDir()
	identity := made(t, path)
	put(t, path, creatingName)
	if d := begin(t, path, Created); d.Fresh() || !bytes.Equal(d.Identity(), identity) ||
		names(t, path) != "LEDGER LOCK log state.db" {
		t.Errorf("after the marker: fresh %v; it holds %s", d.Fresh(), names(t, path))
	}
}

// An interrupted restore is no place for an empty ledger.
func TestOnlyARestoreGoesOnWithARestore(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := begin(t, path, Restored)
	check.Is(t, check.Err(Open(path, Created)), ErrInUse, "a start while the restore goes on")
	must.Do(t, d.Close())
	for range 2 {
		if _, err := Open(path, Created); !errors.Is(err, ErrRestoring) || !strings.Contains(err.Error(), path) {
			t.Errorf("a start afterwards: %v", err)
		}
	}
	if _, err := OpenLedger(path); err == nil {
		t.Error("half a restore was opened to be read")
	}
	must.Do(t, begin(t, path, Restored).Finish())
}

// A refused directory is left as it was, and the message names it.
func TestRefusals(t *testing.T) {
	t.Parallel()
	foreign, empty, ledger, file, lost := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	put(t, foreign, "holiday.jpg", creatingName) // whose CREATING is not ours either
	made(t, ledger)
	put(t, file, "file")
	file = filepath.Join(file, "file")
	made(t, lost)
	must.Do(t, os.Remove(filepath.Join(lost, markerName)))
	absent := filepath.Join(t.TempDir(), "absent")
	asIs := func(path string) (*Directory, error) { return Open(path, Created) }
	restore := func(path string) (*Directory, error) { return Open(path, Restored) }
	for _, test := range []struct {
		name, path, message string
		open                func(string) (*Directory, error)
	}{
		{"start in a foreign directory", foreign, "not a seqledger data directory", asIs},
		{"restore into a foreign directory", foreign, "not a seqledger data directory", restore},
		{"read of a foreign directory", foreign, "not a seqledger data directory", OpenLedger},
		{"start without the marker", lost, "restore this one from a backup", asIs},
		{"restore over a ledger", ledger, "holds a ledger already", restore},
		{"read of an empty directory", empty, "not a seqledger data directory", OpenLedger},
		{"read of nothing", absent, "no such file", OpenLedger},
		{"start in a file", file, "is a file", asIs},
		{"read of a file", file, "is a file", OpenLedger},
	} {
		parent := filepath.Dir(test.path)
		before := names(t, parent)
		if info, err := os.Stat(test.path); err == nil && info.IsDir() {
			before += names(t, test.path)
		}
		d, err := test.open(test.path)
		if err == nil {
			t.Fatalf("%s: it was opened (%v)", test.name, d.Close())
		}
		if !strings.Contains(err.Error(), test.message) || !strings.Contains(err.Error(), test.path) {
			t.Errorf("%s: %v", test.name, err)
		}
		after := names(t, parent)
		if info, err := os.Stat(test.path); err == nil && info.IsDir() {
			after += names(t, test.path)
		}
		if before != after {
			t.Errorf("%s: there was %s, and is %s", test.name, before, after)
		}
	}
	// A file system of its own, and what the first step leaves, are an empty directory.
	put(t, empty, "."+creatingName+"-1")
	must.Do(t, os.Mkdir(filepath.Join(empty, "lost+found"), 0o700))
	begin(t, empty, Created)
	if !slices.Contains(strings.Fields(names(t, empty)), "lost+found") {
		t.Error("lost+found was removed")
	}
}

// The state file of a restore appears whole or not at all, and a failure keeps the
// directory from passing for an empty one.
func TestMakeState(t *testing.T) {
	t.Parallel()
	failed := errors.New("no space left")
	path := t.TempDir()
	d := begin(t, path, Restored)
	type opener = func(file uint64) (io.Writer, error)
	fill := func(open opener) error {
		for file, content := range []string{"state", "blocks", "more"} {
			w, err := open(uint64(file))
			if err == nil {
				_, err = io.WriteString(w, content)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	check.Is(t, d.MakeState(func(open opener) error { return errors.Join(fill(open), failed) },
		func(string) error { t.Error("half a file was prepared"); return nil }), failed, "fill fails")
	check.Is(t, d.MakeState(fill, func(string) error { return failed }), failed, "prepare fails")
	if err := d.MakeState(func(opener) error { return nil }, func(string) error { return nil }); err == nil {
		t.Error("a state without a file is taken")
	}
	check.Equal(t, names(t, path), "CREATING LOCK", "the failures left %s")
	err := d.MakeState(fill, func(temporary string) error {
		if content, err := os.ReadFile(temporary); err != nil || string(content) != "state" {
			t.Errorf("prepared is %q, %v", content, err)
		}
		if content, err := os.ReadFile(filepath.Join(d.Blocks(), "0000000002.blocks")); string(content) != "more" {
			t.Errorf("the second block file is %q, %v", content, err)
		}
		if _, err := os.Stat(d.State()); err == nil {
			t.Error("the file has its name before it is prepared")
		}
		return os.WriteFile(temporary, []byte("prepared"), 0o600)
	})
	if content, readErr := os.ReadFile(d.State()); errors.Join(err, readErr) != nil || string(content) != "prepared" {
		t.Errorf("the state is %q, %v", content, errors.Join(err, readErr))
	}
	check.Equal(t, must.Get(d.Usage())(t).State, uint64(len("prepared")), "usage: %+v")
}
