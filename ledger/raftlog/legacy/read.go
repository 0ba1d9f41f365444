package legacy

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
)

// Entry is an entry of an old log.
type Entry struct {
	Position
	Command []byte // nil: one of Raft's own, which the state machine never sees
}

// Read checks the log in dir and calls visit for the entries behind checkpoint, until
// visit returns an error; it returns the term that Raft was in. No process may have the
// log open. It works on a copy in the directory copied, which it makes and removes,
// because opening a log repairs a torn tail and a read must change nothing. A log that
// does not fit is refused with a *DamageError. On a sole voter everything in the log is,
// or will be, committed.
func Read(dir, copied string, identity []byte, checkpoint Position, visit func(*Entry) error) (term uint64, err error) {
	defer func() {
		err = errors.Join(err, os.RemoveAll(copied))
		if damage, ok := errors.AsType[*DamageError](err); ok {
			damage.Dir = dir // the copy is gone
		}
	}()
	for _, name := range []string{walDir, snapshotDir} {
		if err := copyTree(filepath.Join(copied, name), filepath.Join(dir, name)); err != nil {
			return 0, fmt.Errorf("legacy: copy of %s: %w", dir, err)
		}
	}
	o := Options{
		Dir: copied, Identity: identity, Checkpoint: checkpoint,
		Logger: slog.New(slog.DiscardHandler), SegmentBytes: DefaultSegmentBytes,
	}
	disk, err := openDisk(&o)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	snapshots, err := openSnapshots(&o)
	if err != nil {
		return 0, err
	}
	found, err := inspect(&o, disk, snapshots)
	if err != nil {
		return 0, err
	}
	if members := found.configuration.Servers; len(members) > 1 {
		return 0, damage(dir, nil, "it names the members %+v, and it was never of a cluster", members)
	}
	if term, err = disk.GetUint64(keyCurrentTerm); err != nil {
		return 0, damage(dir, err, "Raft's term cannot be read from its index")
	}
	return term, visitEntries(disk, checkpoint, visit)
}

func visitEntries(disk raft.LogStore, after Position, visit func(*Entry) error) error {
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
		found := &Entry{Position: Position{Index: e.Index, Term: e.Term}}
		if e.Type == raft.LogCommand {
			found.Command = e.Data
		}
		if err := visit(found); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes an old log. A part of it may be left after a crash, and is no log any more.
func Remove(dir string) error {
	var errs []error
	for _, name := range []string{walDir, newWALDir, snapshotDir} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			errs = append(errs, fmt.Errorf("legacy: remove the old log: %w", err))
		}
	}
	return errors.Join(errs...)
}

// copyTree copies the files below a directory, if it is there.
func copyTree(to, from string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if _, err := os.Stat(from); errors.Is(err, os.ErrNotExist) {
		return nil // which is found out, with its name, by who reads it
	}
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
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
