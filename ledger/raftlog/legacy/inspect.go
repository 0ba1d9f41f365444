package legacy

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// contents is what inspect found in a log that is fit to use.
type contents struct {
	configuration raft.Configuration // the latest membership
	covered       Position           // last command the state store is known to hold
	bytes         int64              // about what the entries take
}

// inspect reads the whole log and refuses it unless it continues the state
// store at checkpoint without a gap. It reads every entry, because a damaged one
// must be found before Raft counts on it; the log is bounded by truncation, and
// Raft is about to replay most of it anyway.
func inspect(o *Options, disk diskStore, snapshots raft.SnapshotStore) (contents, error) {
	found := contents{covered: o.Checkpoint}
	meta, payload, err := readSnapshot(snapshots)
	if err != nil {
		return found, damage(o.Dir, err, "its newest snapshot cannot be read")
	}
	var snapshot Position
	if meta != nil {
		snapshot = Position{Index: meta.Index, Term: meta.Term}
		found.configuration = meta.Configuration
		if string(payload.identity) != string(o.Identity) {
			return found, damage(o.Dir, nil, "its snapshot belongs to another data directory (%q, want %q)",
				payload.identity, o.Identity)
		}
	}
	first, err := disk.FirstIndex()
	if err != nil {
		return found, damage(o.Dir, err, "its first index cannot be read")
	}
	last, err := disk.LastIndex()
	if err != nil {
		return found, damage(o.Dir, err, "its last index cannot be read")
	}
	if err := checkBounds(o, first, last, snapshot, payload.covered); err != nil {
		return found, err
	}
	if err := scan(o, disk, first, last, snapshot, payload.covered, &found); err != nil {
		return found, err
	}
	if err := checkTerm(o, disk, last); err != nil {
		return found, err
	}
	if len(found.configuration.Servers) == 0 {
		return found, damage(o.Dir, nil, "neither its entries nor its snapshot name the members of the cluster")
	}
	return found, nil
}

// checkBounds compares where the log begins and ends with what should be there.
func checkBounds(o *Options, first, last uint64, snapshot, covered Position) error {
	at := o.Checkpoint
	switch {
	case last == 0:
		// The first entry is written at creation, and truncation keeps some.
		return damage(o.Dir, nil, "it is empty, and the state store is at %s", at)
	case last < at.Index:
		return damage(o.Dir, nil, "it ends at index %d, before the state store's %s", last, at)
	case last < snapshot.Index:
		return damage(o.Dir, nil, "it ends at index %d, before its own snapshot's %s", last, snapshot)
	case first > snapshot.Index+1:
		return damage(o.Dir, nil, "it begins at index %d, and nothing covers the entries before "+
			"(its snapshot is at index %d)", first, snapshot.Index)
	case at.Index < covered.Index:
		// Raft replays only what comes after its snapshot, so that the commands
		// between would be missing from the state without a word.
		return damage(o.Dir, nil, "there is a gap after the state store's %s: "+
			"the log was truncated when the store was at %s; the state store is older than the log", at, covered)
	case at.Index == covered.Index && at.Term != covered.Term:
		return damage(o.Dir, nil, "its snapshot has another term at the state store's %s (%d)", at, covered.Term)
	}
	return nil
}

// keyCurrentTerm is Raft's own key in the stable store.
var keyCurrentTerm = []byte("CurrentTerm")

// checkTerm compares the term that Raft has noted with the last entry's. A term
// is noted before the first entry of it is written. Raft would begin a term
// anew for which there are entries already.
func checkTerm(o *Options, disk diskStore, last uint64) error {
	noted, err := disk.GetUint64(keyCurrentTerm)
	if err != nil {
		return damage(o.Dir, err, "Raft's term cannot be read from its index")
	}
	var e raft.Log
	if err := getVerified(disk, last, &e); err != nil {
		return damage(o.Dir, err, "its last entry %d cannot be read", last)
	}
	if noted < e.Term {
		return damage(o.Dir, nil, "its index notes term %d, and entry %d is of term %d", noted, last, e.Term)
	}
	return nil
}

// scan reads the entries from first to last and notes what they say.
func scan(o *Options, disk diskStore, first, last uint64, snapshot, covered Position, found *contents) error {
	var before uint64
	for index := first; index <= last; index++ {
		var e raft.Log
		if err := getVerified(disk, index, &e); err != nil {
			return damage(o.Dir, err, "entry %d of %d to %d cannot be read", index, first, last)
		}
		if e.Term < before {
			return damage(o.Dir, nil, "entry %d is of term %d, after one of term %d", index, e.Term, before)
		}
		for _, known := range []struct {
			at   Position
			what string
		}{{o.Checkpoint, "the state store"}, {snapshot, "its snapshot"}} {
			if index == known.at.Index && e.Term != known.at.Term {
				return damage(o.Dir, nil,
					"entry %d is of term %d, and %s knows %s: the logs of two histories are mixed",
					index, e.Term, known.what, known.at)
			}
		}
		if e.Type == raft.LogCommand && index > covered.Index && index <= snapshot.Index {
			// Raft replays only what comes after its snapshot.
			return damage(o.Dir, nil, "its snapshot is at index %d and covers commands up to index %d, "+
				"and entry %d between is a command", snapshot.Index, covered.Index, index)
		}
		before = e.Term
		found.bytes += int64(entrySize(&e))
		if e.Type == raft.LogConfiguration && index > snapshot.Index {
			conf, err := decodeConfiguration(e.Data)
			if err != nil {
				return damage(o.Dir, err, "entry %d", index)
			}
			found.configuration = conf
		}
	}
	return nil
}

// decodeConfiguration returns an error where raft.DecodeConfiguration panics.
func decodeConfiguration(b []byte) (conf raft.Configuration, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("legacy: malformed membership: %v", p)
		}
	}()
	if !isWhole(b) {
		return conf, errors.New("legacy: malformed membership: not one whole value")
	}
	conf = raft.DecodeConfiguration(b)
	if len(conf.Servers) == 0 {
		return conf, errors.New("legacy: a membership without members")
	}
	return conf, nil
}

// entrySize is about what an entry takes on disk: its data, its numbers,
// its time and its frame.
func entrySize(e *raft.Log) int { return len(e.Data) + len(e.Extensions) + 48 }
