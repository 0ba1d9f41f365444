package raftlog

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

const (
	segmentsDir    = "segments"
	newSegmentsDir = "segments.tmp"
	// firstNode is the id of the node that creates a log.
	firstNode = 1
)

// Open opens the log, or creates it if Options.Create is set, and starts the consensus. From then on committed entries
// reach Machine.Apply; wait for Ready before the first proposal. A log that does not match the state store is refused
// with a *DamageError.
func Open(o Options) (*Log, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Create {
		if err := create(&o); err != nil {
			return nil, err
		}
	}
	files, members, err := openSegments(&o, false)
	if err != nil {
		return nil, err
	}
	if o.Cluster == nil && !members.IsSole(o.Node) {
		return nil, errors.Join(fmt.Errorf("raftlog: %w: this is node %d, and its log names the voters %d",
			ErrNeedsCluster, o.Node, members.Voters), files.Abandon())
	}
	l, err := start(o, files, members)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("raftlog: %w", err), files.Close())
	}
	return l, nil
}

func (o *Options) segments(readOnly bool) segment.Options {
	return segment.Options{
		Disk: o.disk(filepath.Join(o.Dir, segmentsDir)), Identity: o.Identity, SegmentBytes: int64(o.SegmentBytes),
		Random: rand.Reader, ReadOnly: readOnly, Logger: o.Logger,
	}
}

// create makes a log with one member.
func create(o *Options) error {
	members := core.Members{Voters: []uint64{firstNode}, Highest: firstNode}
	return makeLog(o, segment.Checkpoint{Data: members.Encode()}, segment.State{})
}

// CreateAt makes the log of a node that starts from another node's state. The log holds no entries up to at; members
// are the members as of at. state holds the Term and Vote of the node's previous log, if it had one; they must not be
// lost.
func CreateAt(o Options, at Position, members []byte, state State) error {
	decoded, rest, err := core.DecodeMembers(members)
	if err != nil || len(rest) > 0 || decoded.Highest == 0 {
		return fmt.Errorf("raftlog: the members of the log to make cannot be read: %w", errors.Join(err,
			fmt.Errorf("%d bytes, %d left over", len(members), len(rest))))
	}
	if state.Term < at.Term {
		state = State{Term: at.Term}
	}
	state.Commit = max(state.Commit, at.Index)
	o.setDefaults()
	return makeLog(&o, segment.Checkpoint{Position: at, Data: members}, state)
}

// makeLog builds a log under a temporary name and renames it, so that a crash leaves either no log or a complete one.
func makeLog(o *Options, checkpoint segment.Checkpoint, state segment.State) error {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	if _, err := os.Stat(filepath.Join(o.Dir, segmentsDir)); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("raftlog: cannot create a log in %s: %s exists already (%w)", o.Dir, segmentsDir,
			os.ErrExist)
	}
	tmp := filepath.Join(o.Dir, newSegmentsDir)
	// Nothing in it was ever acknowledged, because it never got its final name.
	if err := errors.Join(os.RemoveAll(tmp), os.Mkdir(tmp, 0o700)); err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	made := o.segments(false)
	made.Disk = o.disk(tmp)
	if err := segment.Create(made, checkpoint, state); err != nil {
		return fmt.Errorf("raftlog: create a log in %s: %w", o.Dir, err)
	}
	if err := os.Rename(tmp, filepath.Join(o.Dir, segmentsDir)); err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	return errors.Join(syncDir(o.Dir), syncDir(filepath.Dir(o.Dir)))
}

// openSegments opens the files of an existing log, and refuses a log that does not continue the state store without a
// gap. It returns the members as of the state store's position.
func openSegments(o *Options, readOnly bool) (files *segment.Log, members core.Members, err error) {
	path := filepath.Join(o.Dir, segmentsDir)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil, members, refusal(o.Dir, err, "its directory %s cannot be found", segmentsDir)
	}
	if files, err = segment.Open(o.segments(readOnly)); err != nil {
		return nil, members, refusal(o.Dir, err, "it cannot be opened")
	}
	members, err = mustFit(o, files)
	if err != nil {
		// Write nothing to it, not even a clean-shutdown record.
		return nil, members, errors.Join(err, files.Abandon())
	}
	return files, members, nil
}

// mustFit compares a log with the state store, and returns the members as of the store's position.
func mustFit(o *Options, files *segment.Log) (members core.Members, err error) {
	at, last, truncated := o.Checkpoint, files.Last(), files.Checkpoint().Position
	switch {
	case last.Index < at.Index:
		return members, refusal(o.Dir, nil, "it ends at index %d, before the state store's %s", last.Index, at)
	case at.Index < truncated.Index:
		return members, refusal(o.Dir, nil, "there is a gap after the state store's %s: "+
			"the log was truncated when the store was at %s; the state store is older than the log", at, truncated)
	case files.State().Term < last.Term:
		return members, refusal(o.Dir, nil, "it notes term %d, and entry %d is of term %d",
			files.State().Term, last.Index, last.Term)
	}
	term, err := files.Term(at.Index)
	if err != nil {
		return members, refusal(o.Dir, err, "the term of entry %d cannot be read", at.Index)
	}
	if term != at.Term {
		return members, refusal(o.Dir, nil, "entry %d is of term %d, and the state store knows %s: "+
			"the logs of two histories are mixed", at.Index, term, at)
	}
	if members, _, err = core.DecodeMembers(files.Checkpoint().Data); err != nil {
		return members, refusal(o.Dir, err, "its checkpoint does not name the members")
	}
	err = visit(files, truncated.Index+1, at.Index, func(e *segment.Entry) error {
		members = members.After(e)
		return nil
	})
	if err != nil {
		return members, refusal(o.Dir, err, "its entries cannot be read")
	}
	return members, nil
}

// readBytes is roughly how much of the log is read at once.
const readBytes = 8 << 20

// visit calls do for the entries from one index to another.
func visit(files *segment.Log, from, to uint64, do func(*segment.Entry) error) error {
	for from <= to {
		entries, err := files.Entries(from, to+1, readBytes)
		if err != nil {
			return err
		}
		for i := range entries {
			if err := do(&entries[i]); err != nil {
				return err
			}
		}
		from += uint64(len(entries))
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("raftlog: sync %s: %w", dir, err)
	}
	return nil
}
