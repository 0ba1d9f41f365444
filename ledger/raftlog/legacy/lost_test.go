package legacy

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"
)

// fate is what becomes of a sync.
type fate int

const (
	synced   fate = iota
	killed        // the process is gone before it; what it wrote stays in the cache, to be written
	lostSync      // it fails, and the cache takes what was written for clean, as Linux does
)

// lossyFiles knows what of the log's files is on disk, and what in the system's
// cache alone. The files themselves are the cache; they outlive a process.
type lossyFiles struct {
	*walfs.FS
	mu      sync.Mutex
	disk    map[string][]byte   // content on disk, by file name
	named   map[string]bool     // files whose directory entry is on disk
	dirty   map[string][]extent // written and not synced
	written map[string]int      // bytes
	decide  func(name string, content []byte) fate
}

type extent struct {
	at int64
	b  []byte
}

type lossyFile struct {
	types.WritableFile
	files     *lossyFiles
	dir, name string
	made      bool // by this process, so that raft-wal syncs the directory with it
}

func newLossyFiles() *lossyFiles {
	return &lossyFiles{
		FS: walfs.New(), disk: map[string][]byte{}, named: map[string]bool{},
		dirty: map[string][]extent{}, written: map[string]int{},
		decide: func(string, []byte) fate { return synced },
	}
}

func (s *lossyFiles) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := s.FS.Create(dir, name, size)
	return lossyFile{f, s, dir, name, true}, err
}

func (s *lossyFiles) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := s.FS.OpenWriter(dir, name)
	if err != nil {
		return nil, err
	}
	return lossyFile{f, s, dir, name, false}, nil
}

func (f lossyFile) WriteAt(b []byte, at int64) (int, error) {
	f.files.mu.Lock()
	defer f.files.mu.Unlock()
	f.files.dirty[f.name] = append(f.files.dirty[f.name], extent{at, bytes.Clone(b)})
	f.files.written[f.name] += len(b)
	return f.WritableFile.WriteAt(b, at)
}

func (f lossyFile) Sync() error {
	content, err := os.ReadFile(filepath.Join(f.dir, f.name))
	if err != nil {
		return err
	}
	s := f.files
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.decide(f.name, content) {
	case killed:
		return errDisk
	case lostSync:
		delete(s.dirty, f.name)
		return errDisk
	}
	for _, e := range s.dirty[f.name] {
		if grow := int(e.at) + len(e.b) - len(s.disk[f.name]); grow > 0 {
			s.disk[f.name] = append(s.disk[f.name], make([]byte, grow)...)
		}
		copy(s.disk[f.name][e.at:], e.b)
	}
	delete(s.dirty, f.name)
	s.named[f.name] = s.named[f.name] || f.made
	return f.WritableFile.Sync()
}

// synced is Options.synced.
func (s *lossyFiles) synced(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		s.named[filepath.Base(name)] = true
	}
	return err
}

// powerLoss leaves of the segments in dir what is on disk.
func (s *lossyFiles) powerLoss(t *testing.T, dir string) {
	t.Helper()
	for _, path := range segments(t, dir) {
		name := filepath.Base(path)
		if !s.named[name] {
			must(t, os.Remove(path))
			continue
		}
		content := make([]byte, len(readFile(t, path)))
		copy(content, s.disk[name])
		must(t, os.WriteFile(path, content, 0o644))
	}
	clear(s.dirty)
}

func (s *lossyFiles) options(dir string, m *recorder) Options {
	o := options(dir, m)
	o.SegmentBytes, o.files, o.synced = 4<<10, s, s.synced
	return o
}

// A process that finds entries in the system's cache which are not on disk makes
// them durable before it serves them: a power loss later takes nothing away of
// what it applied and acknowledged.
func TestRestartServesOnlyWhatIsOnDisk(t *testing.T) {
	t.Parallel()
	full := func(content []byte) bool { return readBatches(content).index > 0 }
	later := func(s *lossyFiles, name string) bool { // than the log's first segment, and new
		return !strings.HasPrefix(name, fmt.Sprintf("%020d-", 1)) && !s.named[name]
	}
	fifth := func(content []byte) bool { return readBatches(content).entries == 5 }
	for name, tt := range map[string]struct {
		fate fate
		when func(s *lossyFiles, name string, content []byte) bool
	}{
		"killed before the sync of a write": {killed,
			func(_ *lossyFiles, _ string, c []byte) bool { return fifth(c) }},
		"failed sync of a write": {lostSync,
			func(_ *lossyFiles, _ string, c []byte) bool { return fifth(c) }},
		"killed before the sync of a full segment": {killed,
			func(_ *lossyFiles, _ string, c []byte) bool { return full(c) }},
		"failed sync of a full segment": {lostSync, func(_ *lossyFiles, _ string, c []byte) bool { return full(c) }},
		"killed before the first sync of a segment": {killed, func(s *lossyFiles, name string, _ []byte) bool {
			return later(s, name)
		}},
		"failed first sync of a segment": {lostSync, func(s *lossyFiles, name string, _ []byte) bool {
			return later(s, name)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, files := t.TempDir(), newLossyFiles()
			o := files.options(dir, &recorder{})
			o.Create = true
			files.decide = func(name string, content []byte) fate {
				if name != metadb.FileName && tt.when(files, name, content) {
					return tt.fate
				}
				return synced
			}
			l := open(t, o)
			last := ""
			for i := 0; ; i++ {
				last = fmt.Sprintf("%04d%s", i, strings.Repeat("x", 500))
				if _, err := l.Propose([]byte(last)).Wait(); errors.Is(err, errDisk) {
					break
				} else if err != nil || i == 100 {
					t.Fatalf("proposal %d: %v, want the sync to fail", i, err)
				}
			}
			_ = l.Close() // the failure

			files.decide = func(string, []byte) fate { return synced }
			again := &recorder{}
			l = open(t, files.options(dir, again))
			if got := again.texts(); len(got) == 0 || got[len(got)-1] != last {
				t.Fatalf("the restart does not serve what is in the cache (%d entries); this test tests nothing",
					len(got))
			}
			write(t, l, "more")
			l.Fail(errors.New("power loss"))
			_ = l.Close()
			files.powerLoss(t, dir)

			third := &recorder{}
			open(t, files.options(dir, third))
			if got, want := third.texts(), again.texts(); !slices.Equal(got, want) {
				t.Errorf("after the power loss %d entries, and %d had been served", len(got), len(want))
			}
		})
	}
}

// The index of the segments, which holds the vote, too, is made durable as it was
// read, all of it and before anything else is written to it.
func TestIndexIsMadeDurable(t *testing.T) {
	t.Parallel()
	dir, m := t.TempDir(), &recorder{}
	closeLogAfter(t, dir, m, "one")
	before := readFile(t, filepath.Join(dir, walDir, metadb.FileName))
	files := newLossyFiles()
	open(t, files.options(dir, m.restarted()))
	if !bytes.Equal(files.disk[metadb.FileName], before) {
		t.Errorf("%d bytes of the index were written and synced, want the %d that were found",
			len(files.disk[metadb.FileName]), len(before))
	}
	// And a sync that fails again is no reason to go on.
	files.decide = func(name string, _ []byte) fate {
		if name == metadb.FileName {
			return lostSync
		}
		return synced
	}
	_, err := Open(files.options(t.TempDir(), m.restarted()))
	if err == nil {
		t.Fatal("a log that does not exist was opened")
	}
	closeLogAfter(t, filepath.Join(dir, "second"), &recorder{}, "one")
	if _, err := Open(files.options(filepath.Join(dir, "second"), &recorder{})); !errors.Is(err, errDisk) {
		t.Errorf("Open with an index that cannot be synced: %v, want the failure", err)
	}
}

// A segment has its full size from the start: opening a log rewrites only what
// is used of it. A torn write may reach far behind a hole all the same, and goes,
// with a word about it that holds nothing of what was written.
func TestRepairTouchesOnlyWhatIsUsed(t *testing.T) {
	t.Parallel()
	dir, m := t.TempDir(), &recorder{}
	o := options(dir, m)
	o.Create, o.SegmentBytes = true, DefaultSegmentBytes
	l := open(t, o)
	write(t, l, "one")
	closeLog(t, l)
	name := segments(t, dir)[0]
	content := readFile(t, name)
	end := readBatches(content).end
	if len(content) != DefaultSegmentBytes {
		t.Fatalf("the segment has %d bytes, want its full size from the start", len(content))
	}
	files := newLossyFiles()
	o = files.options(dir, &recorder{})
	closeLog(t, open(t, o))
	if n := files.written[filepath.Base(name)]; n < end || n > end+4<<10 {
		t.Errorf("%d bytes of the segment were written, want the %d that are used and two Raft entries", n, end)
	}

	const far = 5<<20 + 123
	whole := readBatches(readFile(t, name)).end
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	must(t, err)
	_, err = file.WriteAt([]byte("secret"), far)
	must(t, errors.Join(err, file.Close()))
	var logged bytes.Buffer
	o = options(dir, &recorder{})
	o.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
	closeLog(t, open(t, o))
	if bytes.Contains(readFile(t, name), []byte("secret")) {
		t.Error("what a torn write left behind a hole is still there")
	}
	for _, part := range []string{"level=WARN", "never acknowledged", fmt.Sprintf("offset=%d", whole), "bytes="} {
		if !strings.Contains(logged.String(), part) {
			t.Errorf("the log lacks %q: %s", part, logged.String())
		}
	}
	if strings.Contains(logged.String(), "secret") {
		t.Errorf("the log has the payload: %s", logged.String())
	}
}

func TestReadUsed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ size, last, want int }{ // last: offset of the last byte that is not zero
		{0, -1, 0}, {5, -1, 0}, {3 * chunkBytes, -1, 0}, {3 * chunkBytes, 0, 8}, {3 * chunkBytes, 7, 8},
		{3 * chunkBytes, 8, 16}, {3 * chunkBytes, chunkBytes - 1, chunkBytes},
		{3 * chunkBytes, chunkBytes, chunkBytes + 8},
		{3*chunkBytes + 5, 3*chunkBytes + 4, 3*chunkBytes + 8}, {chunkBytes, 100, 104},
	} {
		file := make([]byte, tt.size)
		if tt.last >= 0 {
			file[tt.last] = 0xff
		}
		got, err := readUsed(bytes.NewReader(file), int64(tt.size))
		must(t, err)
		want := make([]byte, tt.want)
		copy(want, file)
		if !bytes.Equal(got, want) {
			t.Errorf("%+v: read %d bytes", tt, len(got))
		}
	}
	if _, err := readUsed(bytes.NewReader(make([]byte, 10)), 11); err == nil {
		t.Error("a file that is shorter than it says was read")
	}
}

// snapshotNames holds what the directory entries are that a power loss would
// leave: those at the last sync of each directory.
type snapshotNames struct {
	mu      sync.Mutex
	durable map[string][]string
}

func (s *snapshotNames) synced(dir string) error {
	entries, err := os.ReadDir(dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	// A directory keeps its entries when it is renamed.
	s.durable[strings.TrimSuffix(filepath.Base(dir), snapshotTmp)] = names
	return err
}

// beforeCut calls check whenever the log is about to be cut off.
type beforeCut struct {
	diskStore
	check func()
}

func (s beforeCut) DeleteRange(lowest, highest uint64) error {
	s.check()
	return s.diskStore.DeleteRange(lowest, highest)
}

var _ raft.LogStore = beforeCut{}

// When the log is cut off, the snapshot that covers what is gone is on disk by
// every name on the way to it; otherwise a power loss would leave a log that
// nothing covers, and that is refused.
func TestSnapshotIsDurableBeforeTheLogIsCut(t *testing.T) {
	t.Parallel()
	dir, m := t.TempDir(), &recorder{}
	names := &snapshotNames{durable: map[string][]string{}}
	cuts := 0
	o := options(dir, m)
	o.Create, o.synced = true, names.synced
	o.wrap = func(d diskStore) diskStore {
		return beforeCut{d, func() {
			cuts++
			names.mu.Lock()
			defer names.mu.Unlock()
			durable := maps.Clone(names.durable)
			if !slices.Contains(durable[filepath.Base(dir)], snapshotDir) {
				t.Errorf("%s itself is not on disk: %v", snapshotDir, durable)
			}
			inside, _ := os.ReadDir(filepath.Join(dir, snapshotDir))
			newest := inside[len(inside)-1].Name() // of equal terms and digits
			if !slices.Contains(durable[snapshotDir], newest) {
				t.Errorf("the name of snapshot %s is not on disk: %v", newest, durable)
			}
			if got := durable[newest]; !slices.Equal(got, []string{"meta.json", "state.bin"}) {
				t.Errorf("the files of snapshot %s are not on disk: %v", newest, durable)
			}
		}}
	}
	l := open(t, o)
	for range 3 {
		write(t, l, numbered(150)...)
		must(t, l.Truncate())
	}
	if cuts == 0 {
		t.Fatal("the log was never cut off; this test tests nothing")
	}
}
