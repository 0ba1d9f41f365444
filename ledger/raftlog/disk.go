package raftlog

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
			store, err = nil, fmt.Errorf("raftlog: raft-wal could not read its files: %v", p)
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

// create makes a log whose first entry names the members of the cluster. It is built beside its
// final place and renamed, so that a crash leaves either no log or a whole one.
func create(o *Options, conf *raft.Config, transport raft.Transport, members ...raft.Server) error {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	for _, name := range []string{walDir, snapshotDir} {
		if _, err := os.Stat(filepath.Join(o.Dir, name)); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("raftlog: cannot create a log in %s: %s is there already (%w)", o.Dir, name, os.ErrExist)
		}
	}
	tmp := filepath.Join(o.Dir, newWALDir)
	// Nothing in it was ever acknowledged: it had not got its name yet.
	if err := os.RemoveAll(tmp); err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	if err := fill(o, tmp, conf, transport, members); err != nil {
		return fmt.Errorf("raftlog: create a log in %s: %w", o.Dir, err)
	}
	if err := os.Rename(tmp, filepath.Join(o.Dir, walDir)); err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	return errors.Join(o.sync(o.Dir), o.sync(filepath.Dir(o.Dir)))
}

// fill writes the first entry, the membership, and the identity into dir.
func fill(o *Options, dir string, conf *raft.Config, transport raft.Transport, members []raft.Server) (err error) {
	store, err := openWAL(o, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	first := raft.Configuration{Servers: members}
	if err := raft.BootstrapCluster(conf, store, store, raft.NewInmemSnapshotStore(), transport, first); err != nil {
		return err
	}
	return store.Set(keyIdentity, o.Identity)
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
		return fmt.Errorf("raftlog: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("raftlog: sync %s: %w", dir, err)
	}
	return nil
}
