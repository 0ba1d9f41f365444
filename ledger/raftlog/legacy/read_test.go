package legacy

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

var update = flag.Bool("update", false, "write the logs that the tests of package raftlog convert")

// example is a log, and what must be found in it.
type example struct {
	Checkpoint Position
	Term       uint64 // that Raft was in
	Entries    []exampleEntry
	machine    *recorder
}

type exampleEntry struct {
	Position
	Text string
}

// examples returns logs as they are left: before the first truncation, after a clean stop right
// behind one, and by a crash with entries behind one, in several files and terms.
func examples(t *testing.T, dir string) map[string]*example {
	t.Helper()
	made := map[string]*example{}
	for _, name := range []string{"new", "clean", "killed"} {
		m := &recorder{}
		l := created(t, filepath.Join(dir, name), m)
		texts := numbered(240)
		if name != "new" {
			for _, text := range texts[:80] {
				write(t, l, text)
			}
			if err := l.Truncate(); err != nil {
				t.Fatal(err)
			}
		}
		for _, part := range [][]string{texts[80:160], texts[160:]} {
			closeLog(t, l)
			l = open(t, options(filepath.Join(dir, name), m))
			if name != "clean" {
				write(t, l, part...)
			}
		}
		_, _, term := l.Leader()
		made[name] = &example{Checkpoint: m.durable, Term: term, machine: m}
		for i, at := range m.applied {
			if at.Index > m.durable.Index {
				made[name].Entries = append(made[name].Entries, exampleEntry{at, string(m.entries[i])})
			}
		}
		if name == "killed" {
			crashed := filepath.Join(dir, "crashed")
			if err := copyTree(crashed, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			closeLog(t, l)
			if err := errors.Join(os.RemoveAll(filepath.Join(dir, name)),
				os.Rename(crashed, filepath.Join(dir, name))); err != nil {
				t.Fatal(err)
			}
		}
		closeLog(t, l)
	}
	return made
}

// TestReadFindsEverything: a read finds each command behind the checkpoint, none of Raft's own
// entries as one, and leaves the log as it was.
func TestReadFindsEverything(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, want := range examples(t, dir) {
		path := filepath.Join(dir, name)
		before := files(t, path)
		found, others := []exampleEntry(nil), 0
		next := want.Checkpoint.Index + 1
		term, err := Read(path, filepath.Join(dir, "copy"), []byte("ledger-1"), want.Checkpoint, func(e *Entry) error {
			if e.Index != next {
				t.Errorf("%s: entry %d where %d should be", name, e.Index, next)
			}
			next++
			if e.Command == nil {
				others++
				return nil
			}
			found = append(found, exampleEntry{e.Position, string(e.Command)})
			return nil
		})
		if err != nil || term != want.Term || !slices.Equal(found, want.Entries) || others == 0 {
			t.Errorf("%s: term %d, %d entries, %d others, %v; want term %d, %d entries", name, term, len(found), others,
				err, want.Term, len(want.Entries))
		}
		if _, err := os.Stat(filepath.Join(dir, "copy")); err == nil {
			t.Errorf("%s: the copy is still there", name)
		}
		if after := files(t, path); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: the read has changed %v", name, after)
		}
		if *update {
			writeExample(t, name, want, before)
		}
		if err := Remove(path); err != nil || len(files(t, path)) > 0 {
			t.Errorf("%s: left after the removal: %v, %v", name, files(t, path), err)
		}
	}
}

// TestReadRefuses: a log that is not whole, or does not belong to the state store, is refused.
func TestReadRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	killed := examples(t, dir)["killed"]
	read := func(dir, identity string, at Position) error {
		_, err := Read(dir, filepath.Join(t.TempDir(), "copy"), []byte(identity), at,
			func(*Entry) error { return nil })
		return err
	}
	path := filepath.Join(dir, "killed")
	last := killed.Entries[len(killed.Entries)-1].Position
	wantDamage(t, read(path, "another", killed.Checkpoint), "another data directory")
	wantDamage(t, read(path, "ledger-1", Position{last.Index + 9, last.Term}), "before the state store")
	wantDamage(t, read(path, "ledger-1", Position{killed.Checkpoint.Index - 1, 1}), "gap")
	wantDamage(t, read(path, "ledger-1", Position{last.Index, last.Term + 1}), "histories")
	wantDamage(t, read(t.TempDir(), "ledger-1", Position{}), "cannot be found")
	stop := errors.New("enough")
	if _, err := Read(path, filepath.Join(t.TempDir(), "copy"), []byte("ledger-1"), killed.Checkpoint,
		func(*Entry) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a visit that fails: %v", err)
	}
}

// files returns the content of the files below a directory.
func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		found[name], err = os.ReadFile(path)
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return found
}

func writeExample(t *testing.T, name string, e *example, content map[string][]byte) {
	t.Helper()
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	archive := tar.NewWriter(zipped)
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	content["expect.json"] = text
	for name, content := range content {
		header := &tar.Header{Name: filepath.ToSlash(name), Size: int64(len(content))}
		err = errors.Join(err, archive.WriteHeader(header))
		_, writeErr := archive.Write(content)
		err = errors.Join(err, writeErr)
	}
	err = errors.Join(err, archive.Close(), zipped.Close(), os.MkdirAll("../testdata/old", 0o755),
		os.WriteFile(filepath.Join("../testdata/old", name+".tar.gz"), b.Bytes(), 0o644))
	if err != nil {
		t.Fatal(err)
	}
}
