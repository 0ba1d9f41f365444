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

// oldCopyDir is where a conversion reads a copy of the old log.
const oldCopyDir = "wal.copy"

// batchBytes is about how much of an old log is written at once.
const batchBytes = 1 << 20

// Convert makes the files of this package of a log that an older program has written. Of o it
// uses Dir, Identity, Checkpoint, SegmentBytes and Logger. Marked notes, durably, that the
// directory has the new log from then on: before it the old log counts and is not changed,
// behind it the new one, and what is left of the old one is removed by RemoveOld. So a
// conversion that was interrupted anywhere is begun again, or has come to its end. It fails
// with a *DamageError if the old log is damaged or does not fit the state store.
func Convert(o Options, marked func() error) error {
	o.setDefaults()
	tmp, final := filepath.Join(o.Dir, newSegmentsDir), filepath.Join(o.Dir, segmentsDir)
	for _, step := range []func() error{
		// Interrupted conversions have left these.
		func() error { return os.RemoveAll(tmp) },
		func() error { return os.RemoveAll(filepath.Join(o.Dir, oldCopyDir)) },
		func() error { return translate(&o, tmp) },
		// The old log was whole just now, so that these were never in use.
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

// RemoveOld removes what an interrupted conversion has left of the old log in dir.
func RemoveOld(dir string) error {
	if err := errors.Join(legacy.Remove(dir), os.RemoveAll(filepath.Join(dir, oldCopyDir))); err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	err := syncDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // which Open refuses
	}
	return err
}

// translate writes the entries behind the state store's checkpoint into new files, durably.
// Those before it only other nodes would ask for, and there are none.
func translate(o *Options, path string) error {
	if err := os.Mkdir(path, 0o755); errors.Is(err, os.ErrNotExist) {
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
		// Raft's own entries, which were truncated, may be missing between the state store and the log.
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
