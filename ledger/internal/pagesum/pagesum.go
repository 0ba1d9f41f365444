package pagesum

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/seqledger/seqledger/ledger/internal/boltpage"
	"github.com/seqledger/seqledger/ledger/internal/format"
)

const (
	magic      = "seqledger sums " // the version follows, a digit
	version    = 1
	slotSize   = 4096
	sumsBegin  = 24
	sumsInSlot = (slotSize - sumsBegin - 4) / 4
	// firstPage is the first page that is not a meta page, which has a checksum of bbolt's.
	firstPage = 2
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
// Close must not overlap.
type Sums struct {
	file    *os.File // nil if nothing may be written
	path    string
	options Options
	tag     uint64
	made    bool

	txid   uint64
	size   int64  // of a page, in bytes
	header int    // the slot in use
	pairs  []pair // of checksums
	digest uint64

	table atomic.Pointer[table]
}

// pair says which of two slots is in use, and since which transaction; 0 for none.
type pair struct {
	slot int
	txid uint64
}

// table has what readers need. A page is checked once: live says that it has a checksum, checked
// that it was found right. Update changes the entries of pages that no transaction uses.
type table struct {
	sums          []atomic.Uint32
	live, checked []atomic.Uint64
}

func newTable(pages uint64) *table {
	words := (pages + 63) / 64
	return &table{
		sums: make([]atomic.Uint32, pages), live: make([]atomic.Uint64, words), checked: make([]atomic.Uint64, words),
	}
}

// grown returns a table for more pages with the entries of t.
func (t *table) grown(pages uint64) *table {
	// At least a quarter more, so that a file that grows does not have its table copied each time.
	g := newTable(max(pages, uint64(len(t.sums))+uint64(len(t.sums))/4))
	for i := range t.sums {
		g.sums[i].Store(t.sums[i].Load())
	}
	for i := range t.live {
		g.live[i].Store(t.live[i].Load())
		g.checked[i].Store(t.checked[i].Load())
	}
	return g
}

// Open opens the checksums at path of a bbolt file with these pages, as the transaction of m left
// them. If there are none they are made of the pages as they are, which reads all of them; with
// ReadOnly it fails with fs.ErrNotExist. Other errors are ErrSums, ErrForeign, ErrOther, a *PageError, and those of
// the file system and of the pages.
func Open(path string, pages boltpage.Pages, m boltpage.Meta, o Options) (*Sums, error) {
	s := &Sums{path: path, options: o, tag: tagOf(o.Identity), size: m.PageSize}
	content, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !o.ReadOnly:
		if err = s.create(pages, m); err != nil {
			return nil, fmt.Errorf("make the page checksums %s: %w", path, err)
		}
		return s, nil
	case err != nil:
		return nil, fmt.Errorf("read the page checksums: %w", err)
	}
	stale, err := s.load(content, pages, m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if stale && !o.ReadOnly {
		if err := s.rewrite(m); err != nil {
			return nil, fmt.Errorf("rewrite the page checksums %s: %w", path, err)
		}
		return s, nil
	}
	if !o.ReadOnly {
		if s.file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
			return nil, fmt.Errorf("open the page checksums: %w", err)
		}
	}
	if s.txid != m.TxID {
		if err := s.Update(pages, m); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
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

// tagOf returns what tells the files of two data directories apart.
func tagOf(identity []byte) uint64 {
	sum := sha256.Sum256(identity)
	return binary.LittleEndian.Uint64(sum[:])
}

// create makes the checksums of all pages.
func (s *Sums) create(pages boltpage.Pages, m boltpage.Meta) error {
	s.made = true
	s.table.Store(newTable(m.Pages))
	return s.replace(func() error { return s.Update(pages, m) })
}

// rewrite writes all checksums into a new file, where the present one has slots of a transaction
// that is no more.
func (s *Sums) rewrite(m boltpage.Meta) error {
	dirty := map[int]bool{}
	for k := range s.pairs {
		dirty[k], s.pairs[k] = true, pair{}
	}
	s.digest = 0
	return s.replace(func() error { return s.write(dirty, m) })
}

// replace makes a new file with what write writes, under a temporary name until it is complete.
func (s *Sums) replace(write func() error) (err error) {
	dir := filepath.Dir(s.path)
	if s.file, err = os.CreateTemp(dir, filepath.Base(s.path)+".new-*"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.file.Close(), os.Remove(s.file.Name()))
		}
	}()
	if err = s.file.Chmod(0o600); err != nil {
		return err
	}
	if err = write(); err != nil {
		return err
	}
	if err = os.Rename(s.file.Name(), s.path); err != nil {
		return err
	}
	if s.options.NoSync {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// load takes over the header of the transaction of m, or of the one before if a crash came between
// the transaction and its checksums. Where the newest meta page of the bbolt file is damaged, m is
// the one before, and so is its header: then stale tells that there are checksums of a transaction
// that is no more.
func (s *Sums) load(content []byte, pages boltpage.Pages, m boltpage.Meta) (stale bool, err error) {
	var chosen *header
	var newest uint64
	for slot := range 2 {
		h, err := s.parseHeader(slotOf(content, 0, slot))
		if errors.Is(err, ErrForeign) || errors.Is(err, format.ErrVersion) {
			return false, err
		}
		if err != nil || s.choose(content, &h) != nil {
			continue
		}
		newest = max(newest, h.txid)
		// A bbolt file never gets shorter.
		matches := h.pageSize == m.PageSize && h.pages <= m.Pages && (h.txid == m.TxID || h.txid+1 == m.TxID)
		if matches && (chosen == nil || h.txid > chosen.txid) {
			h.slot, chosen = slot, &h
		}
	}
	switch {
	case newest == 0:
		return false, ErrSums
	case chosen == nil, newest > chosen.txid && chosen.txid != m.TxID:
		return false, fmt.Errorf("%w: they are of transaction %d, the state file is at %d",
			ErrOther, newest, m.TxID)
	}
	h := *chosen
	s.header, s.txid, s.pairs, s.digest = h.slot, h.txid, h.pairs, h.digest
	t := newTable(m.Pages)
	for k, p := range s.pairs {
		if p.txid == 0 {
			continue
		}
		slot := slotOf(content, 1+k, p.slot)
		for i := range sumsInSlot {
			if page := k*sumsInSlot + i; page < len(t.sums) {
				t.sums[page].Store(binary.LittleEndian.Uint32(slot[sumsBegin+4*i:]))
			}
		}
	}
	s.table.Store(t)
	return newest > h.txid, s.loadLive(pages, m, h)
}

// loadLive notes which pages have a checksum. After a crash between the transaction and its
// checksums these are the pages that were in use before the transaction: bbolt has the list of
// its free pages in the file, still, because the other meta page is that of the transaction before.
func (s *Sums) loadLive(pages boltpage.Pages, m boltpage.Meta, h header) error {
	if h.txid != m.TxID {
		before, err := pages.MetaBefore(m)
		if err != nil {
			return err
		}
		if before.TxID != h.txid {
			return fmt.Errorf("%w: they are of transaction %d, and the state file has %d and %d",
				ErrOther, h.txid, m.TxID, before.TxID)
		}
		m = before
	}
	live, err := pages.Live(m)
	if err != nil {
		return err
	}
	t := s.table.Load()
	for i, word := range live {
		t.live[i].Store(word)
	}
	return nil
}

// header is a header with the slots that belong to it.
type header struct {
	slot                int
	txid, pages, digest uint64
	pageSize            int64
	pairs               []pair
}

// parseHeader reads a slot. It fails with ErrSums, or if the slot is whole and of another data directory or version
// with ErrForeign or format.ErrVersion.
func (s *Sums) parseHeader(slot []byte) (header, error) {
	if !whole(slot) || string(slot[:len(magic)]) != magic {
		return header{}, ErrSums
	}
	if err := format.Check(slot[len(magic)]-'0', version); err != nil {
		return header{}, err
	}
	if binary.LittleEndian.Uint64(slot[16:]) != s.tag {
		return header{}, ErrForeign
	}
	return header{
		txid: binary.LittleEndian.Uint64(slot[24:]), pages: binary.LittleEndian.Uint64(slot[32:]),
		pageSize: int64(binary.LittleEndian.Uint32(slot[40:])), digest: binary.LittleEndian.Uint64(slot[48:]),
	}, nil
}

// choose finds the slots that belong to a header.
func (s *Sums) choose(content []byte, h *header) error {
	if h.pages > uint64(len(content)) { // each has four bytes here
		return ErrSums
	}
	h.pairs = make([]pair, pairsFor(h.pages))
	var digest uint64
	for k := range h.pairs {
		for slot := range 2 {
			b := slotOf(content, 1+k, slot)
			if !whole(b) || binary.LittleEndian.Uint32(b) != uint32(k) || binary.LittleEndian.Uint64(b[8:]) != s.tag {
				continue
			}
			if txid := binary.LittleEndian.Uint64(b[16:]); txid <= h.txid && txid > h.pairs[k].txid {
				h.pairs[k] = pair{slot, txid}
			}
		}
		digest += mix(k, h.pairs[k].txid)
	}
	if digest != h.digest {
		return ErrSums
	}
	return nil
}

// pairsFor returns how many pairs the checksums of the given number of pages take.
func pairsFor(pages uint64) uint64 { return (pages + sumsInSlot - 1) / sumsInSlot }

// slotOf returns a slot of a pair, or nil if the file ends before its end.
func slotOf(content []byte, pair, slot int) []byte {
	begin := slotOffset(pair, slot)
	if int64(len(content)) < begin+slotSize {
		return nil
	}
	return content[begin : begin+slotSize]
}

func slotOffset(pair, slot int) int64 { return int64(2*pair+slot) * slotSize }

// whole reports whether a slot has its checksum.
func whole(slot []byte) bool {
	return slot != nil &&
		crc32.Checksum(slot[:slotSize-4], castagnoli) == binary.LittleEndian.Uint32(slot[slotSize-4:])
}

// mix hashes which slot of a pair is in use; a pair without one is no part of a digest. It is the
// finalizer of SplitMix64, whose every bit depends on every bit of its input.
func mix(k int, txid uint64) uint64 {
	if txid == 0 {
		return 0
	}
	x := txid + uint64(k)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Update computes the checksums of the pages that the transaction of m has taken into use, and
// writes and syncs them. The transaction must be the next one after that of the last Update, and its pages
// must not be reused meanwhile.
func (s *Sums) Update(pages boltpage.Pages, m boltpage.Meta) error {
	live, err := pages.Live(m)
	if err != nil {
		return err
	}
	t := s.table.Load()
	if m.Pages > uint64(len(t.sums)) {
		t = t.grown(m.Pages)
		s.table.Store(t)
	}
	for uint64(len(s.pairs)) < pairsFor(m.Pages) {
		s.pairs = append(s.pairs, pair{})
	}
	dirty := map[int]bool{}
	for i := range t.live {
		var now uint64
		if i < len(live) {
			now = live[i]
		}
		was := t.live[i].Load()
		for fresh := now &^ was; fresh != 0; fresh &= fresh - 1 {
			id := uint64(i*64 + bits.TrailingZeros64(fresh))
			t.sums[id].Store(sumOf(pages.Raw(id)))
			dirty[int(id/sumsInSlot)] = true
		}
		// In this order, because a reader that sees a page in use must see its checksum. The checksum has been computed
		// from memory, so the page is checked when it is next read from the disk.
		t.checked[i].And(^(now &^ was))
		t.live[i].Store(now)
	}
	if err := s.write(dirty, m); err != nil {
		return fmt.Errorf("write the page checksums %s: %w", s.path, err)
	}
	return nil
}

// write writes the pairs that have changed, and a header.
func (s *Sums) write(dirty map[int]bool, m boltpage.Meta) error {
	s.txid = m.TxID
	if s.file == nil {
		return nil
	}
	t := s.table.Load()
	buf := make([]byte, slotSize)
	put := func(pair, slot int) error {
		binary.LittleEndian.PutUint32(buf[slotSize-4:], crc32.Checksum(buf[:slotSize-4], castagnoli))
		_, err := s.file.WriteAt(buf, slotOffset(pair, slot))
		return err
	}
	for k := range dirty {
		clear(buf)
		binary.LittleEndian.PutUint32(buf, uint32(k))
		binary.LittleEndian.PutUint64(buf[8:], s.tag)
		binary.LittleEndian.PutUint64(buf[16:], m.TxID)
		for i := range min(sumsInSlot, len(t.sums)-k*sumsInSlot) {
			binary.LittleEndian.PutUint32(buf[sumsBegin+4*i:], t.sums[k*sumsInSlot+i].Load())
		}
		next := pair{1 - s.pairs[k].slot, m.TxID}
		if err := put(1+k, next.slot); err != nil {
			return err
		}
		s.digest += mix(k, next.txid) - mix(k, s.pairs[k].txid)
		s.pairs[k] = next
	}
	clear(buf)
	buf[copy(buf, magic)] = '0' + version
	binary.LittleEndian.PutUint64(buf[16:], s.tag)
	binary.LittleEndian.PutUint64(buf[24:], m.TxID)
	binary.LittleEndian.PutUint64(buf[32:], m.Pages)
	binary.LittleEndian.PutUint32(buf[40:], uint32(m.PageSize))
	binary.LittleEndian.PutUint64(buf[48:], s.digest)
	// No sync comes before the header, because its digest tells whether all of its slots reached the disk.
	s.header = 1 - s.header
	if err := put(0, s.header); err != nil {
		return err
	}
	if s.options.NoSync {
		return nil
	}
	return s.file.Sync()
}

// Check compares a page with its checksum when it is used for the first time since it was written or
// the file opened. A page that the last Update does not know is not checked: it belongs to a
// transaction whose checksums are about to be computed. It fails with a *PageError.
func (s *Sums) Check(id uint64, page []byte) error {
	t := s.table.Load()
	if id < firstPage || id >= uint64(len(t.sums)) {
		return nil
	}
	word, bit := id/64, uint64(1)<<(id%64)
	if t.checked[word].Load()&bit != 0 || t.live[word].Load()&bit == 0 {
		return nil
	}
	if err := t.compare(id, page); err != nil {
		return err
	}
	t.checked[word].Or(bit)
	return nil
}

func (t *table) compare(id uint64, page []byte) error {
	if got, want := sumOf(page), t.sums[id].Load(); got != want {
		return &PageError{Page: id, Got: got, Want: want}
	}
	return nil
}

// Verify reads up to count pages from a number on and compares those that are in use with their
// checksums, whether or not they were before. It returns the number to go on with, 0 at the
// end, and how many it has compared. It must not run beside Update.
func (s *Sums) Verify(pages boltpage.Pages, from uint64, count int) (next uint64, compared int, err error) {
	t := s.table.Load()
	end := min(uint64(len(t.sums)), pages.Count())
	for id := max(from, firstPage); id < end; id++ {
		if compared == count {
			return id, compared, nil
		}
		if t.live[id/64].Load()&(1<<(id%64)) == 0 {
			continue
		}
		if err := t.compare(id, pages.Raw(id)); err != nil {
			return id, compared, err
		}
		compared++
	}
	return 0, compared, nil
}

// Pages returns how many pages the file has, those that are free included.
func (s *Sums) Pages() uint64 { return uint64(len(s.table.Load().sums)) }
