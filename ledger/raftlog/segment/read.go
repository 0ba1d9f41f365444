package segment

import (
	"fmt"
	"io"
	"sort"
)

// First returns the index of the first entry. In an empty log it returns the index that the first entry will have.
func (l *Log) First() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.base.Index + 1
}

// Last returns the position of the last entry. In an empty log it returns the position before the first entry.
func (l *Log) Last() Position {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.last
}

// State returns the last state that was appended.
func (l *Log) State() State {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state
}

// Checkpoint returns the last checkpoint. Its data must not be changed.
func (l *Log) Checkpoint() Checkpoint {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.checkpoint
}

// Bytes returns how many bytes of entries were appended since the last truncation, including those appended before
// Open.
func (l *Log) Bytes() int64 { return l.bytes.Load() }

// Term returns the term of the entry at an index, or at the position before the first entry, without reading the disk.
// It fails with ErrTruncated or ErrMissing.
func (l *Log) Term(index uint64) (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.term(index)
}

func (l *Log) term(index uint64) (uint64, error) {
	switch {
	case index < l.base.Index:
		return 0, ErrTruncated
	case index > l.last.Index:
		return 0, ErrMissing
	case index == l.base.Index:
		return l.base.Term, nil
	case index == l.last.Index:
		return l.last.Term, nil
	}
	return l.points[l.find(index)].at.Term, nil
}

// find returns the point at or before an index that is in the log.
func (l *Log) find(index uint64) int {
	return sort.Search(len(l.points), func(i int) bool { return l.points[i].at.Index > index }) - 1
}

// Entries reads the entries from lo to hi, excluding hi. It returns at least one entry, and otherwise no more than
// maxBytes of data. Entries whose write has not ended are missing. It fails with ErrTruncated or ErrMissing, and with a
// *DamageError if the disk holds something else.
func (l *Log) Entries(lo, hi uint64, maxBytes int) ([]Entry, error) {
	l.mu.RLock() // until the end, so that no file is closed meanwhile
	defer l.mu.RUnlock()
	switch {
	case lo <= l.base.Index:
		return nil, ErrTruncated
	case hi > l.written+1 || lo >= hi:
		return nil, ErrMissing
	}
	var entries []Entry
	size := 0
	for p := l.find(lo); len(entries) == 0 || entries[len(entries)-1].Index+1 < hi; p++ {
		next := hi
		if p+1 < len(l.points) {
			next = min(hi, l.points[p+1].at.Index)
		}
		at := l.points[p]
		r := newReader(at.file, at.offset)
		for want := at.at.Index; want < next; {
			rec, payload, err := r.next()
			if err != nil {
				return nil, fmt.Errorf("segment: read entry %d: %w", want, err)
			}
			if rec.kind != kindEntry {
				continue
			}
			if rec.at != (Position{want, at.at.Term}) {
				return nil, damagef(at.file, r.offset-rec.bytes(), "entry %d of term %d where entry %d of term %d was",
					rec.at.Index, rec.at.Term, want, at.at.Term)
			}
			want++
			if rec.at.Index < lo {
				continue
			}
			if size += len(payload); size > maxBytes && len(entries) > 0 {
				return entries, nil
			}
			// A copy, because the next record may overwrite the reader's chunk.
			data := append(make([]byte, 0, len(payload)), payload...)
			entries = append(entries, Entry{rec.at.Index, rec.at.Term, rec.entryKind, data})
		}
	}
	return entries, nil
}

// reader reads the records of a segment one after the other.
type reader struct {
	file   *file
	offset int64 // of the next record
	limit  int64 // of the file
	chunk  []byte
	at     int64 // offset of chunk
}

// readBytes is how much of a segment is read at once.
const readBytes = 128 << 10

func newReader(f *file, offset int64) *reader { return &reader{file: f, offset: offset, limit: f.size} }

// bytes returns n bytes at the next record, valid until the next call.
func (r *reader) bytes(n int64) ([]byte, error) {
	if begin := r.offset - r.at; begin >= 0 && begin+n <= int64(len(r.chunk)) {
		return r.chunk[begin : begin+n], nil
	}
	size := min(max(n, readBytes), r.limit-r.offset)
	if int64(cap(r.chunk)) < size {
		r.chunk = make([]byte, size)
	}
	r.chunk, r.at = r.chunk[:size], r.offset
	if _, err := io.ReadFull(io.NewSectionReader(r.file, r.offset, size), r.chunk); err != nil {
		r.chunk = nil
		return nil, err
	}
	return r.chunk[:n], nil
}

// next returns the next record and its payload, valid until the next call. If there is no valid record, the reader does
// not advance and next fails with a *DamageError; other errors come from the disk.
func (r *reader) next() (record, []byte, error) {
	if r.offset+recordBytes > r.limit {
		return record{}, nil, damagef(r.file, r.offset, "no whole record")
	}
	b, err := r.bytes(recordBytes)
	if err != nil {
		return record{}, nil, err
	}
	rec, ok := decodeRecord(b, r.file.header)
	if !ok || rec.bytes() > r.limit-r.offset {
		return record{}, nil, damagef(r.file, r.offset, "no whole record")
	}
	if b, err = r.bytes(rec.bytes()); err != nil {
		return record{}, nil, err
	}
	payload := b[recordBytes : recordBytes+rec.length]
	if !rec.verify(r.file.seed, b, payload) {
		return record{}, nil, damagef(r.file, r.offset, "no whole record")
	}
	r.offset += rec.bytes()
	return rec, payload, nil
}
