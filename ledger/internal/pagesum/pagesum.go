package pagesum

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/seqledger/seqledger/ledger/internal/boltpage"
	"github.com/seqledger/seqledger/ledger/internal/format"
)

const (
	magic      = "seqledger sums " // the version follows, a digit
	version    = 1
	headerSize = 28
	entrySize  = 12
	recordSize = 16 // without its entries
	// spareBytes is how much longer a file may become than twice what its pages take.
	spareBytes = 4096
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumOf returns the checksum of a page. It must not be CRC-32C, with which each record in the page ends: a record that
// is exchanged for another one of the same length, with its own checksum, does not change the CRC-32C of the page,
// because the bytes that change are a multiple of the polynomial. A disk that has lost a write could then bring back an
// older record.
func sumOf(page []byte) uint32 { return crc32.ChecksumIEEE(page) }

// Errors that a caller tells apart with errors.Is.
var (
	// ErrSums means that the file of checksums is damaged.
	ErrSums = errors.New("the file of page checksums is damaged")
	// ErrForeign means checksums of another data directory's file.
	ErrForeign = errors.New("the page checksums are of another data directory")
	// ErrOther means an older or newer copy of one of the two files.
	ErrOther = errors.New("the page checksums are of an older or newer copy of the state file")
)

// PageError reports a page that is not what was written.
type PageError struct {
	Page      uint64
	Got, Want uint32
}

// Error implements error.
func (e *PageError) Error() string {
	return fmt.Sprintf("page %d is not what was written: its checksum is %08x, it should be %08x", e.Page, e.Got,
		e.Want)
}

// Options say how to open a file of checksums.
type Options struct {
	Identity []byte // of the data directory; not empty
	ReadOnly bool   // write nothing
	NoSync   bool   // for tests only
}

// Sums are the checksums of a bbolt file's pages. Check and Verify are safe for concurrent use; calls of Update and
// Close must not overlap, and Verify must not run beside them.
type Sums struct {
	file    *os.File // nil if nothing may be written, or before there is one
	path    string
	options Options
	made    bool
	spare   int64 // spareBytes; only tests give another

	txid uint64
	last int64  // where its record begins, as far as Open has read it
	end  int64  // of its record
	sum  uint32 // the CRC-32C of that

	table atomic.Pointer[table]
}

// table has an entry for each page: its checksum and the bits below, or 0 for a page that is free. Update changes the
// entries of pages that no transaction uses.
type table []atomic.Uint64

const (
	known   = 1 << 32
	checked = 1 << 33 // and found right
)

// resize gives the table another number of pages.
func (s *Sums) resize(pages uint64) table {
	t := *s.table.Load()
	if pages > uint64(cap(t)) {
		// A quarter more, so that a file that grows does not have its table copied each time.
		grown := make(table, len(t), pages+pages/4)
		for i := range t {
			grown[i].Store(t[i].Load())
		}
		t = grown
	}
	t = t[:pages]
	s.table.Store(&t)
	return t
}

// Open opens the checksums at path of a bbolt file with these pages, as the transaction of m left
// them. If there are none they are made of the pages as they are, which reads all of them; with
// ReadOnly it fails with fs.ErrNotExist. Other errors are ErrSums, ErrForeign, ErrOther, a *PageError, and those of
// the file system and of the pages.
func Open(path string, pages boltpage.Pages, m boltpage.Meta, o Options) (*Sums, error) {
	s := &Sums{path: path, options: o, spare: spareBytes}
	s.table.Store(new(table))
	if err := s.open(pages, m); err != nil {
		return nil, errors.Join(fmt.Errorf("page checksums %s: %w", path, err), s.Close())
	}
	return s, nil
}

func (s *Sums) open(pages boltpage.Pages, m boltpage.Meta) error {
	content, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) && !s.options.ReadOnly {
		s.made = true
		return s.Update(pages, m)
	}
	if err != nil {
		return err
	}
	stale, err := s.load(content, pages, m)
	switch {
	case err != nil:
		return err
	case stale:
		return s.write(s.appendRecord(s.header(), s.txid, s.entries()), true)
	case !s.options.ReadOnly:
		if s.file, err = os.OpenFile(s.path, os.O_RDWR, 0); err != nil {
			return err
		}
		if err := s.settle(content); err != nil {
			return err
		}
	}
	if s.txid == m.TxID {
		return nil
	}
	return s.Update(pages, m)
}

// settle writes the last record once more and cuts off what follows it: after a failed fsync the record may be in the
// system's cache and not on the disk, and the next one would have a hole before it.
func (s *Sums) settle(content []byte) error {
	if int64(len(content)) > s.end {
		if err := s.file.Truncate(s.end); err != nil {
			return err
		}
	}
	_, err := s.file.WriteAt(content[s.last:s.end], s.last)
	return errors.Join(err, s.sync(s.file))
}

// Made reports whether Open found no checksums and made them.
func (s *Sums) Made() bool { return s.made }

// Close closes the file.
func (s *Sums) Close() error {
	if s == nil || s.file == nil {
		return nil
	}
	return s.file.Close()
}

// header begins a file.
func (s *Sums) header() []byte {
	tag := sha256.Sum256(s.options.Identity) // tells the files of two data directories apart
	b := append(append([]byte(magic), '0'+version), tag[:8]...)
	s.sum = crc32.Checksum(b, castagnoli)
	return binary.LittleEndian.AppendUint32(b, s.sum)
}

// checkHeader fails with ErrSums, or if the header is whole and of another version or data directory with
// format.ErrVersion or ErrForeign.
func (s *Sums) checkHeader(content []byte) error {
	if len(content) < headerSize || string(content[:len(magic)]) != magic ||
		crc32.Checksum(content[:headerSize-4], castagnoli) != binary.LittleEndian.Uint32(content[headerSize-4:]) {
		return fmt.Errorf("%w: it has no header", ErrSums)
	}
	if err := format.Check(content[len(magic)]-'0', version); err != nil {
		return err
	}
	if !bytes.Equal(content[:headerSize], s.header()) {
		return ErrForeign
	}
	return nil
}

// entries returns what a record has of all pages in use.
func (s *Sums) entries() (b []byte) {
	t := *s.table.Load()
	for id := range t {
		if entry := t[id].Load(); entry&known != 0 {
			b = appendEntry(b, uint64(id), entry)
		}
	}
	return b
}

func appendEntry(dst []byte, id, entry uint64) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(dst, id), uint32(entry))
}

// appendRecord appends a record that follows the one appended last.
func (s *Sums) appendRecord(dst []byte, txid uint64, entries []byte) []byte {
	begin := len(dst)
	dst = binary.LittleEndian.AppendUint64(dst, txid)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(entries)/entrySize))
	dst = append(dst, entries...)
	s.sum = crc32.Update(s.sum, castagnoli, dst[begin:])
	return binary.LittleEndian.AppendUint32(dst, s.sum)
}

// nextRecord cuts the record off that follows a checksum. It fails unless the record is whole.
func nextRecord(from []byte, sum uint32) (txid uint64, entries, rest []byte, ok bool) {
	if len(from) < recordSize {
		return 0, nil, nil, false
	}
	size := entrySize * int64(binary.LittleEndian.Uint32(from[8:]))
	if size > int64(len(from)-recordSize) {
		return 0, nil, nil, false
	}
	end := 12 + int(size)
	ok = crc32.Update(sum, castagnoli, from[:end]) == binary.LittleEndian.Uint32(from[end:])
	return binary.LittleEndian.Uint64(from), from[12:end], from[end+4:], ok
}

// load takes over the records up to the transaction of m, or up to the one before if a crash came between
// the transaction and its checksums. Where the newest meta page of the bbolt file is damaged, m is
// the one before: then stale tells that there is a record of a transaction that is no more.
func (s *Sums) load(content []byte, pages boltpage.Pages, m boltpage.Meta) (stale bool, err error) {
	if err := s.checkHeader(content); err != nil {
		return false, err
	}
	t, rest, newest := s.resize(m.Pages), content[headerSize:], uint64(0)
	for {
		txid, entries, after, ok := nextRecord(rest, s.sum)
		if !ok || newest != 0 && txid != newest+1 {
			break
		}
		s.sum = binary.LittleEndian.Uint32(content[len(content)-len(after)-4:])
		begin := int64(len(content) - len(rest))
		rest, newest = after, txid
		if txid > m.TxID {
			continue
		}
		s.txid, s.last, s.end = txid, begin, int64(len(content)-len(rest))
		for ; len(entries) > 0; entries = entries[entrySize:] {
			id := binary.LittleEndian.Uint64(entries)
			if id >= m.Pages { // a bbolt file never gets shorter
				return false, fmt.Errorf("%w: they are of page %d, the state file has %d", ErrOther, id, m.Pages)
			}
			t[id].Store(uint64(binary.LittleEndian.Uint32(entries[8:])))
		}
	}
	switch {
	case len(rest) > 0 && newest+1 < m.TxID || newest == 0:
		return false, fmt.Errorf("%w: at byte %d, after transaction %d", ErrSums, len(content)-len(rest), newest)
	case s.txid == 0, s.txid+1 < m.TxID, newest > m.TxID+1, newest > m.TxID && s.txid != m.TxID:
		return false, fmt.Errorf("%w: they are of transaction %d, the state file is at %d", ErrOther, newest, m.TxID)
	}
	// After a crash between the transaction and its checksums the pages that were in use before it have one: bbolt has
	// the list of its free pages in the file, still, because the other meta page is that of the transaction before.
	if s.txid != m.TxID {
		if m, err = pages.MetaBefore(m); err != nil {
			return false, err
		}
		if m.TxID != s.txid {
			return false, fmt.Errorf("%w: they are of transaction %d, and the state file has one of %d before its last",
				ErrOther, s.txid, m.TxID)
		}
	}
	live, err := pages.Live(m)
	if err != nil {
		return false, err
	}
	for id := range t {
		if inUse(live, id) {
			t[id].Or(known)
		}
	}
	return newest > s.txid, nil
}

func inUse(live []uint64, id int) bool { return id/64 < len(live) && live[id/64]>>(id%64)&1 == 1 }

// Update computes the checksums of the pages that the transaction of m has taken into use, and
// writes and syncs them. The transaction must be the next one after that of the last Update, and its pages
// must not be reused meanwhile.
func (s *Sums) Update(pages boltpage.Pages, m boltpage.Meta) error {
	live, err := pages.Live(m)
	if err != nil {
		return err
	}
	t := s.resize(m.Pages)
	var content, fresh []byte
	anew := s.file == nil || s.end > s.spare+2*entrySize*int64(len(t))
	if anew {
		content = s.header()
	}
	if anew && s.txid != 0 { // pages that the transaction replaces are in use if its meta page is lost
		content = s.appendRecord(content, s.txid, s.entries())
	}
	for id := range t {
		switch entry := t[id].Load(); {
		case !inUse(live, id):
			t[id].Store(0)
		case entry&known == 0:
			// It is computed from memory, so the page is checked when it is next read from the disk.
			entry = known | uint64(sumOf(pages.Raw(uint64(id))))
			t[id].Store(entry)
			fresh = appendEntry(fresh, uint64(id), entry)
		}
	}
	s.txid = m.TxID
	return s.write(s.appendRecord(content, m.TxID, fresh), anew)
}

// write appends to the file, or puts another one in its place, which has a temporary name until it is complete.
func (s *Sums) write(content []byte, anew bool) (err error) {
	if s.options.ReadOnly {
		return nil
	}
	if !anew {
		_, err = s.file.WriteAt(content, s.end)
		s.end += int64(len(content))
		return errors.Join(err, s.sync(s.file))
	}
	dir := filepath.Dir(s.path)
	file, err := os.CreateTemp(dir, filepath.Base(s.path)+".new-*")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, s.sync(file)); err == nil {
		err = os.Rename(file.Name(), s.path)
	}
	if err != nil {
		return errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	err = s.Close()
	s.file, s.end = file, int64(len(content))
	d, errDir := os.Open(dir)
	if errDir != nil {
		return errors.Join(err, errDir)
	}
	return errors.Join(err, s.sync(d), d.Close())
}

func (s *Sums) sync(file *os.File) error {
	if s.options.NoSync {
		return nil
	}
	return file.Sync()
}

// Check compares a page with its checksum when it is used for the first time since it was written or
// the file opened. A page that the last Update does not know is not checked: it belongs to a
// transaction whose checksums are about to be computed. It fails with a *PageError.
func (s *Sums) Check(id uint64, page []byte) error {
	t := *s.table.Load()
	if id >= uint64(len(t)) {
		return nil
	}
	entry := t[id].Load()
	if entry&(known|checked) != known {
		return nil
	}
	if err := compare(id, page, entry); err != nil {
		return err
	}
	t[id].CompareAndSwap(entry, entry|checked)
	return nil
}

func compare(id uint64, page []byte, entry uint64) error {
	if got, want := sumOf(page), uint32(entry); got != want {
		return &PageError{Page: id, Got: got, Want: want}
	}
	return nil
}

// Verify reads up to count pages from a number on and compares those that are in use with their
// checksums, whether or not they were before. It returns the number to go on with, 0 at the
// end, and how many it has compared.
func (s *Sums) Verify(pages boltpage.Pages, from uint64, count int) (next uint64, compared int, err error) {
	t := *s.table.Load()
	for id := from; id < min(uint64(len(t)), pages.Count()); id++ {
		entry := t[id].Load()
		if entry&known == 0 {
			continue
		}
		if compared == count {
			return id, compared, nil
		}
		if err := compare(id, pages.Raw(id), entry); err != nil {
			return id, compared, err
		}
		compared++
	}
	return 0, compared, nil
}

// Pages returns how many pages the file has, those that are free included.
func (s *Sums) Pages() uint64 { return uint64(len(*s.table.Load())) }
