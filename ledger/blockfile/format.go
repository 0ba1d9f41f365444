package blockfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sort"

	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	fileMagic   = "seqledger blocks"
	fileVersion = 1
	headerSize  = len(fileMagic) + 4 + 16 + 8 + 8 + 8 + sha256.Size + 4

	recordMagic      = 0x534c424b // "SLBK"
	recordHeaderSize = 4 + 4 + 8 + 8 + 4 + 4

	sealMagic   = "slsealed"
	entrySize   = 8 + 8
	trailerSize = 8 + 8 + 8 + sha256.Size + 4 + 4 + len(sealMagic)

	// DefaultSealBytes is the length at which the files of a new directory are sealed.
	DefaultSealBytes = 64 << 20

	// stride is how far apart the records are that the index of a file leads to,
	// in bytes at least.
	stride = 16 << 10

	// MaxRecord is how long the data of a record may be, in bytes.
	MaxRecord = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// fileHeader begins a file.
type fileHeader struct {
	id       [16]byte // of the directory that the first file was made in
	number   uint64   // from 1
	base     uint64   // the bytes of all files before
	after    uint64   // the last ledger index of the file before, 0 for the first
	previous [sha256.Size]byte
}

func (h *fileHeader) encode() []byte {
	b := binary.BigEndian.AppendUint32([]byte(fileMagic), fileVersion)
	b = append(b, h.id[:]...)
	b = binary.BigEndian.AppendUint64(b, h.number)
	b = binary.BigEndian.AppendUint64(b, h.base)
	b = binary.BigEndian.AppendUint64(b, h.after)
	b = append(b, h.previous[:]...)
	return binary.BigEndian.AppendUint32(b, checksum(b))
}

func decodeFileHeader(b []byte) (h fileHeader, err error) {
	if len(b) < headerSize || string(b[:len(fileMagic)]) != fileMagic {
		return h, fmt.Errorf("%w: it does not begin like a file of blocks", machine.ErrCorrupt)
	}
	rest := b[len(fileMagic):]
	if checksum(b[:headerSize-4]) != binary.BigEndian.Uint32(b[headerSize-4:]) {
		return h, fmt.Errorf("%w: the checksum of its header is wrong", machine.ErrCorrupt)
	}
	if err := format.Check(binary.BigEndian.Uint32(rest), fileVersion); err != nil {
		return h, err
	}
	copy(h.id[:], rest[4:])
	h.number = binary.BigEndian.Uint64(rest[20:])
	h.base = binary.BigEndian.Uint64(rest[28:])
	h.after = binary.BigEndian.Uint64(rest[36:])
	copy(h.previous[:], rest[44:])
	return h, nil
}

// recordHeader stands before the data of a record.
type recordHeader struct {
	size     uint32 // of the data
	position uint64 // of the record: the bytes of all files before it
	last     uint64 // the ledger index that the record is found by
	sum      uint32 // of the data
}

func (h *recordHeader) append(dst []byte) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, recordMagic)
	dst = binary.BigEndian.AppendUint32(dst, h.size)
	dst = binary.BigEndian.AppendUint64(dst, h.position)
	dst = binary.BigEndian.AppendUint64(dst, h.last)
	dst = binary.BigEndian.AppendUint32(dst, h.sum)
	return binary.BigEndian.AppendUint32(dst, checksum(dst[at:]))
}

// decodeRecordHeader reports whether b begins with the header of the record that
// belongs at a position.
func decodeRecordHeader(b []byte, position uint64) (h recordHeader, ok bool) {
	if len(b) < recordHeaderSize || binary.BigEndian.Uint32(b) != recordMagic {
		return h, false
	}
	h.size = binary.BigEndian.Uint32(b[4:])
	h.position = binary.BigEndian.Uint64(b[8:])
	h.last = binary.BigEndian.Uint64(b[16:])
	h.sum = binary.BigEndian.Uint32(b[24:])
	sum := binary.BigEndian.Uint32(b[28:])
	ok = h.position == position && checksum(b[:recordHeaderSize-4]) == sum && h.size <= MaxRecord && h.last > 0
	return h, ok
}

// entry leads to one record of a file.
type entry struct {
	last   uint64 // its ledger index
	offset int64  // where it begins
}

// index has an entry for the first record of a file, and for each that begins at least a stride after the last entry.
type index []entry

func (x index) add(last uint64, offset int64) index {
	if n := len(x); n > 0 && offset-x[n-1].offset < stride {
		return x
	}
	return append(x, entry{last, offset})
}

// start returns where the walk to the first record at or after a ledger index
// begins. The record at an entry may be that record, or one before it.
func (x index) start(ledgerIndex uint64) int64 {
	i := sort.Search(len(x), func(i int) bool { return x[i].last >= ledgerIndex })
	if i == len(x) || i > 0 && x[i].last > ledgerIndex {
		i--
	}
	if i < 0 {
		return int64(headerSize)
	}
	return x[i].offset
}

// footer seals a file.
type footer struct {
	index index
	end   int64  // where the records end and the footer begins
	last  uint64 // the ledger index of the last record
	hash  [sha256.Size]byte
}

func (f *footer) encode() []byte {
	b := make([]byte, 0, len(f.index)*entrySize+trailerSize)
	for _, e := range f.index {
		b = binary.BigEndian.AppendUint64(b, e.last)
		b = binary.BigEndian.AppendUint64(b, uint64(e.offset))
	}
	trailer := len(b)
	b = binary.BigEndian.AppendUint64(b, uint64(len(f.index)))
	b = binary.BigEndian.AppendUint64(b, uint64(f.end))
	b = binary.BigEndian.AppendUint64(b, f.last)
	b = append(b, f.hash[:]...)
	b = binary.BigEndian.AppendUint32(b, checksum(b[:trailer]))
	b = binary.BigEndian.AppendUint32(b, checksum(b[trailer:]))
	return append(b, sealMagic...)
}

// decodeTrailer decodes the footer of a file of this size, without the index, from
// the last trailerSize bytes. It also returns the checksum of the index.
func decodeTrailer(b []byte, size int64) (f footer, sum uint32, err error) {
	const sums = 8 + 8 + 8 + sha256.Size
	if len(b) != trailerSize || !bytes.HasSuffix(b, []byte(sealMagic)) ||
		checksum(b[:sums+4]) != binary.BigEndian.Uint32(b[sums+4:]) {
		return f, 0, fmt.Errorf("%w: it does not end with a whole footer", machine.ErrCorrupt)
	}
	n := binary.BigEndian.Uint64(b)
	f.end, f.last = int64(binary.BigEndian.Uint64(b[8:])), binary.BigEndian.Uint64(b[16:])
	copy(f.hash[:], b[24:])
	if n > uint64(size)/entrySize || f.end+int64(n)*entrySize+int64(trailerSize) != size || f.end < int64(headerSize) {
		return f, 0, fmt.Errorf("%w: it has %d bytes, and its footer belongs to another length", machine.ErrCorrupt,
			size)
	}
	return f, binary.BigEndian.Uint32(b[sums:]), nil
}

func decodeIndex(b []byte, sum uint32) (x index, err error) {
	if checksum(b) != sum {
		return nil, fmt.Errorf("%w: the checksum of its index is wrong", machine.ErrCorrupt)
	}
	x = make(index, 0, len(b)/entrySize)
	for ; len(b) >= entrySize; b = b[entrySize:] {
		x = append(x, entry{binary.BigEndian.Uint64(b), int64(binary.BigEndian.Uint64(b[8:]))})
	}
	return x, nil
}

// Mark is a place between two records: what a checkpoint records of the files.
type Mark struct {
	ID [16]byte // of the directory that the first file was made in
	// SealBytes is the length at which a file is sealed. It is recorded, because it
	// decides where records lie, and a replay has to repeat that.
	SealBytes int64

	Number uint64            // of the file; 0 before the first one
	Length int64             // of the file up to there, in bytes, the header included
	Last   uint64            // the ledger index of the last record; 0 for none
	Hash   [sha256.Size]byte // of the file up to there; zeros before the first one
}

// markSize is the length of an encoded Mark.
const markSize = 16 + 4*8 + sha256.Size

// Append appends the encoding of the mark.
func (m Mark) Append(dst []byte) []byte {
	dst = append(dst, m.ID[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.SealBytes))
	dst = binary.BigEndian.AppendUint64(dst, m.Number)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.Length))
	dst = binary.BigEndian.AppendUint64(dst, m.Last)
	return append(dst, m.Hash[:]...)
}

// DecodeMark is the inverse of [Mark.Append].
func DecodeMark(b []byte) (m Mark, err error) {
	if len(b) != markSize {
		return m, fmt.Errorf("%w: mark of the block files of %d bytes, expected %d",
			machine.ErrCorrupt, len(b), markSize)
	}
	copy(m.ID[:], b)
	m.SealBytes, m.Number = int64(binary.BigEndian.Uint64(b[16:])), binary.BigEndian.Uint64(b[24:])
	m.Length, m.Last = int64(binary.BigEndian.Uint64(b[32:])), binary.BigEndian.Uint64(b[40:])
	copy(m.Hash[:], b[48:])
	none := m.Number == 0 && m.Length == 0 && m.Last == 0
	if m.SealBytes <= 0 || !none && (m.Number == 0 || m.Length <= int64(headerSize) || m.Last == 0) {
		return m, fmt.Errorf("%w: the mark of the block files makes no sense", machine.ErrCorrupt)
	}
	return m, nil
}
