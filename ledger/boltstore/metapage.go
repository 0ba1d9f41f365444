package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"

	"github.com/seqledger/seqledger/ledger/machine"
)

// What a bbolt file starts with: two meta pages, of which the valid one with
// the higher transaction id counts. A page is a 16-byte header and then, in the
// machine's byte order: magic, version, page size, flags (4 bytes each), root
// page, root sequence, freelist page, high-water mark in pages, transaction id,
// FNV-64a of what precedes (8 bytes each).
const (
	boltMagic      = 0xED0CDAED
	pageHeaderSize = 16
	metaSize       = 64
	metaSumOffset  = 56
	minPageSize    = 1 << 10
	maxPageSize    = 1 << 24 // as far as bbolt itself looks for the second page
)

// metaPage is the part of a meta page that is needed to trust the file's size.
type metaPage struct {
	offset   int64 // of the page in the file
	pageSize int64
	pages    uint64 // high-water mark: no page at or after it is in use
	txid     uint64
}

// checkFile refuses a file that bbolt must not be let near: it would map pages
// that are not there and fault when it touches them. It reads two pages, so it
// takes the same time for any size of file. It needs no lock: a running writer
// extends the file before it writes the meta page that counts on it.
func checkFile(path string) (metaPage, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return metaPage{}, fmt.Errorf("%s: the state file is missing; restore the data directory from a backup: %w", path, err)
	}
	if err != nil {
		return metaPage{}, fmt.Errorf("open the state file: %w", err)
	}
	defer func() { _ = file.Close() }() // only read from: nothing is lost
	meta, err := readMeta(file)
	if err != nil {
		return metaPage{}, fmt.Errorf("%s: %w", path, err)
	}
	info, err := file.Stat()
	if err != nil {
		return metaPage{}, fmt.Errorf("size of the state file: %w", err)
	}
	if meta.pages > uint64(info.Size())/uint64(meta.pageSize) {
		return metaPage{}, fmt.Errorf("%s: %w: truncated: %d bytes, but %d pages of %d bytes are in use; "+adviceRestore,
			path, machine.ErrCorrupt, info.Size(), meta.pages, meta.pageSize)
	}
	return meta, nil
}

// readMeta returns the meta page that counts.
func readMeta(file io.ReaderAt) (metaPage, error) {
	var newest metaPage
	found, looksLikeBolt := false, false
	// The second page starts at the page size, which only a valid page tells.
	for offset := int64(0); offset <= maxPageSize; offset = max(2*offset, minPageSize) {
		buf := make([]byte, pageHeaderSize+metaSize)
		if _, err := file.ReadAt(buf, offset); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return metaPage{}, fmt.Errorf("read the meta pages: %w", err)
		}
		meta, magic, valid := parseMeta(buf[pageHeaderSize:])
		looksLikeBolt = looksLikeBolt || magic
		// A value may hold bytes that look like a meta page: believe one only
		// where its own page size puts it.
		if !valid || (offset != 0 && offset != meta.pageSize) {
			continue
		}
		if !found || meta.txid > newest.txid {
			meta.offset = offset
			newest, found = meta, true
		}
	}
	switch {
	case found:
		return newest, nil
	case looksLikeBolt:
		return metaPage{}, fmt.Errorf("%w: both meta pages of the bbolt file are invalid; "+adviceRestore, machine.ErrCorrupt)
	default:
		return metaPage{}, fmt.Errorf("%w: not a bbolt file, or its start is overwritten or cut off; "+adviceRestore, ErrForeign)
	}
}

// parseMeta reads a meta page without its header.
func parseMeta(b []byte) (meta metaPage, magic, valid bool) {
	order := binary.NativeEndian
	if order.Uint32(b) != boltMagic {
		return metaPage{}, false, false
	}
	sum := fnv.New64a()
	_, _ = sum.Write(b[:metaSumOffset]) // a hash never fails
	meta = metaPage{
		pageSize: int64(order.Uint32(b[8:])),
		pages:    order.Uint64(b[40:]),
		txid:     order.Uint64(b[48:]),
	}
	sane := meta.pageSize >= minPageSize && meta.pageSize <= maxPageSize
	return meta, true, sane && sum.Sum64() == order.Uint64(b[metaSumOffset:])
}

// rewriteMeta writes the current meta page once more and syncs it. After a
// failed fsync the page may be in the system's cache but not on disk, marked
// clean, and a restarted process would see a checkpoint that the disk does not
// have: the next flush would then overwrite pages that the checkpoint on disk
// still needs. Writing the same bytes again makes both agree. If that is torn by
// a crash the other meta page counts, and nothing of it has been touched.
func rewriteMeta(file *os.File, meta metaPage) error {
	page := make([]byte, meta.pageSize)
	if _, err := file.ReadAt(page, meta.offset); err != nil {
		return fmt.Errorf("read the meta page: %w", err)
	}
	if _, err := file.WriteAt(page, meta.offset); err != nil {
		return fmt.Errorf("rewrite the meta page: %w", err)
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("sync the meta page: %w", err)
	}
	return nil
}
