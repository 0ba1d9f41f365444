package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/internal/pagesum"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Files of versions 2 and 3 have the blocks in a table of their own. Its records from
// the one that the control record "ahead" names on were written ahead of the checkpoint:
// the log makes them again. They have an index of heights, too, in table 6.
const (
	oldTables  = 9 // how many a file of version 2 has
	keyAhead   = "ahead"
	copyRecord = 64 << 10 // records, or
	copyBytes  = 32 << 20 // bytes that one transaction of a new file takes
)

// IsOld reports whether a state file has an older format, which Upgrade converts.
func IsOld(path string) (bool, error) {
	s := &Store{path: path, readOnly: true}
	if err := s.openOld(nil); err != nil {
		return false, err
	}
	defer func() { _ = s.Close() }() // it was only read
	tx, err := s.begin(false)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }()
	version, _, err := readFormat(tx)
	return err == nil && (version == 2 || version == 3), err
}

// Upgrade converts a state file of an older format that no process has open: it puts
// the blocks into block files beside it, and everything else into a new file, whose path
// it returns. The old file stays as it is; [Replace] puts the new one in its place. It
// makes anew what an interrupted Upgrade has left. progress gets the number of bytes of
// records copied so far; it may be nil.
func Upgrade(path string, identity []byte, progress func(done int64)) (newPath string, err error) {
	s := &Store{path: path, readOnly: true}
	if err := s.openOld(&pagesum.Options{Identity: identity, ReadOnly: true}); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, _, err := s.Scrub(0, math.MaxInt); err != nil {
		return "", err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer recoverDamage(controlTable, nil, &err)
	tx, err := s.begin(false)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	u := &upgrade{old: s, tx: tx, identity: identity, progress: progress}
	if err := u.readControl(); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if newPath, err = u.copyAll(); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return newPath, nil
}

// Replace puts the file that Upgrade has made in the place of the old one. The checksums of the old
// one's pages go first, so that they never lie beside the new one: the next Open makes its own.
func Replace(newPath, path string) error {
	if err := os.Remove(SumsPath(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the page checksums: %w", err)
	}
	// First, because the new file does not open with the checksums of the old one.
	if err := syncDir(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Rename(newPath, path); err != nil {
		return fmt.Errorf("replace the state file: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

// openOld opens a file of any version and checks its pages; with sums against their checksums, if it
// has some.
func (s *Store) openOld(sums *pagesum.Options) error {
	if _, err := checkFile(s.path); err != nil {
		return err
	}
	if err := s.openBolt(Options{}); err != nil {
		return err
	}
	if _, err := s.checkPages(sums); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

type upgrade struct {
	old      *Store
	tx       *bbolt.Tx // of the old file
	identity []byte
	progress func(done int64)
	done     int64

	version uint32
	applied []byte
	ahead   []byte // empty for none
	records machine.RecordUpgrade
}

func (u *upgrade) readControl() error {
	version, bucket, err := readFormat(u.tx)
	if err != nil {
		return err
	}
	if u.version = version; version != 2 && version != 3 {
		return fmt.Errorf("%w %d: nothing converts it", ErrVersion, version)
	}
	stored, err := getControl(bucket, keyIdentity, -1)
	if err == nil && !bytes.Equal(stored, u.identity) {
		err = fmt.Errorf("%w: it has identity %x, this directory %x", ErrForeign, stored, u.identity)
	}
	if err == nil {
		u.applied, err = getControl(bucket, keyApplied, 16)
	}
	if err == nil {
		u.ahead, err = getControl(bucket, []byte(keyAhead), -1)
	}
	return err
}

// visit calls f for the records of a table of the old file from a key on, each checked as a
// whole.
func (u *upgrade) visit(table machine.Table, from []byte, f func(key, value []byte) error) error {
	bucket, err := u.old.tableOf(u.tx, table)
	if err != nil {
		return err
	}
	cursor := bucket.Cursor()
	var before []byte
	key, value, err := cursor.Seek(from)
	for ; key != nil && err == nil; key, value, err = cursor.Next() {
		body := len(value) - sumSize
		if body < 0 || checksum(table, key, value[:body]) != binary.LittleEndian.Uint32(value[body:]) {
			return damaged(table, key, "its checksum is wrong; "+adviceRestore)
		}
		if before != nil && bytes.Compare(before, key) >= 0 {
			return damaged(table, key, "it comes behind key %x", before)
		}
		if err := f(key, value[:body]); err != nil {
			return err
		}
		before = key
		u.done += int64(len(key) + len(value))
		if u.progress != nil {
			u.progress(u.done)
		}
	}
	return pageDamage(table, before, err)
}

// copyAll makes the block files and the new state file: the blocks that the state covers,
// then the state, which has where their chains end, and then the other blocks.
func (u *upgrade) copyAll() (newPath string, err error) {
	dir := BlocksOf(u.old.path)
	if err := os.RemoveAll(dir); err != nil { // of an upgrade that was interrupted
		return "", err
	}
	first := firstMark(Options{Identity: u.identity})
	files, err := blockfile.Open(blockfile.Options{Disk: blockfile.Directory{Path: dir}, Mark: first})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	if err := u.copyBlocks(files, nil, u.ahead); err != nil {
		return "", err
	}
	if newPath, err = u.copyTables(files.Mark()); err != nil {
		return "", err
	}
	if len(u.ahead) > 0 {
		err = u.copyBlocks(files, u.ahead, nil)
	}
	return newPath, err
}

// errEnough ends a visit.
var errEnough = errors.New("enough")

// copyBlocks puts the blocks from one key up to another, or to the end, into the files.
func (u *upgrade) copyBlocks(files *blockfile.Files, from, to []byte) error {
	err := u.visit(machine.TableBlocks, from, func(key, value []byte) error {
		if len(to) > 0 && bytes.Compare(key, to) >= 0 {
			return errEnough
		}
		if files.Unsynced() > copyBytes {
			if _, err := files.Sync(); err != nil {
				return err
			}
		}
		last, record, err := u.records.Convert(key, value)
		if err != nil {
			return err
		}
		return files.Append(last, record)
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	_, err = files.Sync()
	return err
}

// copyTables makes the new file.
func (u *upgrade) copyTables(mark blockfile.Mark) (path string, err error) {
	temp, err := os.CreateTemp(filepath.Dir(u.old.path), filepath.Base(u.old.path)+".new-*")
	if err != nil {
		return "", err
	}
	path = temp.Name()
	defer func() {
		if err != nil {
			_ = os.Remove(path) // it is only clutter
		}
	}()
	if err := temp.Close(); err != nil {
		return "", err
	}
	if err := initialize(path, Options{Identity: u.identity}); err != nil {
		return "", err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for table := range machine.Table(machine.TableCount) {
		if !table.InStateFile() || table >= machine.FirstLocalTable || u.version == 2 && table >= oldTables {
			continue
		}
		if err := u.copyTable(db, table); err != nil {
			return "", err
		}
	}
	return path, db.Update(func(tx *bbolt.Tx) error {
		return errors.Join(putControl(tx, keyApplied, u.applied), putControl(tx, keyBlocks, mark.Append(nil)))
	})
}

// copyTable copies a table in transactions of a bounded size: nothing reads the new file
// before it is whole.
func (u *upgrade) copyTable(db *bbolt.DB, table machine.Table) (err error) {
	var tx *bbolt.Tx
	defer func() {
		if tx != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	records, size := 0, 0
	commit := func() error {
		if tx == nil {
			return nil
		}
		done := tx
		tx, records, size = nil, 0, 0
		return done.Commit()
	}
	err = u.visit(table, nil, func(key, value []byte) error {
		if table == machine.TableScopes {
			if value, err = u.records.Head(key, value); err != nil {
				return err
			}
		}
		if tx == nil {
			if tx, err = db.Begin(true); err != nil {
				return err
			}
		}
		bucket := tx.Bucket(bucketName(table))
		bucket.FillPercent = fillPercent(table)
		if err := bucket.Put(key, sealed(table, key, value)); err != nil {
			return err
		}
		if records, size = records+1, size+len(key)+len(value); records < copyRecord && size < copyBytes {
			return nil
		}
		return commit()
	})
	if err != nil {
		return err
	}
	return commit()
}
