package legacy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft-wal/metadb"
	"go.etcd.io/bbolt"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// segments returns the log files of dir, oldest first.
func segments(t testing.TB, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, walDir, "*.wal"))
	must(t, err)
	slices.Sort(names)
	return names
}

// A log that does not continue the state store is refused, twice: a second
// attempt must not find an empty log that the first one has left.
func TestDamagedLogIsRefused(t *testing.T) {
	t.Parallel()
	remove := func(parts ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			must(t, os.RemoveAll(filepath.Join(append([]string{dir}, parts...)...)))
		}
	}
	for name, tt := range map[string]struct {
		harm   func(*testing.T, string)
		change func(*Options)
		found  string
	}{
		"no index":     {remove(walDir, metadb.FileName), nil, "its index wal-meta.db cannot be found"},
		"no directory": {remove(walDir), nil, "cannot be found"},
		"empty index": {func(t *testing.T, dir string) {
			t.Helper()
			must(t, os.Truncate(filepath.Join(dir, walDir, metadb.FileName), 0))
		}, nil, "is empty"},
		"garbled index": {func(t *testing.T, dir string) {
			t.Helper()
			name := filepath.Join(dir, walDir, metadb.FileName)
			content, err := os.ReadFile(name)
			must(t, err)
			must(t, os.WriteFile(name, bytes.Repeat([]byte{0xa5}, len(content)), 0o644))
		}, nil, "makes no sense"},
		"first segment is missing": {func(t *testing.T, dir string) {
			t.Helper()
			must(t, os.Remove(segments(t, dir)[0]))
		}, nil, "cannot be opened"},
		"last segment is missing": {func(t *testing.T, dir string) {
			t.Helper()
			must(t, os.Remove(segments(t, dir)[1]))
		}, nil, "no such file"},
		"no snapshot": {remove(snapshotDir), nil, "nothing covers the entries before"},
		"another identity": {nil, func(o *Options) { o.Identity = []byte("ledger-2") },
			`belongs to another data directory ("ledger-1", want "ledger-2")`},
		"ends before the checkpoint": {nil, func(o *Options) { o.Checkpoint = Position{5000, 9} },
			"before the state store's index 5000 of term 9"},
		"another term": {nil, func(o *Options) { o.Checkpoint.Index += 20; o.Checkpoint.Term = 1 },
			"two histories"},
		"older state store": {nil, func(o *Options) { o.Checkpoint = Position{} },
			"a gap after the state store's index 0"},
		"another term at the snapshot": {nil, func(o *Options) { o.Checkpoint.Term = 7 }, "another term"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, m := t.TempDir(), &recorder{}
			l := created(t, dir, m)
			for _, text := range numbered(400) {
				write(t, l, text+strings.Repeat(".", 1000))
			}
			must(t, l.Truncate())
			write(t, l, numbered(300)...)
			closeLog(t, l)
			if tt.harm != nil {
				tt.harm(t, dir)
			}
			o := options(dir, m.restarted())
			if tt.change != nil {
				tt.change(&o)
			}
			for range 2 {
				l, err := Open(o)
				if err == nil {
					t.Fatal("a damaged log was opened", l.Close())
				}
				wantDamage(t, err, tt.found)
			}
		})
	}
}

// A byte that changed at rest is found before anything is applied, wherever in
// an entry it is.
func TestFlippedByteIsRefused(t *testing.T) {
	t.Parallel()
	for _, offset := range []int{-3, -1, 0, 3, 16} {
		t.Run(fmt.Sprint(offset), func(t *testing.T) {
			t.Parallel()
			dir, m := t.TempDir(), &recorder{}
			l := created(t, dir, m)
			for _, text := range numbered(20) {
				write(t, l, text) // one by one: a batch each
			}
			closeLog(t, l)
			name := segments(t, dir)[0]
			content, err := os.ReadFile(name)
			must(t, err)
			content[bytes.Index(content, []byte("entry-00007"))+offset] ^= 0x40
			must(t, os.WriteFile(name, content, 0o644))
			again := m.restarted()
			_, err = Open(options(dir, again))
			wantDamage(t, err, "corrupt")
			if again.calls != 0 {
				t.Errorf("%d entries were applied from a damaged log", again.calls)
			}
		})
	}
}

// The last write may be torn in any way, for nobody was told that it is there:
// what came before is found, and the log goes on.
func TestTornTailIsTolerated(t *testing.T) {
	t.Parallel()
	for name, tear := range map[string]func(tail []byte) []byte{
		"cut":     func(tail []byte) []byte { return tail[:len(tail)/2] },
		"garbled": func(tail []byte) []byte { return bytes.Repeat([]byte{0xff}, len(tail)) },
		"hole":    func(tail []byte) []byte { clear(tail[8:24]); return tail },
		"zeroed":  func(tail []byte) []byte { clear(tail); return tail },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, m := t.TempDir(), &recorder{}
			l := created(t, dir, m)
			write(t, l, numbered(30)...)
			acknowledged := m.texts()
			write(t, l, "torn")
			l.Fail(errors.New("power loss")) // no orderly end, which would append a barrier
			_ = l.Close()

			file := segments(t, dir)[0]
			content, err := os.ReadFile(file)
			must(t, err)
			end := len(bytes.TrimRight(content, "\x00"))
			start := lastFrame(content, end)
			torn := tear(bytes.Clone(content[start:end]))
			clear(content[start:]) // the file has its full size from the start
			copy(content[start:], torn)
			must(t, os.WriteFile(file, content, 0o644))

			for range 2 { // the second time: after the repair and a new entry
				again := &recorder{}
				l = open(t, options(dir, again))
				if got := again.texts(); !slices.Equal(got, acknowledged) {
					t.Fatalf("found %q, want %q", got, acknowledged)
				}
				write(t, l, "more")
				acknowledged = append(acknowledged, "more")
				closeLog(t, l)
			}
		})
	}
}

// lastFrame returns where the entry before the last commit frame begins.
func lastFrame(content []byte, end int) int {
	begin := 0
	for cut := end - 1; cut > 0; cut-- {
		if whole := readBatches(content[:cut]); whole.end > 0 {
			begin = whole.end
			break
		}
	}
	return begin
}

// A crash after the write that fills a segment, and before the next segment is
// noted, leaves a log that can be written again. raft-wal alone would answer
// "segment is sealed" for ever.
func TestCrashBetweenSegments(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{true, false} {
		t.Run(fmt.Sprintf("whole=%t", whole), func(t *testing.T) {
			t.Parallel()
			dir, m := t.TempDir(), &recorder{}
			o := options(dir, m)
			o.Create, o.SegmentBytes = true, 4<<10
			l := open(t, o)
			var texts []string
			crashed := filepath.Join(t.TempDir(), "index")
			for i := 0; len(segments(t, dir)) == 1; i++ {
				// The index as it was before the write that fills the segment.
				content, err := os.ReadFile(filepath.Join(dir, walDir, metadb.FileName))
				must(t, err)
				must(t, os.WriteFile(crashed, content, 0o644))
				text := fmt.Sprintf("%04d%s", i, strings.Repeat("x", 500))
				write(t, l, text)
				texts = append(texts, text)
				if got := readBatches(readFile(t, segments(t, dir)[0])); got.index > 0 {
					break
				}
			}
			l.Fail(errors.New("power loss"))
			_ = l.Close()
			must(t, os.Rename(crashed, filepath.Join(dir, walDir, metadb.FileName)))
			for _, later := range segments(t, dir)[1:] {
				must(t, os.Remove(later))
			}
			if !whole {
				// The commit frame behind the index did not arrive.
				name := segments(t, dir)[0]
				content := readFile(t, name)
				got := readBatches(content)
				clear(content[got.end-8 : got.end])
				must(t, os.WriteFile(name, content, 0o644))
				texts = texts[:len(texts)-1]
			}
			for range 2 {
				again := &recorder{}
				o := options(dir, again)
				o.SegmentBytes = 4 << 10
				l := open(t, o)
				if got := again.texts(); !slices.Equal(got, texts) {
					t.Fatalf("found %d entries, want %d", len(got), len(texts))
				}
				write(t, l, "more")
				texts = append(texts, "more")
				closeLog(t, l)
			}
		})
	}
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	must(t, err)
	return content
}

// Create makes a log once; what an interrupted creation left is not in the way.
func TestCreate(t *testing.T) {
	t.Parallel()
	dir, m := filepath.Join(t.TempDir(), "data"), &recorder{}
	must(t, os.MkdirAll(filepath.Join(dir, newWALDir), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, newWALDir, metadb.FileName), []byte("half"), 0o644))
	if _, err := Open(options(dir, m)); err == nil {
		t.Fatal("an interrupted creation was opened")
	} else {
		wantDamage(t, err, "cannot be found")
	}
	closeLogAfter(t, dir, m, "one")
	o := options(dir, m)
	o.Create = true
	if _, err := Open(o); !errors.Is(err, os.ErrExist) {
		t.Fatalf("creating a log over one: %v, want os.ErrExist", err)
	}
	again := m.restarted()
	open(t, options(dir, again))
	if got := again.texts(); !slices.Equal(got, []string{"one"}) {
		t.Fatalf("the refused creation left %q", got)
	}
}

// Damage in the pages of the index is an error and never the end of the process,
// which says nothing to an operator. bbolt has checksums on two pages only.
func TestFlippedBitInIndexIsNoCrash(t *testing.T) {
	t.Parallel()
	dir, m := t.TempDir(), &recorder{}
	closeLogAfter(t, dir, m, "one")
	name := filepath.Join(dir, walDir, metadb.FileName)
	content := readFile(t, name)
	const pageSize, leaf = 4096, 2
	refused, tried := 0, 0
	for page := 2 * pageSize; page < len(content); page += pageSize {
		if content[page+8] != leaf {
			continue
		}
		for bit := 0; bit < 8*64; bit += 3 { // its header and the first elements
			changed := bytes.Clone(content)
			changed[page+bit/8] ^= 1 << (bit % 8)
			must(t, os.WriteFile(name, changed, 0o644))
			o := options(dir, m.restarted())
			must(t, o.validate())
			store, err := openDisk(&o)
			tried++
			if err != nil {
				refused++
				continue
			}
			must(t, store.Close())
		}
	}
	if refused == 0 {
		t.Errorf("none of %d changed indexes was refused; this test tests nothing", tried)
	}
}

// The header of a page says how many pages follow. bbolt believes that when it writes
// the page again, in a goroutine of Raft's: it panics there, or takes all memory.
func TestFlippedHeaderInIndexIsRefused(t *testing.T) {
	t.Parallel()
	base, m := t.TempDir(), &recorder{}
	closeLogAfter(t, base, m, numbered(50)...)
	image := readFile(t, filepath.Join(base, walDir, metadb.FileName))
	refused := 0
	for page := 2 * 4096; page+4096 <= len(image); page += 4096 {
		for _, bit := range []int{0, 1, 9, 20, 31} {
			b := bytes.Clone(image)
			b[page+12+bit/8] ^= 1 << (bit % 8)
			dir := t.TempDir()
			must(t, copyTree(dir, base))
			must(t, os.WriteFile(filepath.Join(dir, walDir, metadb.FileName), b, 0o644))
			again := m.restarted()
			l, err := Open(options(dir, again))
			if err == nil { // a free page
				must(t, l.Ready(t.Context()))
				closeLog(t, l)
				continue
			}
			refused++
			wantDamage(t, err, metadb.FileName)
			if again.calls != 0 {
				t.Errorf("page %d, bit %d: the log was read", page/4096, bit)
			}
		}
	}
	if refused < 2*5 { // the list of free pages, and the tree of buckets
		t.Errorf("%d flipped bits were refused", refused)
	}
}

// raft-wal takes an index without segments for a new log, and removes the files that
// the index does not name. Whatever is missing from the index, it is refused and the
// files stay.
func TestIndexThatMissesSegmentsIsRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(list []byte) []byte // nil removes it
		found  string
	}{
		"no list":       {func([]byte) []byte { return nil }, "list of segments"},
		"an empty list": {func([]byte) []byte { return []byte(`{"NextSegmentID":9,"Segments":[]}`) }, "it is empty"},
		"another number": {func(b []byte) []byte { return bytes.Replace(b, []byte(`"ID":1,`), []byte(`"ID":0,`), 1) },
			"is not in the list"},
		"another begin": {func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"MinIndex":1,`),
				[]byte(`"MinIndex":0,`), 1)
		}, "its entries at 0"},
		"a next one that is": {func(b []byte) []byte {
			return bytes.Replace(b, []byte(`{"NextSegmentID":2`), []byte(`{"NextSegmentID":1`), 1)
		}, "the next one is 1"},
		"another name": {func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"MinIndex"`), []byte(`"MinIndey"`),
				1)
		}, "MinIndey"},
		"a sealed end": {func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"SealTime":"0001-`), []byte(`"SealTime":"0011-`), 1)
		}, "it is sealed at 0011"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, m := t.TempDir(), &recorder{}
			o := options(dir, m)
			o.Create, o.SegmentBytes = true, 4<<10
			l := open(t, o)
			for i := range 12 {
				write(t, l, fmt.Sprintf("%d %s", i, strings.Repeat("x", 500)))
			}
			closeLog(t, l)
			before := segments(t, dir)
			db, err := bbolt.Open(filepath.Join(dir, walDir, metadb.FileName), 0o600, nil)
			must(t, err)
			must(t, db.Update(func(tx *bbolt.Tx) error {
				bucket, key := tx.Bucket([]byte(metadb.MetaBucket)), []byte(metadb.MetaKey)
				list := bytes.Clone(bucket.Get(key))
				changed := tt.change(list)
				if changed == nil {
					return bucket.Delete(key)
				}
				if bytes.Equal(list, changed) {
					t.Errorf("the list is another one than this test expects: %s", list)
				}
				return bucket.Put(key, changed)
			}))
			must(t, db.Close())
			_, err = Open(options(dir, m.restarted()))
			wantDamage(t, err, tt.found)
			if after := segments(t, dir); !slices.Equal(after, before) {
				t.Errorf("the refused start left %v of %v", after, before)
			}
		})
	}
}
