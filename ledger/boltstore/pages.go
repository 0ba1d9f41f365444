package boltstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"unsafe"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/internal/boltpage"
	"github.com/seqledger/seqledger/ledger/machine"
)

// checkFile refuses a file that bbolt must not be let near: it would map pages
// that are not there and fault when it touches them, or take any amount of memory
// for the list of free pages. It reads three pages, so it takes the same time for
// any size of file. It needs no lock: a running writer extends the file before it
// writes the meta page that counts on it.
func checkFile(path string) (boltpage.Meta, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return boltpage.Meta{}, fmt.Errorf("%s: the state file is missing; "+
			"restore the data directory from a backup: %w", path, err)
	}
	if err != nil {
		return boltpage.Meta{}, fmt.Errorf("open the state file: %w", err)
	}
	defer func() { _ = file.Close() }() // only read from: nothing is lost
	info, err := file.Stat()
	if err != nil {
		return boltpage.Meta{}, fmt.Errorf("size of the state file: %w", err)
	}
	for {
		meta, err := boltpage.ReadMeta(file)
		if err != nil {
			return meta, pagesError(path, err)
		}
		if meta.Pages > uint64(info.Size())/uint64(meta.PageSize) {
			return meta, fmt.Errorf("%s: %w: truncated: %d bytes, but %d pages of %d bytes are in use; "+adviceRestore,
				path, machine.ErrCorrupt, info.Size(), meta.Pages, meta.PageSize)
		}
		if _, err = boltpage.CheckFreeList(file, meta); err == nil {
			return meta, nil
		}
		// A running writer may have taken the list's page for something else.
		if again, changed := boltpage.ReadMeta(file); changed != nil || again.TxID == meta.TxID {
			return meta, pagesError(path, err)
		}
	}
}

// pagesError says of a file what is wrong with its pages and what to do.
func pagesError(path string, err error) error {
	switch {
	case errors.Is(err, boltpage.ErrNotBolt):
		return fmt.Errorf("%s: %w: %w; "+adviceRestore, path, ErrForeign, err)
	case errors.Is(err, boltpage.ErrDamaged):
		return fmt.Errorf("%s: %w: %w; "+adviceRestore, path, machine.ErrCorrupt, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// checkPages reads the inner pages of the file and the list of free ones, and
// returns the meta page that counts, because only now is the file locked.
func (s *Store) checkPages() (meta boltpage.Meta, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer recoverDamage(controlTable, nil, &err)
	if meta, err = checkFile(s.path); err != nil {
		return meta, err
	}
	tx, err := s.begin(false)
	if err != nil {
		return meta, err
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	if err := s.pages(tx).Check(meta, false); err != nil {
		return meta, pagesError(s.path, err)
	}
	return meta, nil
}

// pages returns the pages of a transaction, as they were when it began. They must
// not be used after its end, nor while a writable one commits: then bbolt may map
// the file elsewhere.
func (s *Store) pages(tx *bbolt.Tx) boltpage.Pages {
	info := s.bolt.Info()
	// bbolt has the address of its map as a number only. It is no memory of Go's,
	// so nothing can move or free it.
	data := *(*unsafe.Pointer)(unsafe.Pointer(&info.Data))
	return boltpage.New(unsafe.Slice((*byte)(data), tx.Size()), info.PageSize)
}

// tableOf returns a table's records as they were when the transaction began.
func (s *Store) tableOf(tx *bbolt.Tx, table machine.Table) (boltpage.Bucket, error) {
	bucket, found, err := s.pages(tx).Buckets(uint64(tx.Cursor().Bucket().Root())).Bucket(bucketName(table))
	if err == nil && !found {
		err = damaged(table, nil, "the table's bucket is missing")
	}
	return bucket, pageDamage(table, nil, err)
}

// pageDamage names the record that was sought where pages make no sense.
func pageDamage(table machine.Table, key []byte, err error) error {
	if errors.Is(err, boltpage.ErrDamaged) {
		return damaged(table, key, "%v", err)
	}
	return err
}

// FreeListBytes returns how many bytes the list of the file's free pages takes. Each
// Flush and each Spill writes all of it. It never waits.
func (s *Store) FreeListBytes() int64 { return s.freeList.Load() }

// noteFreeList notes how long the list is that the last transaction has written.
func (s *Store) noteFreeList() error {
	meta, err := boltpage.ReadMeta(s.file)
	if err != nil {
		return err
	}
	size, err := boltpage.CheckFreeList(s.file, meta)
	s.freeList.Store(size)
	return err
}

// leafGuard checks the leaves that a transaction is about to change, as they are in
// the file. bbolt writes again what it reads, and frees as many pages as a header
// says: so a record that a damaged header hides would be gone for good, and a page
// in use could be taken for free.
type leafGuard struct {
	table  machine.Table
	cursor *boltpage.Cursor
	placed bool // the leaf where the cursor stands was checked
	beside bool // so were those on both sides of it
}

// check checks the leaf where a record is put or removed. A leaf that loses records
// may be merged with one beside it. Keys come in ascending order, so each leaf is
// checked once or twice.
func (g *leafGuard) check(key []byte, removed bool) error {
	if g.placed && (g.beside || !removed) && g.cursor.Covers(key) {
		return nil
	}
	g.placed, g.beside = true, removed
	return pageDamage(g.table, key, g.cursor.VerifyLeaf(key, removed))
}
