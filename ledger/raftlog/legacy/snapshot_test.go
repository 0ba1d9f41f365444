package legacy

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// Every sync that a snapshot needs is final when it fails, one by one: the log
// is not cut off on its word, now or by the next truncation, and a restart finds
// everything.
func TestFailedSnapshotStopsTheLog(t *testing.T) {
	t.Parallel()
	for _, part := range []string{snapshotTmp, snapshotDir} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			dir, m, f := t.TempDir(), &recorder{}, newFault()
			o := withFault(options(dir, m), f, "none", false)
			o.Create = true
			armed := false
			o.synced = func(path string) error {
				if armed && strings.HasSuffix(path, part) {
					f.failed.Store(true)
					return errDisk
				}
				return nil
			}
			l := open(t, o)
			texts := numbered(300)
			write(t, l, texts...)
			armed = true
			if err := l.Truncate(); err == nil {
				t.Fatal("Truncate with a failed sync succeeded")
			}
			wantStopped(t, l, f)
			again := m.restarted()
			open(t, options(dir, again))
			if got := again.texts(); !slices.Equal(got, texts) {
				t.Fatalf("found %d entries, want %d", len(got), len(texts))
			}
		})
	}
}

// oneSnapshot leaves a truncated log with a snapshot, and returns the
// snapshot's metadata file.
func oneSnapshot(t *testing.T, dir string) (m *recorder, metadata string) {
	t.Helper()
	m = &recorder{}
	l := created(t, dir, m)
	write(t, l, numbered(300)...)
	must(t, l.Truncate())
	write(t, l, numbered(200)...)
	l.Fail(errDisk) // an orderly end would not change the snapshot, but take longer
	_ = l.Close()
	names, err := filepath.Glob(filepath.Join(dir, snapshotDir, "*", snapshotMetadata))
	must(t, err)
	return m, names[0]
}

// Whichever bit of a snapshot's metadata changes: it is refused, or what Raft
// goes by is the same as before.
func TestFlippedBitInSnapshotMetadata(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, name := oneSnapshot(t, dir)
	list := func() raft.SnapshotMeta {
		t.Helper()
		store, err := raft.NewFileSnapshotStoreWithLogger(dir, keptSnapshots,
			newHclog(slog.New(slog.DiscardHandler), "raft"))
		must(t, err)
		metas, err := store.List()
		must(t, err)
		if len(metas) == 0 {
			return raft.SnapshotMeta{}
		}
		// Of the addresses a sole voter has no use.
		meta := *metas[0]
		meta.Peers, meta.Size, meta.ConfigurationIndex, meta.Configuration = nil, 0, 0, raft.Configuration{}
		return meta
	}
	content, want := readFile(t, name), list()
	refused := 0
	for bit := range 8 * len(content) {
		changed := bytes.Clone(content)
		changed[bit/8] ^= 1 << (bit % 8)
		must(t, os.WriteFile(name, changed, 0o644))
		if _, err := checkSnapshotMetadata(filepath.Join(dir, snapshotDir)); err != nil {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("bit %d: the message does not name the file: %v", bit, err)
			}
			refused++
			continue
		}
		if got := list(); !reflect.DeepEqual(got, want) {
			t.Errorf("bit %d of %q is accepted and changes %+v to %+v", bit, changed, want, got)
		}
	}
	t.Logf("%d of %d flipped bits are refused", refused, 8*len(content))
}

// A snapshot whose members are of no index, or of one behind it, is refused. Raft
// would know no members and wait for a leader for ever.
func TestSnapshotOfUnknownMembersIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, name := oneSnapshot(t, dir)
	content := readFile(t, name)
	for _, index := range []string{"0", "999999"} {
		changed := bytes.Replace(content, []byte(`"ConfigurationIndex":1`), []byte(`"ConfigurationIndex":`+index), 1)
		if bytes.Equal(changed, content) {
			t.Fatalf("another snapshot than this test expects: %s", content)
		}
		must(t, os.WriteFile(name, changed, 0o644))
		_, err := Open(options(dir, m.restarted()))
		wantDamage(t, err, "its members are of index "+index)
	}
}

// Raft leaves out what its snapshot says to cover. A snapshot that says too much
// by its name, too, is caught by the commands that it does not cover.
func TestSnapshotAheadOfTheStateIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, name := oneSnapshot(t, dir)
	var term, index, time uint64
	if _, err := fmt.Sscanf(filepath.Base(filepath.Dir(name)), "%d-%d-%d", &term, &index, &time); err != nil {
		t.Fatal(err)
	}
	ahead := index + 100
	content := readFile(t, name)
	content = bytes.Replace(content, fmt.Appendf(nil, `"Index":%d`, index), fmt.Appendf(nil, `"Index":%d`, ahead), 1)
	content = bytes.Replace(content, fmt.Appendf(nil, `%d-%d-`, term, index),
		fmt.Appendf(nil, `%d-%d-`, term, ahead), 1)
	must(t, os.WriteFile(name, content, 0o644))
	must(t, os.Rename(filepath.Dir(name), filepath.Join(dir, snapshotDir, fmt.Sprintf("%d-%d-%d", term, ahead, time))))
	_, err := Open(options(dir, m.restarted()))
	wantDamage(t, err, fmt.Sprintf("covers commands up to index %d, and entry %d between is a command", m.durable.Index,
		m.durable.Index+1))
}

// A term that was lost from the index would be begun a second time.
func TestLowTermIsRefused(t *testing.T) {
	t.Parallel()
	dir, m := t.TempDir(), &recorder{}
	closeLogAfter(t, dir, m, "one", "two")
	o := options(dir, m.restarted())
	must(t, o.validate())
	disk, err := openDisk(&o)
	must(t, err)
	must(t, disk.SetUint64(keyCurrentTerm, 1))
	must(t, disk.Close())
	_, err = Open(o)
	wantDamage(t, err, "its index notes term 1")
}

// A crash may come while an old snapshot is removed, between its files. What is
// left must not look like damage, and a newer snapshot without its metadata must.
func TestHalfRemovedSnapshotIsRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, name := oneSnapshot(t, dir)
	// Others like it, newer, as if the store had been about to remove this one.
	old := filepath.Dir(name)
	term, rest, _ := strings.Cut(filepath.Base(old), "-")
	index, _, _ := strings.Cut(rest, "-")
	newer := make([]string, keptSnapshots)
	for i := range newer {
		id := fmt.Sprintf("%s-%s-%d", term, index, 9_000_000_000_000+i)
		newer[i] = filepath.Join(filepath.Dir(old), id)
		must(t, os.CopyFS(newer[i], os.DirFS(old)))
		file := filepath.Join(newer[i], snapshotMetadata)
		must(t, os.WriteFile(file, bytes.ReplaceAll(readFile(t, file), []byte(filepath.Base(old)), []byte(id)), 0o644))
	}
	must(t, os.Remove(name))
	leftovers, err := checkSnapshotMetadata(filepath.Dir(old))
	if err != nil || !slices.Equal(leftovers, []string{old}) {
		t.Fatalf("got %q, %v; want what is left of the oldest", leftovers, err)
	}
	l := open(t, options(dir, m))
	closeLog(t, l)
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is left of the oldest is still there: %v", err)
	}
	must(t, os.Remove(filepath.Join(newer[0], snapshotMetadata)))
	if _, err := checkSnapshotMetadata(filepath.Dir(old)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a snapshot that nothing replaces lacks its metadata, and the answer is %v", err)
	}
}

// Two truncations within one millisecond would make two snapshots of one name.
func TestTruncatingTwiceAtOnce(t *testing.T) {
	t.Parallel()
	l := open(t, func() Options { o := options(t.TempDir(), &recorder{}); o.Create = true; return o }())
	write(t, l, "one")
	for range 50 {
		must(t, l.Truncate())
	}
	closeLog(t, l)
}
