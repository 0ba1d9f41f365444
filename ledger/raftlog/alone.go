package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// batchBytes is roughly how many bytes of the log are written at once.
const batchBytes = 1 << 20

// beforeDir holds the log of a cluster while the log of a single node takes its place.
const beforeDir = "segments.before"

// Alone turns the log of a cluster into the log of this node alone. All other members are dropped, and every entry in
// the log counts as committed, including entries that never were. Entries that only the other nodes had are lost. Use
// it for a node whose majority is gone for good. Alone uses the fields Dir, Identity, Checkpoint, Node, SegmentBytes
// and Logger of o.
//
// Alone builds the new log beside the old one and leaves the old one unchanged until the new one is complete. If it is
// interrupted at any point, call it again. A log without other members stays as it is. A log that does not match the
// state store is refused with a *DamageError.
func Alone(o Options) error {
	o.setDefaults()
	tmp, final := filepath.Join(o.Dir, newSegmentsDir), filepath.Join(o.Dir, segmentsDir)
	before := filepath.Join(o.Dir, beforeDir)
	var sole bool
	steps := []func() error{
		func() error { return settleAlone(final, before) },
		func() error { return os.RemoveAll(tmp) },
		func() error { return syncDir(o.Dir) },
		func() (err error) { sole, err = writeAlone(&o, tmp); return err },
		func() error { return os.Rename(final, before) },
		func() error { return syncDir(o.Dir) },
		func() error { return os.Rename(tmp, final) },
		func() error { return syncDir(o.Dir) },
		func() error { return os.RemoveAll(before) },
		func() error { return syncDir(o.Dir) },
	}
	for _, step := range steps {
		err := o.step()
		if err == nil {
			err = step()
		}
		if err != nil {
			return fmt.Errorf("make a log of one node: %w", err)
		}
		if sole {
			return nil
		}
	}
	return nil
}

// settleAlone finishes an interrupted call. The new log gets its final name only once it is complete. If the final name
// exists, settleAlone removes the old log; otherwise it gives the old log its name back.
func settleAlone(final, before string) error {
	if _, err := os.Stat(before); errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if _, err := os.Stat(final); errors.Is(err, os.ErrNotExist) {
		return os.Rename(before, final)
	} else if err != nil {
		return err
	}
	// Its name may be in the system's cache alone.
	if err := syncDir(filepath.Dir(final)); err != nil {
		return err
	}
	return os.RemoveAll(before)
}

// writeAlone durably writes the log of one node with the entries after the state store's checkpoint. It does nothing
// and returns true if there is no other member.
func writeAlone(o *Options, path string) (sole bool, err error) {
	old, members, err := openSegments(o, true)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, old.Abandon()) }()
	last, changed := members, false
	err = visit(old, o.Checkpoint.Index+1, old.Last().Index, func(e *segment.Entry) error {
		last, changed = last.After(e), changed || e.Kind == core.KindChange
		return nil
	})
	switch {
	case err != nil:
		return false, refusal(o.Dir, err, "its entries cannot be read")
	case !changed && members.IsSole(o.Node):
		return true, nil
	case !members.Has(o.Node) && !last.Has(o.Node):
		return false, fmt.Errorf("node %d is no member of the cluster that its log describes", o.Node)
	}
	alone := core.Members{Voters: []uint64{o.Node}, Highest: last.Highest}
	if a, found := last.Address(o.Node); found {
		alone.Addresses = []core.Address{a}
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return false, err
	}
	s := o.segments(false)
	s.Disk = o.disk(path)
	checkpoint := segment.Checkpoint{Position: o.Checkpoint, Data: alone.Encode()}
	if err := segment.Create(s, checkpoint, segment.State{}); err != nil {
		return false, err
	}
	files, err := segment.Open(s)
	if err != nil {
		return false, err
	}
	if err := copyCommands(files, old, o.Checkpoint.Index); err != nil {
		return false, errors.Join(err, files.Abandon())
	}
	return false, files.Close()
}

// copyCommands durably copies the entries after an index from one log to another. Membership changes become entries
// without a command, so that indexes stay the same.
func copyCommands(to, from *segment.Log, after uint64) error {
	var batch []segment.Entry
	size := 0
	err := visit(from, after+1, from.Last().Index, func(e *segment.Entry) error {
		entry := *e
		if entry.Kind == core.KindChange {
			entry.Kind, entry.Data = core.KindCommand, nil
		}
		batch = append(batch, entry)
		if size += len(entry.Data); size < batchBytes {
			return nil
		}
		err := to.Append(nil, batch)
		batch, size = batch[:0], 0
		return err
	})
	if err == nil {
		// Keep the term and the vote, so that no later election reuses an earlier term.
		state := from.State()
		state.Commit = from.Last().Index
		err = to.Append(&state, batch)
	}
	return errors.Join(err, to.Sync())
}
