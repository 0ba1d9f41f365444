package legacy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"
)

// twoSegments leaves a log whose newest entries are in a segment of their own,
// above every checkpoint.
func twoSegments(t *testing.T, dir string) (texts []string) {
	t.Helper()
	o := options(dir, &recorder{})
	o.Create, o.SegmentBytes = true, 4<<10
	l := open(t, o)
	for i := 0; len(segments(t, dir)) == 1 || len(texts)%10 != 0; i++ {
		text := fmt.Sprintf("%04d%s", i, strings.Repeat("x", 500))
		write(t, l, text)
		texts = append(texts, text)
	}
	l.Fail(errors.New("power loss"))
	_ = l.Close()
	return texts
}

// The newest segment holds acknowledged writes as soon as the first of them is
// answered. Whatever takes all of it away is noticed, though raft-wal itself
// takes it for a segment that was never made.
func TestLostNewestSegmentIsRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		harm  func(t *testing.T, path string)
		found string
	}{
		"deleted": {func(t *testing.T, path string) { t.Helper(); must(t, os.Remove(path)) }, "no such file"},
		"emptied": {func(t *testing.T, path string) { t.Helper(); must(t, os.Truncate(path, 0)) },
			"cut off: it has 0 bytes of 4096"},
		"cut off": {func(t *testing.T, path string) { t.Helper(); must(t, os.Truncate(path, 1000)) },
			"cut off: it has 1000 bytes"},
		"zeroed": {func(t *testing.T, path string) {
			t.Helper()
			must(t, os.WriteFile(path, make([]byte, 4<<10), 0o644))
		}, "acknowledged entries were in it"},
		"overwritten": {func(t *testing.T, path string) {
			t.Helper()
			must(t, os.WriteFile(path, []byte(strings.Repeat("overwritten.", 400)), 0o644))
		}, "acknowledged entries were in it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			twoSegments(t, dir)
			names := segments(t, dir)
			last := names[len(names)-1]
			tt.harm(t, last)
			for range 2 {
				l, err := Open(options(dir, &recorder{}))
				if err == nil {
					t.Fatal("a log without its newest entries was opened", l.Close())
				}
				wantDamage(t, err, tt.found)
				if !strings.Contains(err.Error(), filepath.Base(last)) {
					t.Errorf("the message does not name the file: %v", err)
				}
			}
		})
	}
}

// noRoom is a file system without room for another segment.
type noRoom struct {
	*walfs.FS
	full bool
}

func (f *noRoom) Create(dir, name string, size uint64) (types.WritableFile, error) {
	if f.full {
		// As a failed preallocation leaves it.
		return nil, errors.Join(syscall.ENOSPC, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	return f.FS.Create(dir, name, size)
}

// A segment for which there is no room stops the log with that reason; raft-wal
// alone would say that the segment before is sealed. With room again the log
// goes on, in a segment of full size.
func TestNoRoomForTheNextSegment(t *testing.T) {
	t.Parallel()
	dir, m, files := t.TempDir(), &recorder{}, &noRoom{FS: walfs.New()}
	o := options(dir, m)
	o.Create, o.SegmentBytes, o.files = true, 4<<10, files
	l := open(t, o)
	files.full = true
	var acknowledged []string
	var err error
	for i := 0; err == nil && i < 100; i++ {
		text := fmt.Sprintf("%04d%s", i, strings.Repeat("x", 500))
		if _, err = l.Propose([]byte(text)).Wait(); err == nil {
			acknowledged = append(acknowledged, text)
		}
	}
	if !errors.Is(err, syscall.ENOSPC) || !errors.Is(err, ErrOutcomeUnknown) ||
		!strings.Contains(err.Error(), "make log segment 0000") {
		t.Errorf("a write without room for the next segment: %v", err)
	}
	if err := l.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Close: %v, want the failure", err)
	}
	for range 2 {
		again := &recorder{}
		o = options(dir, again)
		o.SegmentBytes = 4 << 10
		l = open(t, o)
		if got := again.texts(); !slices.Equal(got, acknowledged) {
			t.Fatalf("found %d entries, want %d", len(got), len(acknowledged))
		}
		names := segments(t, dir)
		if size := len(readFile(t, names[len(names)-1])); size != 4<<10 {
			t.Errorf("the newest segment has %d bytes, want its full size", size)
		}
		write(t, l, "more")
		acknowledged = append(acknowledged, "more")
		closeLog(t, l)
	}
}

// failingIndex fails changes of the list of segments.
type failingIndex struct{ types.MetaStore }

func (failingIndex) CommitState(types.PersistentState) error { return errDisk }

func (failingIndex) GetStable([]byte) ([]byte, error) { return nil, nil }

func TestRotationErrorNamesTheIndex(t *testing.T) {
	t.Parallel()
	first := new(firstError)
	err := segmentIndex{failingIndex{}, first}.CommitState(types.PersistentState{})
	if !errors.Is(err, errDisk) || !strings.Contains(err.Error(), metadb.FileName) {
		t.Errorf("CommitState = %v", err)
	}
	_ = first.keep(errors.New("later"))
	if kept := first.err.Load(); kept == nil || !errors.Is(*kept, errDisk) {
		t.Errorf("kept %v, want the first error", kept)
	}
}

// A log whose end is cut off, as a follower's may be, opens again wherever it is cut:
// the segment that was noted may be gone.
func TestCutOffEndOpens(t *testing.T) {
	t.Parallel()
	for keep := uint64(1); keep <= 40; keep += 3 {
		dir, m := t.TempDir(), &recorder{}
		o := options(dir, m)
		o.Create, o.SegmentBytes = true, 4<<10
		l := open(t, o)
		for i := range 40 {
			write(t, l, fmt.Sprintf("%d %s", i, strings.Repeat("x", 400)))
		}
		closeLog(t, l)
		if len(segments(t, dir)) < 4 {
			t.Fatal("too few segments")
		}
		o.Create = false
		must(t, o.validate())
		store, err := openDisk(&o)
		must(t, err)
		last, err := store.LastIndex()
		must(t, err)
		must(t, store.DeleteRange(keep+1, last))
		must(t, store.Close())
		for range 2 {
			if store, err = openDisk(&o); err != nil {
				t.Fatalf("cut off behind index %d: %v", keep, err)
			}
			if last, err = store.LastIndex(); err != nil || last < keep {
				t.Errorf("cut off behind index %d: it ends at %d, %v", keep, last, err)
			}
			must(t, store.StoreLogs([]*raft.Log{{Index: last + 1, Term: 9, Type: raft.LogNoop}}))
			must(t, store.Close())
		}
	}
}
