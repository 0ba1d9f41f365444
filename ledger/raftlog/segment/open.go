package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/seqledger/seqledger/ledger/internal/format"
)

// Open opens the log. It reads all of it and refuses a damaged log with a *DamageError. The remains of an interrupted
// write are removed, with a warning. Open makes everything that it finds durable before it returns, because a killed
// process leaves its writes in the system's cache, and a failed sync leaves pages there that no later sync writes.
func Open(o Options) (*Log, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	l := &Log{o: o}
	if err := l.open(); err != nil {
		for _, f := range l.files {
			err = errors.Join(err, f.Close())
		}
		return nil, err
	}
	l.written = l.last.Index
	if o.ReadOnly {
		l.failure = errors.New("segment: opened for reading")
	}
	return l, nil
}

func (l *Log) open() error {
	names, err := segmentNames(l.o.Disk)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return damagef(nil, 0, "it has no segments")
	}
	for _, name := range names {
		f, err := l.openFile(name)
		if err != nil {
			return err
		}
		l.files = append(l.files, f)
	}
	for i := range l.files {
		if err := l.load(i); err != nil {
			return err
		}
	}
	return l.finish()
}

// segmentNames returns the names of the segments, oldest first.
func segmentNames(d Disk) ([]string, error) {
	all, err := d.List()
	if err != nil {
		return nil, fmt.Errorf("segment: %w", err)
	}
	names := slices.DeleteFunc(all, func(name string) bool { return !strings.HasSuffix(name, ".log") })
	slices.Sort(names)
	return names, nil
}

// openFile opens a segment and checks its header.
func (l *Log) openFile(name string) (*file, error) {
	opened, err := l.o.Disk.Open(name)
	if err != nil {
		return nil, fmt.Errorf("segment: %w", err)
	}
	f, err := l.checkFile(name, opened)
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	return f, nil
}

func (l *Log) checkFile(name string, opened File) (*file, error) {
	size, err := opened.Size()
	if err != nil {
		return nil, fmt.Errorf("segment: %w", err)
	}
	named := &file{name: name}
	if size < headerBytes {
		return nil, damagef(named, 0, "it has %d bytes, and its header alone has %d", size, headerBytes)
	}
	b := make([]byte, headerBytes)
	if _, err := opened.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("segment: read %s: %w", name, err)
	}
	h, err := decodeHeader(b)
	if errors.Is(err, format.ErrVersion) {
		return nil, fmt.Errorf("segment: %s: %w", name, err)
	}
	if err != nil {
		return nil, damagef(named, 0, "%v", err)
	}
	f := newFile(h, opened)
	switch {
	case f.name != name:
		return nil, damagef(named, 0, "it was written as %s", f.name)
	case h.size != size:
		return nil, damagef(f, 0, "it has %d bytes of %d", size, h.size)
	case !bytes.Equal(h.identity, l.o.Identity):
		return nil, damagef(f, 0, "it belongs to another log (%q, want %q)", h.identity, l.o.Identity)
	case len(l.files) > 0 && h.number != l.current().number+1:
		return nil, damagef(f, 0, "it follows segment %d: those between are missing", l.current().number)
	}
	return f, nil
}

// load reads the records of segment i.
func (l *Log) load(i int) error {
	f := l.files[i]
	switch {
	case i == 0 || f.reset:
		if i > 0 && f.previous != l.crc {
			return damagef(f, 0, "it does not follow the segment before it")
		}
		l.points, l.base, l.last = nil, f.header.base, f.header.base
		l.bytes.Store(0)
	case f.previous != l.crc || f.header.base != l.last || f.header.state != l.state:
		return damagef(l.files[i-1], l.end, "what follows is not what segment %s continues", f.name)
	}
	l.crc, l.state, l.checkpoint = f.previous, f.header.state, f.header.checkpoint
	isLast := i == len(l.files)-1
	known, sealed, err := l.scan(f, i)
	switch {
	case err != nil:
		return err
	case sealed && isLast:
		return damagef(f, l.end, "it was sealed, and the next segment is missing")
	case isLast:
		return l.repair(f, known)
	case !sealed && i < len(l.files)-2:
		return damagef(f, l.end, "it has no seal, and several segments follow it")
	}
	if i == len(l.files)-2 {
		// A seal that was read need not be durable, so finish writes it again.
		l.unsealed, f.sealAt = f, l.end
		l.mustContinue = sealed
	}
	return nil
}

// scan reads the records of a segment up to the first incomplete one, and returns the durable length of the segment
// according to the records.
func (l *Log) scan(f *file, i int) (known int64, sealed bool, err error) {
	known, l.end = headerBytes, headerBytes
	indexed := l.files
	l.files = l.files[:i+1] // so that f is the current segment
	defer func() { l.files = indexed }()
	r := newReader(f, headerBytes)
	for !sealed {
		rec, payload, err := r.next()
		if _, ok := errors.AsType[*DamageError](err); ok || err == nil && rec.previous != l.crc {
			return known, false, nil
		}
		if err != nil {
			return 0, false, fmt.Errorf("segment: read %s: %w", f.name, err)
		}
		known = max(known, rec.durable)
		if sealed = rec.kind == kindSeal; sealed {
			return known, true, nil
		}
		if err := l.take(f, rec, payload); err != nil {
			return 0, false, err
		}
		l.crc, l.end = rec.crc, l.end+rec.bytes()
	}
	return known, sealed, nil
}

// take indexes one record.
func (l *Log) take(f *file, r record, payload []byte) error {
	switch r.kind {
	case kindEntry:
		if r.at.Index != l.last.Index+1 || r.at.Term < l.last.Term {
			return damagef(f, l.end, "entry %d of term %d follows entry %d of term %d",
				r.at.Index, r.at.Term, l.last.Index, l.last.Term)
		}
		l.indexEntry(r.at, l.end)
		l.bytes.Add(int64(r.length) + recordBytes)
	case kindState:
		if len(payload) != stateBytes {
			return damagef(f, l.end, "a state of %d bytes", len(payload))
		}
		l.state = decodeState(payload)
	case kindRewind:
		if r.at.Index >= l.last.Index {
			return damagef(f, l.end, "entries after %d are replaced, and it ends at %d", r.at.Index, l.last.Index)
		}
		l.indexRewind(r.at)
	case kindCheckpoint:
		l.checkpoint = Checkpoint{r.at, append([]byte(nil), payload...)}
		l.bytes.Store(0)
	default:
		return damagef(f, l.end, "a record of kind %d", r.kind)
	}
	return nil
}

// repair makes the end of the newest segment durable and removes the bytes after it, unless they were acknowledged.
func (l *Log) repair(f *file, known int64) error {
	if l.mustContinue && l.end == headerBytes {
		return damagef(f, l.end, "acknowledged entries were in it, and none can be read")
	}
	used, err := l.checkTorn(f)
	if err != nil {
		return err
	}
	l.synced = l.end
	if l.o.ReadOnly {
		return nil
	}
	if used > l.end {
		l.o.Logger.Warn("the end of the log is a write that was interrupted and never acknowledged; it is removed",
			"segment", f.name, "offset", l.end, "bytes", used-l.end)
	}
	// Overwriting durable bytes with the same bytes cannot damage them.
	for at := known; at < used; at += readBytes {
		b := make([]byte, min(readBytes, used-at))
		if whole := min(l.end-at, int64(len(b))); whole > 0 {
			if _, err := f.ReadAt(b[:whole], at); err != nil {
				return fmt.Errorf("segment: read %s: %w", f.name, err)
			}
		}
		if _, err := f.WriteAt(b, at); err != nil {
			return fmt.Errorf("segment: write %s: %w", f.name, err)
		}
	}
	if err := f.File.Sync(); err != nil {
		return fmt.Errorf("segment: sync %s: %w", f.name, err)
	}
	return nil
}

// checkTorn inspects the bytes after the last complete record and returns where they end. If they contain a complete
// record that was written when the bytes before it were durable, those bytes were acknowledged and are damaged. The
// segment's salt prevents a client's payload from looking like such a record.
func (l *Log) checkTorn(f *file) (used int64, err error) {
	used = l.end
	b := make([]byte, readBytes+recordBytes)
	for at := l.end; at < f.size; at += readBytes {
		chunk := b[:min(int64(len(b)), f.size-at)]
		if _, err := io.ReadFull(io.NewSectionReader(f, at, int64(len(chunk))), chunk); err != nil {
			return 0, fmt.Errorf("segment: read %s: %w", f.name, err)
		}
		// Most of a segment is still unwritten. Counting zeros is twenty times as fast as trimming them.
		if bytes.Count(chunk, []byte{0}) == len(chunk) {
			continue
		}
		used = max(used, at+int64(len(bytes.TrimRight(chunk, "\x00"))))
		for i := int64(0); i < readBytes && i+recordBytes <= int64(len(chunk)); i += alignment {
			if _, ok := decodeRecord(chunk[i:], f.header); !ok {
				continue
			}
			r, _, err := newReader(f, at+i).next()
			if err == nil && r.durable > l.end {
				return 0, damagef(f, l.end, "no whole record, and one at %d that was written when this one was durable",
					at+i)
			}
		}
	}
	return used, nil
}

// finish checks the segments against each other and removes leftovers.
func (l *Log) finish() error {
	if l.checkpoint.Index > l.last.Index {
		return damagef(nil, 0, "it ends at index %d, before its own checkpoint at %d", l.last.Index, l.checkpoint.Index)
	}
	if l.base.Index > l.checkpoint.Index {
		return damagef(nil, 0, "it begins at index %d, and its checkpoint is at %d: segments are missing",
			l.base.Index+1, l.checkpoint.Index)
	}
	if l.o.ReadOnly {
		return nil
	}
	names, err := l.o.Disk.List()
	if err != nil {
		return fmt.Errorf("segment: %w", err)
	}
	if slices.Contains(names, temporary) {
		if err := l.o.Disk.Remove(temporary); err != nil {
			return fmt.Errorf("segment: %w", err)
		}
	}
	if err := l.o.Disk.Sync(); err != nil {
		return fmt.Errorf("segment: %w", err)
	}
	if err := l.seal(); err != nil {
		return err
	}
	for i := len(l.files) - 1; i > 0; i-- {
		if l.files[i].reset {
			if l.unsealed == l.files[i-1] {
				l.unsealed = nil
			}
			return l.remove(l.detach(i))
		}
	}
	return nil
}
