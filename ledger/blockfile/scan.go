package blockfile

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/seqledger/seqledger/ledger/internal/format"
)

// scanner reads records one after another, from the file and not from its map.
type scanner struct {
	file   File
	end    int64
	at     int64
	in     *bufio.Reader
	record []byte
}

func newScanner(file File, end int64) *scanner { return &scanner{file: file, end: end, at: -1} }

// next returns the bytes of the record at an offset, valid until the next call, and
// whether it is whole.
func (s *scanner) next(base uint64, offset int64) (record []byte, ok bool, err error) {
	if s.at != offset {
		left := s.end - offset
		s.in = bufio.NewReaderSize(io.NewSectionReader(s.file, offset, left), int(min(left, 1<<20)))
		s.at = offset
	}
	s.record = append(s.record[:0], make([]byte, recordHeaderSize)...)
	n, err := io.ReadFull(s.in, s.record)
	s.at += int64(n)
	if isEOF(err) {
		return s.record, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	h, ok := decodeRecordHeader(s.record, base+uint64(offset))
	if !ok || int64(h.size) > s.end-s.at {
		return s.record, false, nil
	}
	s.record = append(s.record, make([]byte, h.size)...)
	n, err = io.ReadFull(s.in, s.record[recordHeaderSize:])
	s.at += int64(n)
	if err != nil {
		return nil, false, err
	}
	return s.record, checksum(s.record[recordHeaderSize:]) == h.sum, nil
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// lastRecord returns the ledger index of the last whole record between two offsets
// of a file, wherever it begins; 0 for none. From 0 it takes the base from the file's
// header, and finds nothing in a file that has none.
func (f *Files) lastRecord(number uint64, from, end int64, base uint64) (last uint64, err error) {
	file, err := f.disk.OpenSealed(Name(number))
	if err != nil {
		return 0, f.wrong(number, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if from == 0 {
		b := make([]byte, headerSize)
		if _, err := file.ReadAt(b, 0); err != nil && !isEOF(err) {
			return 0, err
		}
		h, err := decodeFileHeader(b)
		if errors.Is(err, format.ErrVersion) {
			return 0, f.wrong(number, err)
		}
		if err != nil {
			return 0, nil //nolint:nilerr // A torn header: what follows was never complete.
		}
		base = h.base
	}
	return lastRecordIn(file, from, end, base)
}

// lastRecordIn is lastRecord in an open file.
func lastRecordIn(file File, from, end int64, base uint64) (last uint64, err error) {
	b := make([]byte, min(1<<20, max(0, end-from)))
	for at := from; end-at >= recordHeaderSize; {
		n, err := file.ReadAt(b[:min(int64(len(b)), end-at)], at)
		if err != nil && !isEOF(err) {
			return 0, err
		}
		if n < recordHeaderSize {
			break
		}
		i, found := findHeader(b[:n], base+uint64(at))
		at += int64(i)
		if !found {
			continue
		}
		record, ok, err := newScanner(file, end).next(base, at)
		if err != nil {
			return 0, err
		}
		if !ok {
			at++
			continue
		}
		h, _ := decodeRecordHeader(record, base+uint64(at))
		last = max(last, h.last)
		at += int64(len(record))
	}
	return last, nil
}

// findHeader returns where the first header of a record is in b, which stands at a
// position, or from where on to look for it. What a client has written may look
// like the beginning of any number of headers, so each costs no more than its bytes.
func findHeader(b []byte, position uint64) (at int, found bool) {
	magic := binary.BigEndian.AppendUint32(nil, recordMagic)
	last := len(b) - recordHeaderSize
	for at <= last {
		i := bytes.Index(b[at:], magic)
		if i < 0 {
			return last + 1, false
		}
		if at += i; at > last {
			return at, false
		}
		if _, ok := decodeRecordHeader(b[at:], position+uint64(at)); ok {
			return at, true
		}
		at++
	}
	return at, false
}
