package raftlog

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
)

// Read checks the log in dir as Open does and calls visit for the commands that
// come after checkpoint, until visit returns an error. No process may have the log
// open. It works on a copy below the system's directory for temporary files,
// because opening a log repairs a torn tail and a read must change
// nothing. A log that does not fit is refused with a *DamageError. On a sole
// voter everything in the log is, or will be, committed.
func Read(dir string, identity []byte, checkpoint Position, visit func(at Position, entry []byte) error) (err error) {
	temporary, err := os.MkdirTemp("", "seqledger-log-*")
	if err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	if err := copyTree(temporary, dir); err != nil {
		return fmt.Errorf("raftlog: copy of %s: %w", dir, err)
	}
	o := Options{
		Dir: temporary, NodeID: "reader", Identity: identity, Checkpoint: checkpoint,
		Logger: slog.New(slog.DiscardHandler), SegmentBytes: DefaultSegmentBytes,
	}
	defer func() {
		if damage, ok := errors.AsType[*DamageError](err); ok {
			damage.Dir = dir // the copy is gone afterwards
		}
	}()
	disk, err := openDisk(&o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	snapshots, err := openSnapshots(&o, raftConfig(&o))
	if err != nil {
		return err
	}
	if _, err := inspect(&o, disk, snapshots); err != nil {
		return err
	}
	return visitCommands(disk, checkpoint, visit)
}

func visitCommands(disk raft.LogStore, after Position, visit func(Position, []byte) error) error {
	first, err := disk.FirstIndex()
	if err != nil {
		return err
	}
	last, err := disk.LastIndex()
	if err != nil {
		return err
	}
	for index := max(first, after.Index+1); index <= last; index++ {
		var e raft.Log
		if err := getVerified(disk, index, &e); err != nil {
			return err
		}
		if e.Type != raft.LogCommand {
			continue
		}
		if err := visit(Position{Index: e.Index, Term: e.Term}, e.Data); err != nil {
			return err
		}
	}
	return nil
}

// copyTree copies the files below a directory.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, relative)
		if entry.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		return copyFile(target, path)
	})
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // It was only read.
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
