package legacy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// repairTail brings the index and the last segment into a state that raft-wal
// can go on from after a crash at any moment. It ends before Raft starts.
//
// What a process reads may be in the system's cache alone. A killed process
// leaves what it wrote and had not synced; a failed fsync leaves pages that Linux
// marks clean, so that no later fsync writes them. Raft would serve such entries
// and count on them, and a power loss would take them away from below what was
// acknowledged since. So everything that counts here is written once more
// and synced, with the directory's entry of the segment, before it counts. Sealed
// segments need none of it: a seal is noted only behind a successful sync.
//
// Behind the whole batches raft-wal alone cannot go on in three states:
//
//   - A crash after the write that fills a segment and before the next one is
//     noted: it opens, and every later write fails with "segment is sealed".
//   - A crash in the middle of that write: the same.
//   - Two torn writes in a row: it checks the last commit frame it sees and
//     takes the one before, which may be of the other torn write.
//
// So the bytes behind the last whole batch are zeroed, because no caller was told that
// they are written, and a full segment is marked as such. If they are no torn
// write but damage (checkTorn), nothing is changed.
func repairTail(o *Options, meta types.MetaStore, files types.VFS, dir string) error {
	state, err := meta.Load(dir)
	if err != nil || len(state.Segments) == 0 {
		return err
	}
	if err := rewriteIndex(files, dir); err != nil {
		return fmt.Errorf("%s: %w", metadb.FileName, err)
	}
	last := &state.Segments[len(state.Segments)-1]
	if !last.SealTime.IsZero() {
		return nil
	}
	whole, err := repairSegment(o, meta, files, dir, last)
	if err != nil {
		return fmt.Errorf("segment %s: %w", segment.FileName(*last), err)
	}
	if whole.index == 0 {
		return nil
	}
	last.SealTime = time.Now()
	last.IndexStart = uint64(whole.index)
	last.MaxIndex = last.BaseIndex + uint64(whole.entries) - 1
	next := *last
	next.ID, next.BaseIndex, next.MinIndex = state.NextSegmentID, last.MaxIndex+1, last.MaxIndex+1
	next.MaxIndex, next.IndexStart, next.CreateTime, next.SealTime = 0, 0, last.SealTime, time.Time{}
	state.NextSegmentID++
	state.Segments = append(state.Segments, next)
	return meta.CommitState(state)
}

// rewriteIndex writes wal-meta.db once more as it is. If the sync of its last
// transaction failed, the disk has the one before, and a further transaction may
// use pages that this one still needs; a mere empty transaction would do just
// that. Written whole and unchanged, the file agrees with its cache. A crash in
// the middle does no harm: the disk has all of these bytes already, but for the
// meta page of the transaction in question, instead of which the other meta page
// counts, and pages that are free in both. The file is a few dozen KiB. It is
// open meanwhile, so that its lock keeps others away.
func rewriteIndex(files types.VFS, dir string) (err error) {
	info, err := os.Stat(filepath.Join(dir, metadb.FileName))
	if err != nil {
		return err
	}
	file, err := files.OpenWriter(dir, metadb.FileName)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	content, err := io.ReadAll(io.NewSectionReader(file, 0, info.Size()))
	if err != nil {
		return err
	}
	return rewrite(file, content)
}

// repairSegment makes the whole batches of the last segment durable and removes
// what follows them.
func repairSegment(
	o *Options, meta types.MetaStore, files types.VFS, dir string, info *types.SegmentInfo,
) (whole batches, err error) {
	name := segment.FileName(*info)
	inUse, err := isNoted(meta, name)
	if err != nil {
		return whole, err
	}
	found, err := os.Stat(filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) && !inUse {
		return whole, nil // listed and not made yet: raft-wal makes it
	}
	if err != nil {
		return whole, err
	}
	if found.Size() < int64(info.SizeLimit) && inUse {
		return whole, fmt.Errorf("%w: cut off: it has %d bytes of %d", wal.ErrCorrupt, found.Size(), info.SizeLimit)
	}
	file, err := files.OpenWriter(dir, name)
	if err != nil {
		return whole, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	content, err := readUsed(file, found.Size())
	if err != nil {
		return whole, err
	}
	whole = readBatches(content)
	if whole.entries == 0 && inUse {
		return whole, fmt.Errorf("%w: acknowledged entries were in it, and none can be read", wal.ErrCorrupt)
	}
	if torn := len(content) - whole.end; torn > 0 {
		if err := checkTorn(content, whole, info.BaseIndex); err != nil {
			return whole, err
		}
		clear(content[whole.end:])
		o.Logger.Warn("the end of the log is a write that was interrupted and never acknowledged; it is removed",
			"segment", name, "offset", whole.end, "bytes", torn)
	}
	if whole.entries == 0 {
		// Nothing was acknowledged in it. A full disk may have left it shorter
		// than it should be; raft-wal makes it anew, with its full size.
		return whole, files.Delete(dir, name)
	}
	// To write over acknowledged bytes what they are already cannot harm them,
	// even if it is interrupted: raft-wal's appends do it to the page they begin in.
	if err := rewrite(file, content); err != nil {
		return whole, err
	}
	// A segment made by a process that was killed before its first sync has no
	// durable name yet, and raft-wal gives it one only where it makes the file.
	if err := o.sync(dir); err != nil || inUse || found.Size() < int64(info.SizeLimit) {
		return whole, err
	}
	return whole, noteSegment(meta, name)
}

// chunkBytes bounds one read or write of a repair.
const chunkBytes = 1 << 20

// readUsed reads a segment without the zeros at its end: it is made with its
// full size, and mostly empty. What it returns ends on a frame's boundary.
func readUsed(file io.ReaderAt, size int64) ([]byte, error) {
	zeros, buf := make([]byte, min(size, chunkBytes)), make([]byte, min(size, chunkBytes))
	// From the end, because a torn write may have left a hole of any size.
	for used := size; used > 0; {
		begin := (used - 1) / chunkBytes * chunkBytes
		chunk := buf[:used-begin]
		if _, err := io.ReadFull(io.NewSectionReader(file, begin, used-begin), chunk); err != nil {
			return nil, err
		}
		if bytes.Equal(chunk, zeros[:len(chunk)]) {
			used = begin
			continue
		}
		used = begin + int64(len(bytes.TrimRight(chunk, "\x00")))
		content := make([]byte, (used+frameHeader-1)&^(frameHeader-1))
		_, err := io.ReadFull(io.NewSectionReader(file, 0, used), content[:used])
		return content, err
	}
	return nil, nil
}

// rewrite makes content durable as the beginning of file.
func rewrite(file types.WritableFile, content []byte) error {
	for at := 0; at < len(content); at += chunkBytes {
		if _, err := file.WriteAt(content[at:min(at+chunkBytes, len(content))], int64(at)); err != nil {
			return err
		}
	}
	return file.Sync()
}
