package boltpage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// What a bbolt file starts with: two meta pages, of which the valid one with
// the higher transaction id counts. A page is a 16-byte header and then, in the
// machine's byte order: magic, version, page size, flags (4 bytes each), root
// page, root sequence, freelist page, high-water mark in pages, transaction id,
// FNV-64a of what precedes (8 bytes each).
const (
	boltMagic     = 0xED0CDAED
	metaSize      = 64
	metaSumOffset = 56
	minPageSize   = 1 << 10
	maxPageSize   = 1 << 24 // as far as bbolt itself looks for the second page
)

// The ways in which a file is not what bbolt wrote.
var (
	// ErrDamaged is wrapped by every error of this package that is not the
	// reader's own or ErrNotBolt.
	ErrDamaged = errors.New("the pages of the bbolt file make no sense")
	// ErrNotBolt means that the file does not begin like one.
	ErrNotBolt = errors.New("not a bbolt file, or its start is overwritten or cut off")
)

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}

// Meta is what the meta page says that counts.
type Meta struct {
	Offset   int64  // of the meta page in the file, in bytes
	PageSize int64  // in bytes
	Root     uint64 // page of the tree of buckets
	FreeList uint64 // first page of the list of free pages
	Pages    uint64 // high-water mark: no page at or after it is in use
	TxID     uint64
}

// ReadMeta returns the meta page that counts: the one that bbolt takes. It fails
// with ErrDamaged, ErrNotBolt or the reader's error.
func ReadMeta(file io.ReaderAt) (Meta, error) {
	var newest Meta
	found, looksLikeBolt := false, false
	// The second page starts at the page size, which only a valid page tells.
	for offset := int64(0); offset <= maxPageSize; offset = max(2*offset, minPageSize) {
		buf := make([]byte, headerSize+metaSize)
		if _, err := file.ReadAt(buf, offset); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return Meta{}, fmt.Errorf("read the meta pages: %w", err)
		}
		meta, magic, valid := parseMeta(buf[headerSize:])
		looksLikeBolt = looksLikeBolt || magic
		// A value may hold bytes that look like a meta page: so that one counts only
		// where its own page size puts it.
		if !valid || (offset != 0 && offset != meta.PageSize) {
			continue
		}
		if !found || meta.TxID > newest.TxID {
			meta.Offset = offset
			newest, found = meta, true
		}
	}
	switch {
	case found:
		return newest, nil
	case looksLikeBolt:
		return Meta{}, damaged("both meta pages are invalid")
	default:
		return Meta{}, ErrNotBolt
	}
}

// parseMeta reads a meta page without its header.
func parseMeta(b []byte) (meta Meta, magic, valid bool) {
	order := binary.NativeEndian
	if order.Uint32(b) != boltMagic {
		return Meta{}, false, false
	}
	sum := fnv.New64a()
	_, _ = sum.Write(b[:metaSumOffset]) // a hash never fails
	meta = Meta{
		PageSize: int64(order.Uint32(b[8:])),
		Root:     order.Uint64(b[16:]),
		FreeList: order.Uint64(b[32:]),
		Pages:    order.Uint64(b[40:]),
		TxID:     order.Uint64(b[48:]),
	}
	sane := meta.PageSize >= minPageSize && meta.PageSize <= maxPageSize
	return meta, true, sane && sum.Sum64() == order.Uint64(b[metaSumOffset:])
}
