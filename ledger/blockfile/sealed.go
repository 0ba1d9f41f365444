package blockfile

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/seqledger/seqledger/ledger/machine"
)

// SealedInfo is what a sealed file says of itself, once all of it has been checked.
type SealedInfo struct {
	ID     [16]byte // as in Mark
	Start           // where the files would begin with this one
	Last   uint64   // ledger index of the last record
	Size   int64    // bytes
	Hash   [sha256.Size]byte
	SHA256 [sha256.Size]byte // of the whole file; Hash, which the next file bears, is without the footer
}

// Follows returns an error unless the file is the next one after another.
func (i *SealedInfo) Follows(before *SealedInfo) error {
	if i.ID != before.ID || i.Number != before.Number+1 || i.After != before.Last || i.Previous != before.Hash ||
		i.Base != before.Base+uint64(before.Size) {
		return fmt.Errorf("%w: block file %s does not follow %s: one of them is of another ledger or time",
			machine.ErrCorrupt, Name(i.Number), Name(before.Number))
	}
	return nil
}

// CheckSealed reads a whole sealed file: its header, its records with their checksums, its footer and its hash.
// Damage is machine.ErrCorrupt.
func CheckSealed(file File) (info SealedInfo, err error) {
	foot, x, err := readFooter(file)
	if err != nil {
		return info, err
	}
	if info.Size, err = file.Size(); err != nil {
		return info, err
	}
	content, whole := sha256.New(), sha256.New()
	in := bufio.NewReaderSize(io.NewSectionReader(file, 0, info.Size), int(min(info.Size, 1<<20)))
	b := make([]byte, headerSize)
	if _, err := io.ReadFull(in, b); err != nil {
		return info, err
	}
	h, err := decodeFileHeader(b)
	if err != nil {
		return info, err
	}
	both := io.MultiWriter(content, whole)
	_, _ = both.Write(b) // never fails
	s := scanner{file: file, end: foot.end, at: int64(headerSize), in: in}
	last, found := h.after, index(nil)
	for offset := int64(headerSize); offset < foot.end; {
		record, ok, err := s.next(h.base, offset)
		if err != nil {
			return info, err
		}
		header, _ := decodeRecordHeader(record, h.base+uint64(offset))
		if !ok || header.last <= last {
			return info, fmt.Errorf("%w: no whole record at byte %d", machine.ErrCorrupt, offset)
		}
		_, _ = both.Write(record) // never fails
		found = found.add(header.last, offset)
		last, offset = header.last, offset+int64(len(record))
	}
	if _, err := io.Copy(whole, in); err != nil {
		return info, err
	}
	content.Sum(info.Hash[:0])
	whole.Sum(info.SHA256[:0])
	if info.Hash != foot.hash || last != foot.last || !slices.Equal(found, x) {
		return info, fmt.Errorf("%w: its footer is of other records", machine.ErrCorrupt)
	}
	info.ID, info.Last = h.id, last
	info.Start = Start{Number: h.number, Base: h.base, After: h.after, Previous: h.previous}
	return info, nil
}

// readFooter reads the end of a sealed file.
func readFooter(file File) (foot footer, x index, err error) {
	foot, sum, size, err := readTrailer(file)
	if err != nil {
		return foot, nil, err
	}
	b := make([]byte, size-int64(trailerSize)-foot.end)
	if _, err = file.ReadAt(b, foot.end); err == nil {
		x, err = decodeIndex(b, sum)
	}
	return foot, x, err
}

// checkSealedEnds compares the header and the end of a sealed file with its description, and returns its index. It does
// not read the records, which the hash covers and which have checksums.
func checkSealedEnds(file File, header fileHeader, want *SealedFile) (index, error) {
	if err := checkHeader(file, header); err != nil {
		return nil, err
	}
	foot, x, err := readFooter(file)
	if err == nil && (foot.last != want.Last || foot.end != want.End || foot.hash != want.Hash) {
		err = fmt.Errorf("%w: it is not the file that was sealed under this name: it is of another directory or time",
			machine.ErrCorrupt)
	}
	return x, err
}

// OpenAllSealed opens files that are all sealed, of an archive, from a number to another, to read them. It checks
// the header and the end of each, as Open does.
func OpenAllSealed(d Disk, first, last uint64) (*Files, error) {
	f := &Files{disk: d}
	f.handles.init(d)
	f.first.Store(first)
	header, err := readFileHeader(d, first)
	if err != nil {
		return nil, errors.Join(f.wrong(first, err), f.Close())
	}
	f.id, f.current.first = header.id, header
	for next := header; next.number <= last; f.current.header, f.current.last = next, next.after {
		if next, err = f.openSealed(next); err != nil {
			return nil, errors.Join(f.wrong(next.number, err), f.Close())
		}
	}
	f.Publish()
	return f, nil
}
