package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/legacy"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// oldCopyDir holds the copy of the old log that a conversion reads.
const oldCopyDir = "wal.copy"

// batchBytes is roughly how many bytes of an old log are written at once.
const batchBytes = 1 << 20

// Convert converts a log in the old format into this package's files. It uses the fields Dir, Identity, Checkpoint,
// SegmentBytes and Logger of o. marked must durably record that the directory uses the new log from then on. Until it
// does, the old log is authoritative and unchanged; afterwards the new one is, and RemoveOld removes what remains of
// the old one. So an interrupted conversion either starts over or is already complete. Convert fails with a
// *DamageError if the old log is damaged or does not match the state store.
func Convert(o Options, marked func() error) error {
	o.setDefaults()
	tmp, final := filepath.Join(o.Dir, newSegmentsDir), filepath.Join(o.Dir, segmentsDir)
	for _, step := range []func() error{
		// Left behind by interrupted conversions.
		func() error { return os.RemoveAll(tmp) },
		func() error { return os.RemoveAll(filepath.Join(o.Dir, oldCopyDir)) },
		func() error { return translate(&o, tmp) },
		// The old log has just been read in full, so this one was never in use.
		func() error { return os.RemoveAll(final) },
		func() error { return syncDir(o.Dir) },
		func() error { return os.Rename(tmp, final) },
		func() error { return syncDir(o.Dir) },
		marked,
		func() error { return RemoveOld(o.Dir) },
	} {
		err := o.step()
		if err == nil {
			err = step()
		}
		if err != nil {
			return fmt.Errorf("convert the log of before: %w", err)
		}
	}
	o.Logger.Info("the log was converted; older programs cannot open the directory any more", "log", o.Dir)
	return nil
}

// RemoveOld removes what an interrupted conversion left of the old log in dir.
func RemoveOld(dir string) error {
	if err := errors.Join(legacy.Remove(dir), os.RemoveAll(filepath.Join(dir, oldCopyDir))); err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	err := syncDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // Open refuses this
	}
	return err
}

// translate durably writes the entries after the state store's checkpoint into new files. Only other nodes would
// request earlier entries, and there are none.
func translate(o *Options, path string) error {
	if err := os.Mkdir(path, 0o700); errors.Is(err, os.ErrNotExist) {
		return refusal(o.Dir, err, "it cannot be found")
	} else if err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	s := o.segments(false)
	s.Disk = o.disk(path)
	if err := segment.Create(s, checkpointAt(o.Checkpoint), segment.State{}); err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	files, err := segment.Open(s)
	if err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	last := o.Checkpoint
	var batch []segment.Entry
	size := 0
	flush := func(state *segment.State) error {
		err := files.Append(state, batch)
		batch, size = batch[:0], 0
		return err
	}
	add := func(at Position, command []byte) error {
		batch = append(batch, segment.Entry{Index: at.Index, Term: at.Term, Kind: core.KindCommand, Data: command})
		last = at
		if size += len(command); size < batchBytes {
			return nil
		}
		return flush(nil)
	}
	copied := filepath.Join(o.Dir, oldCopyDir)
	term, err := readOld(o.Dir, copied, o.Identity, o.Checkpoint, func(e *legacy.Entry) error {
		// Raft's own entries between the state store and the log may be missing, because they were truncated.
		for last.Index+1 < e.Index {
			if err := add(Position{Index: last.Index + 1, Term: last.Term}, nil); err != nil {
				return err
			}
		}
		return add(Position(e.Position), e.Command)
	})
	if err == nil {
		err = flush(&segment.State{Term: term, Commit: last.Index})
	}
	if err == nil {
		err = files.Sync()
	}
	if err != nil {
		return errors.Join(err, files.Abandon(), os.RemoveAll(path))
	}
	return files.Close()
}
