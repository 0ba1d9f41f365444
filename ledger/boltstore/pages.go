package boltstore

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"unsafe"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/internal/boltpage"
	"github.com/seqledger/seqledger/ledger/internal/pagesum"
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

// pagesError describes a defect of a file's pages and what to do.
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
// returns the meta page that counts, because only now is the file locked. sums says
// how to open the checksums of the pages; nil for not at all.
func (s *Store) checkPages(sums *pagesum.Options) (meta boltpage.Meta, err error) {
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
	if sums != nil {
		if err := s.openSums(tx, meta, sums); err != nil {
			return meta, err
		}
	}
	if err := s.pages(tx).Check(meta, false); err != nil {
		return meta, pagesError(s.path, err)
	}
	if s.sums != nil && !s.readOnly && meta.Pages*uint64(meta.PageSize) <= verifiedAtOpen {
		if _, _, err := s.sums.Verify(s.rawPages(tx), 0, math.MaxInt); err != nil {
			return meta, fmt.Errorf("%s: %w: %w; "+adviceRestore, s.path, machine.ErrCorrupt, s.pageOf(tx, err))
		}
	}
	return meta, nil
}

// openSums opens the checksums of the pages, or makes them.
func (s *Store) openSums(tx *bbolt.Tx, meta boltpage.Meta, o *pagesum.Options) (err error) {
	if _, err := os.Stat(SumsPath(s.path)); errors.Is(err, fs.ErrNotExist) {
		if o.ReadOnly {
			return nil
		}
		// Nothing is left beside a file that is not this directory's.
		if err := s.rawPages(tx).Check(meta, false); err != nil {
			return pagesError(s.path, err)
		}
		if _, err := readControl(tx, o.Identity); err != nil {
			return fmt.Errorf("%s: %w", s.path, err)
		}
	}
	s.sums, err = pagesum.Open(SumsPath(s.path), s.rawPages(tx), meta, *o)
	if errors.Is(err, pagesum.ErrForeign) {
		if _, foreign := readControl(tx, o.Identity); errors.Is(foreign, ErrForeign) {
			return fmt.Errorf("%s: %w", s.path, foreign) // which names both
		}
	}
	return sumsError(s.path, err)
}

// verifiedAtOpen is the size up to which Open compares all pages of a file with their
// checksums, in bytes; of a larger file it compares the inner ones. It takes about a
// second where a disk reads as much in one.
const verifiedAtOpen = 256 << 20

// SumsPath returns the path of the page checksums of a state file: state.sum for state.db.
func SumsPath(state string) string { return strings.TrimSuffix(state, ".db") + ".sum" }

// sumsError describes a defect of a file's page checksums and what to do.
func sumsError(state string, err error) error {
	switch {
	case errors.Is(err, ErrSums):
		return fmt.Errorf("%s: %w: %w; move it away and run seqledger verify on the directory: if that finds nothing, "+
			"the next start makes it anew", state, machine.ErrCorrupt, err)
	case errors.Is(err, pagesum.ErrForeign):
		return fmt.Errorf("%s: %w: %w; put the right file back or "+adviceRestore, state, ErrForeign, err)
	case errors.Is(err, pagesum.ErrOther):
		return fmt.Errorf("%s: %w: %w; put back the one that belongs to the other, or "+adviceRestore,
			state, machine.ErrCorrupt, err)
	case errors.Is(err, boltpage.ErrDamaged):
		return pagesError(state, err)
	}
	if _, wrong := errors.AsType[*pagesum.PageError](err); wrong {
		return fmt.Errorf("%s: %w: %w; "+adviceRestore, state, machine.ErrCorrupt, err)
	}
	return err
}

// updateSums computes the checksums of the pages that the last transaction has written.
func (s *Store) updateSums() (err error) {
	if s.sums == nil {
		return nil
	}
	meta, err := boltpage.ReadMeta(s.file)
	if err != nil {
		return pageDamage(controlTable, nil, err)
	}
	tx, err := s.begin(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	return pageDamage(controlTable, nil, s.sums.Update(s.rawPages(tx), meta))
}

// Scrub compares up to count pages of the file with their checksums, from a page number
// on, and returns the number to go on with, 0 at the end of the file, and how many
// pages it has compared. Damage makes the store unusable, unless it was opened
// read-only. It waits for a Flush or SyncBlocks, and they wait for it.
func (s *Store) Scrub(from uint64, count int) (next uint64, compared int, err error) {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	if err := s.usable(); err != nil || s.sums == nil {
		return 0, 0, err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	next, compared, err = s.scrub(from, count)
	if err != nil && !s.readOnly {
		err = s.fail(err)
	}
	return next, compared, err
}

func (s *Store) scrub(from uint64, count int) (next uint64, compared int, err error) {
	defer recoverDamage(controlTable, nil, &err)
	tx, err := s.begin(false)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	next, compared, err = s.sums.Verify(s.rawPages(tx), from, count)
	if err != nil {
		err = fmt.Errorf("%w: %w; "+adviceRestore, machine.ErrCorrupt, s.pageOf(tx, err))
	}
	return next, compared, err
}

// ScrubPages returns how many pages a scrub has before it: those of the file, free ones
// included; 0 if the file has no checksums.
func (s *Store) ScrubPages() uint64 {
	if s.sums == nil {
		return 0
	}
	return s.sums.Pages()
}

// PageSize returns the size of the file's pages in bytes, of a closed store, too.
func (s *Store) PageSize() int { return s.pageSize }

// SumsMade reports whether Open found no page checksums and made them of the pages as they
// were.
func (s *Store) SumsMade() bool { return s.sums != nil && s.sums.Made() }

// pageOf adds to an error of a page which table the page is of.
func (s *Store) pageOf(tx *bbolt.Tx, err error) error {
	wrong, ok := errors.AsType[*pagesum.PageError](err)
	if !ok {
		return err
	}
	buckets := s.rawPages(tx).Buckets(uint64(tx.Cursor().Bucket().Root()))
	has := func(bucket []byte) bool {
		b, found, _ := buckets.Bucket(bucket)
		return found && b.Has(wrong.Page)
	}
	for table := range machine.Table(machine.TableCount) {
		if has(bucketName(table)) {
			return fmt.Errorf("%w, of table %d", err, table)
		}
	}
	switch {
	case has(filesBucket):
		return fmt.Errorf("%w, of the records of block files", err)
	case has(journalBucket):
		return fmt.Errorf("%w, of the journal", err)
	}
	return fmt.Errorf("%w; it belongs to no table", err)
}

// pages returns the pages of a transaction, as they were when it began. Each is compared with its checksum at its first
// use, except in a read-only store, because an offline check continues after damage and calls Scrub. They must not be
// used after the transaction, nor while a writable one commits: bbolt may then map the file elsewhere.
func (s *Store) pages(tx *bbolt.Tx) boltpage.Pages {
	if s.sums == nil || s.readOnly {
		return s.rawPages(tx)
	}
	return s.rawPages(tx).Checked(s.sums.Check)
}

// rawPages is pages without the comparison.
func (s *Store) rawPages(tx *bbolt.Tx) boltpage.Pages {
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

// checkFreeList checks the list of free pages that the last transaction has written.
func (s *Store) checkFreeList() error {
	meta, err := boltpage.ReadMeta(s.file)
	if err == nil {
		_, err = boltpage.CheckFreeList(s.file, meta)
	}
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
	if g == nil { // there are no leaves yet
		return nil
	}
	if g.placed && (g.beside || !removed) && g.cursor.Covers(key) {
		return nil
	}
	g.placed, g.beside = true, removed
	return pageDamage(g.table, key, g.cursor.VerifyLeaf(key, removed))
}

// touched returns how many bytes the pages have that the transaction changes so far.
func (g *leafGuard) touched() int64 { return g.cursor.Touched() }
