package legacy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
)

const (
	walDir      = "wal"
	newWALDir   = "wal.tmp"
	snapshotDir = "snapshots" // the name is raft.FileSnapshotStore's own
)

// keyIdentity holds Options.Identity in the stable store, beside Raft's keys.
var keyIdentity = []byte("seqledger-identity")

// diskStore is what raft-wal provides: entries, Raft's term and vote, and Close.
type diskStore interface {
	raft.LogStore
	raft.StableStore
	Close() error
}

// openWAL opens raft-wal in dir, which makes a new log where there is none:
// a caller that wants an existing one must look first.
func openWAL(o *Options, dir string) (store diskStore, err error) {
	files := o.files
	if files == nil {
		files = walfs.New()
	}
	// The metadata is ours to close on an error, because raft-wal would keep its
	// file lock and the next attempt would wait for it for ever.
	meta := &metadb.BoltMetaDB{}
	defer func() {
		if p := recover(); p != nil {
			// bbolt panics on some damaged files instead of returning an error.
			store, err = nil, fmt.Errorf("legacy: raft-wal could not read its files: %v", p)
		}
		if err != nil {
			err = errors.Join(err, meta.Close())
		}
	}()
	if err := repairTail(o, meta, files, dir); err != nil {
		return nil, err
	}
	rotated := new(firstError)
	log, err := wal.Open(dir,
		wal.WithMetaStore(segmentIndex{meta, rotated}),
		wal.WithSegmentFiler(segment.NewFiler(dir, segmentFiles{files, meta, rotated})),
		wal.WithSegmentSize(o.SegmentBytes),
		wal.WithLogger(newHclog(o.Logger, "wal")))
	if err != nil {
		return nil, err
	}
	if o.wrap != nil {
		return o.wrap(explainedStore{log, rotated}), nil
	}
	return explainedStore{log, rotated}, nil
}

// openDisk opens the log of an existing data directory.
func openDisk(o *Options) (store diskStore, err error) {
	// A damaged page of the index may lead out of bbolt's memory map, which would
	// kill the process without a word about the file.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			store, err = nil, damage(o.Dir, nil, "its index %s makes no sense: %v", metadb.FileName, p)
		}
	}()
	dir := filepath.Join(o.Dir, walDir)
	meta, err := os.Stat(filepath.Join(dir, metadb.FileName))
	if err != nil {
		return nil, damage(o.Dir, err, "its index %s cannot be found", metadb.FileName)
	}
	if meta.Size() == 0 {
		// bbolt takes an empty file for a new database.
		return nil, damage(o.Dir, nil, "its index %s is empty", metadb.FileName)
	}
	if err := checkIndex(dir); err != nil {
		return nil, damage(o.Dir, err, "its index %s makes no sense", metadb.FileName)
	}
	store, err = openWAL(o, dir)
	if err != nil {
		return nil, damage(o.Dir, err, "it cannot be opened")
	}
	identity, err := store.Get(keyIdentity)
	if err == nil && bytes.Equal(identity, o.Identity) {
		return store, nil
	}
	switch {
	case err != nil:
		err = damage(o.Dir, err, "its identity cannot be read")
	case len(identity) == 0:
		err = damage(o.Dir, nil, "it has no identity: it was replaced by an empty one")
	default:
		err = damage(o.Dir, nil, "it belongs to another data directory (%q, want %q)", identity, o.Identity)
	}
	return nil, errors.Join(err, store.Close())
}

// sync makes the names in dir durable.
func (o *Options) sync(dir string) error {
	err := syncDir(dir)
	if err == nil && o.synced != nil {
		err = o.synced(dir)
	}
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("legacy: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("legacy: sync %s: %w", dir, err)
	}
	return nil
}
