package legacy

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// keySegmentInUse names, in the stable store, the newest segment that is known
// to be on disk with its name, its full size and at least one batch.
//
// raft-wal lists a new segment before it makes its file, so that a crash in
// between leaves a listed segment without a file, which it then makes anew. A
// file that was deleted by hand looks alike, and everything in it would be gone
// without a word. The note tells the two apart: it is durable before the first
// entry of the segment is acknowledged.
var keySegmentInUse = []byte("seqledger-segment")

// segmentFiles is the file system below raft-wal. It notes each new segment, and
// keeps the error of one that could not be made.
type segmentFiles struct {
	types.VFS
	meta    types.MetaStore
	rotated *firstError
}

// Create implements types.VFS.
func (f segmentFiles) Create(dir, name string, size uint64) (types.WritableFile, error) {
	file, err := f.VFS.Create(dir, name, size)
	if err != nil {
		return nil, f.rotated.keep(fmt.Errorf("make log segment %s of %d bytes: %w", name, size, err))
	}
	return &newSegment{WritableFile: file, note: func() error { return noteSegment(f.meta, name) }}, nil
}

// newSegment is a segment that was made by this process.
type newSegment struct {
	types.WritableFile
	note  func() error
	noted bool // raft-wal writes from one goroutine at a time
}

// Sync implements types.WritableFile. The first one comes with the first batch,
// and makes the file's name durable, too.
func (s *newSegment) Sync() error {
	if err := s.WritableFile.Sync(); err != nil || s.noted {
		return err
	}
	if err := s.note(); err != nil {
		return err
	}
	s.noted = true
	return nil
}

func noteSegment(meta types.MetaStore, name string) error {
	if err := meta.SetStable(keySegmentInUse, []byte(name)); err != nil {
		return fmt.Errorf("note segment %s in %s: %w", name, metadb.FileName, err)
	}
	return nil
}

func isNoted(meta types.MetaStore, name string) (bool, error) {
	noted, err := meta.GetStable(keySegmentInUse)
	return string(noted) == name, err
}

// segmentIndex is raft-wal's own metadata. It keeps the error of a change.
type segmentIndex struct {
	types.MetaStore
	rotated *firstError
}

// CommitState implements types.MetaStore. The segment that is noted stays in the
// list, or the next start would miss it: where the end of the log is cut off, which
// is never done to a sole voter's, the last one that is sealed takes its place.
func (i segmentIndex) CommitState(state types.PersistentState) error {
	noted, err := i.GetStable(keySegmentInUse)
	if err != nil {
		return i.rotated.keep(err)
	}
	listed, sealed := len(noted) == 0, ""
	for _, s := range state.Segments {
		name := segment.FileName(s)
		listed = listed || name == string(noted)
		if !s.SealTime.IsZero() {
			sealed = name
		}
	}
	if !listed {
		if err := noteSegment(i.MetaStore, sealed); err != nil {
			return i.rotated.keep(err)
		}
	}
	if err := i.MetaStore.CommitState(state); err != nil {
		return i.rotated.keep(fmt.Errorf("write %s: %w", metadb.FileName, err))
	}
	return nil
}

// firstError keeps the error of a rotation. raft-wal rotates in a goroutine of
// its own and merely logs why it could not; the next write is then refused
// because "the segment is sealed", which does not say that the disk is full.
type firstError struct{ err atomic.Pointer[error] }

func (f *firstError) keep(err error) error {
	f.err.CompareAndSwap(nil, &err)
	return err
}

// explainedStore is raft-wal with the reason why it takes no more entries.
type explainedStore struct {
	*wal.WAL
	rotated *firstError
}

// StoreLogs implements raft.LogStore.
func (s explainedStore) StoreLogs(entries []*raft.Log) error {
	err := s.WAL.StoreLogs(entries)
	if reason := s.rotated.err.Load(); reason != nil && errors.Is(err, wal.ErrSealed) {
		return *reason
	}
	return err
}
