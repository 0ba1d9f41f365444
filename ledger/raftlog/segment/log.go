package segment

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
)

// Options configures Create and Open. Disk and Identity are required, and Random as well unless ReadOnly is set.
type Options struct {
	Disk     Disk
	Identity []byte // 1 to 256 bytes that identify the log; stored in each segment
	// SegmentBytes is the size of one file, header included, 8 KiB to 1 GiB; 0 means DefaultSegmentBytes. The first
	// one has at most 1 MiB. An entry that does not fit gets a larger file for itself.
	SegmentBytes int64
	// Random provides a salt for each segment, so that no payload can be mistaken for a record.
	Random io.Reader
	// ReadOnly makes Open repair and write nothing. Append and all other writes fail.
	ReadOnly bool
	Logger   *slog.Logger // nil: slog.Default()
}

// DefaultSegmentBytes is the size of one file if Options does not specify it.
const DefaultSegmentBytes = 64 << 20

func (o *Options) validate() error {
	o.SegmentBytes = cmp.Or(o.SegmentBytes, DefaultSegmentBytes)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	switch {
	case o.Disk == nil:
		return errors.New("segment: Options.Disk is nil")
	case o.Random == nil && !o.ReadOnly:
		return errors.New("segment: Options.Random is nil")
	case len(o.Identity) == 0 || len(o.Identity) > maxIdentity:
		return fmt.Errorf("segment: Options.Identity has %d bytes, want 1 to %d", len(o.Identity), maxIdentity)
	case o.SegmentBytes < 2*headerBytes || o.SegmentBytes > 1<<30:
		return fmt.Errorf("segment: Options.SegmentBytes is %d, want %d to %d", o.SegmentBytes, 2*headerBytes, 1<<30)
	}
	o.SegmentBytes = padded(int(o.SegmentBytes))
	return nil
}

// Log is an open log. Writes are serialized; reads may run concurrently with each other and with a write.
type Log struct {
	o Options

	// writing is held by every operation that writes, including its syncs.
	writing  sync.Mutex
	crc      uint32 // of the last record
	end      int64  // of the current segment
	ahead    int64  // end of the zeros written after it; see writeAhead
	synced   int64  // durable length of the current segment
	unsealed *file  // the previous segment, until a durable record shows that it has a successor
	buffer   []byte // records not yet written; at most maxKeptBuffer between two calls
	// mustContinue is set during Open if the newest segment is known to have held acknowledged records.
	mustContinue bool
	failure      error // the first error; nothing is written after it

	// mu guards what readers see. A writer holds it while it changes that, and not while it writes to the disk: what is
	// in memory must be known while the disk hangs.
	mu         sync.RWMutex
	files      []*file  // oldest first; the last one is the current
	base       Position // the position before the first entry
	points     []point
	rewound    bool // the next entry is not stored right after the last one
	last       Position
	state      State
	checkpoint Checkpoint
	written    uint64       // the index up to which the entries are in the files
	bytes      atomic.Int64 // of entries since the last truncation

	removing sync.Mutex // serializes removals, which must happen in order
}

// file is a segment.
type file struct {
	*header
	name string
	seed uint32
	File
	base   Position // the position before its first entry; a rewind may lower it
	sealAt int64    // offset of its seal, once another segment follows
}

// point is the offset of an entry. The entries from there to the next point have the same term, are in the same file
// and are stored one after the other, with only non-entry records in between. There is at least one point for each
// pointBytes.
type point struct {
	at     Position
	file   *file
	offset int64
}

const (
	pointBytes    = 64 << 10
	maxKeptBuffer = 4 << 20
	// writeAhead is how many zeros follow a write to a part of the file that was never written, in bytes,
	// or a sixteenth of a small file. They change nothing that can be read. But the first write to an allocated block
	// changes the file system's metadata, which the next sync has to write, too: a sync of 4 KiB took 0.37 ms, and
	// 0.27 after such a write; one of 40 KiB 0.55 and 0.35 (ext4, means of 1,000). More at once would delay the sync
	// that has them. A long write gains little, and has none.
	writeAhead = 512 << 10
)

func newFile(h *header, f File) *file {
	return &file{header: h, name: fmt.Sprintf(fileTemplate, h.number), seed: h.seed(), File: f, base: h.base}
}

// Create creates a log without entries that continues after a checkpoint; the zero checkpoint is before the first
// entry. Create fails if the disk already holds a log.
func Create(o Options, c Checkpoint, state State) error {
	if err := o.validate(); err != nil {
		return err
	}
	names, err := segmentNames(o.Disk)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		return fmt.Errorf("segment: there is a log already: %s", names[0])
	}
	if err := c.validate(); err != nil {
		return err
	}
	// Each start allocates or reads a whole file, which for a small ledger is most of its work.
	small := min(o.SegmentBytes, 1<<20)
	f, err := makeFile(&o, &header{
		number: 1, size: small, base: c.Position, state: state, checkpoint: c, identity: o.Identity,
	})
	if err != nil {
		return err
	}
	return f.Close()
}

func (c *Checkpoint) validate() error {
	if len(c.Data) > MaxCheckpointBytes {
		return fmt.Errorf("segment: a checkpoint with %d bytes, at most %d", len(c.Data), MaxCheckpointBytes)
	}
	return nil
}

// makeFile creates a segment and makes it durable under its name. Until it has that name it is not part of the log.
func makeFile(o *Options, h *header) (*file, error) {
	var random [12]byte
	if _, err := io.ReadFull(o.Random, random[:]); err != nil {
		return nil, fmt.Errorf("segment: random salt: %w", err)
	}
	// The marker is never 0, so that unwritten bytes are not taken for a record.
	h.salt, h.marker = [8]byte(random[:8]), uint32(random[8])|uint32(random[9])<<8|uint32(random[10])<<16|1<<31
	opened, err := o.Disk.Create(temporary, h.size)
	if err != nil {
		return nil, fmt.Errorf("segment: %w", err)
	}
	f := newFile(h, opened)
	if _, err = f.WriteAt(h.encode(), 0); err == nil {
		err = f.File.Sync()
	}
	if err == nil {
		// Only now, so that a segment under its name always has a durable header.
		err = o.Disk.Rename(temporary, f.name)
	}
	if err == nil {
		err = o.Disk.Sync()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("segment: make %s: %w", f.name, err), f.Close())
	}
	return f, nil
}

// Append writes a state, unless it is nil, and entries, which replace the log's entries from the index of the first one
// on. They are durable after the next Sync. The log does not retain the memory.
//
// A crash may leave a prefix of the write, which determines the order. The state comes before the entries, because its
// term is that of the entries. Its commit index comes after the entries that it covers, because the log may
// still have others at those indexes, which are not committed. It comes before the remaining entries, and after each
// change of the members up to there, because an entry after a membership change must not be in the log without the
// record that the change is committed.
func (l *Log) Append(state *State, entries []Entry) error {
	return l.write(func() error {
		if state != nil {
			first := *state
			if len(entries) > 0 {
				first.Commit = min(first.Commit, entries[0].Index-1)
			}
			if err := l.addState(first); err != nil {
				return err
			}
		}
		if len(entries) > 0 && entries[0].Index <= l.last.Index {
			if err := l.rewind(entries[0].Index - 1); err != nil {
				return err
			}
		}
		for i := range entries {
			if state != nil && (entries[i].Index == state.Commit+1 || i > 0 && entries[i-1].Kind == KindChange) {
				covered := *state
				covered.Commit = min(covered.Commit, entries[i].Index-1)
				if err := l.addState(covered); err != nil {
					return err
				}
			}
			if err := l.addEntry(&entries[i]); err != nil {
				return err
			}
		}
		if state != nil {
			return l.addState(*state)
		}
		return nil
	})
}

// addState adds a state, unless it equals the log's current one.
func (l *Log) addState(s State) error {
	if s == l.state {
		return nil
	}
	if err := l.add(record{kind: kindState}, encodeState(s)); err != nil {
		return err
	}
	l.state = s
	return nil
}

// write runs one change of the log and writes the added records. The first error is final, because the content of the
// disk is unknown after it.
func (l *Log) write(change func() error) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.failure != nil {
		return l.failure
	}
	l.mu.Lock()
	err := change()
	l.mu.Unlock()
	if err == nil {
		err = l.flush()
	}
	return l.sticky(err)
}

// sticky records the first error and returns it.
func (l *Log) sticky(err error) error {
	if err != nil && l.failure == nil {
		l.failure = err
	}
	return l.failure
}

func (l *Log) current() *file { return l.files[len(l.files)-1] }

func (l *Log) addEntry(e *Entry) error {
	if e.Index != l.last.Index+1 || e.Term < l.last.Term || len(e.Data) > MaxEntryBytes {
		return fmt.Errorf("segment: entry %d of term %d with %d bytes cannot follow entry %d of term %d",
			e.Index, e.Term, len(e.Data), l.last.Index, l.last.Term)
	}
	at := Position{e.Index, e.Term}
	if err := l.add(record{kind: kindEntry, entryKind: e.Kind, at: at}, e.Data); err != nil {
		return err
	}
	l.indexEntry(at, l.end-recordBytes-padded(len(e.Data)))
	l.bytes.Add(int64(len(e.Data)) + recordBytes)
	return nil
}

// indexEntry indexes an entry at offset in the current segment.
func (l *Log) indexEntry(at Position, offset int64) {
	n := len(l.points)
	if n == 0 || l.points[n-1].at.Term != at.Term || l.points[n-1].file != l.current() ||
		offset-l.points[n-1].offset >= pointBytes || l.rewound {
		l.points = append(l.points, point{at, l.current(), offset})
		l.rewound = false
	}
	l.last = at
}

// rewind makes the log end at an existing index.
func (l *Log) rewind(to uint64) error {
	term, err := l.term(to)
	if err != nil {
		return fmt.Errorf("segment: entries from %d on cannot be replaced: %w", to+1, err)
	}
	if err := l.add(record{kind: kindRewind, at: Position{to, term}}, nil); err != nil {
		return err
	}
	l.indexRewind(Position{to, term})
	return nil
}

func (l *Log) indexRewind(to Position) {
	n := len(l.points)
	for n > 0 && l.points[n-1].at.Index > to.Index {
		n--
	}
	l.points = slices.Delete(l.points, n, len(l.points))
	l.last, l.written = to, min(l.written, to.Index)
	l.current().base = lower(l.current().base, to)
	l.base = lower(l.base, to)
	l.rewound = true
}

func lower(a, b Position) Position {
	if b.Index < a.Index {
		return b
	}
	return a
}

// add puts a record into the buffer, and starts a new segment first if this one is full.
func (l *Log) add(r record, payload []byte) error {
	need := recordBytes + padded(len(payload))
	if l.end+need+sealedBytes > l.current().size {
		if err := l.rotate(need, false, l.last); err != nil {
			return err
		}
	}
	r.previous, r.durable = l.crc, l.synced
	f := l.current()
	l.buffer = r.append(l.buffer, f.header, f.seed, payload)
	l.crc, l.end = r.crc, l.end+need
	return nil
}

// flush writes the buffer. The caller holds writing, and not mu.
func (l *Log) flush() error {
	if len(l.buffer) == 0 {
		return nil
	}
	at := l.end - int64(len(l.buffer))
	size := l.current().size
	if ahead := min(writeAhead, size/16); l.end > l.ahead && int64(len(l.buffer)) <= ahead/4 {
		l.ahead = min(l.end+ahead, size)
		l.buffer = append(l.buffer, make([]byte, l.ahead-l.end)...)
	}
	_, err := l.current().WriteAt(l.buffer, at)
	if l.buffer = l.buffer[:0]; cap(l.buffer) > maxKeptBuffer {
		l.buffer = nil
	}
	if err != nil {
		return fmt.Errorf("segment: write %s: %w", l.current().name, err)
	}
	l.mu.Lock()
	l.written = l.last.Index
	l.mu.Unlock()
	return nil
}

// rotate continues in a new segment. It makes the previous segment durable first, so that only the newest segment can
// have a torn end. The caller holds both locks.
func (l *Log) rotate(need int64, reset bool, base Position) error {
	h := &header{
		number: l.current().number + 1, size: max(l.o.SegmentBytes, padded(int(headerBytes+need+sealedBytes))),
		previous: l.crc, reset: reset, base: base, state: l.state, checkpoint: l.checkpoint, identity: l.o.Identity,
	}
	empty := l.end == headerBytes && len(l.files) > 1
	if empty { // it is too small for an entry: the new segment replaces it and takes its name
		h.number--
	}
	// Readers may continue meanwhile, because they read only what is written.
	l.mu.Unlock()
	err := l.flush()
	if err == nil {
		err = l.sync()
	}
	var f *file
	if err == nil {
		f, err = makeFile(&l.o, h)
	}
	l.mu.Lock()
	if err != nil {
		return err
	}
	if empty {
		err = l.current().Close()
		l.files[len(l.files)-1] = f
	} else {
		l.unsealed, l.current().sealAt = l.current(), l.end
		l.files = append(l.files, f)
	}
	l.end, l.ahead, l.synced = headerBytes, 0, headerBytes
	return err
}

// Sync makes everything appended so far durable.
func (l *Log) Sync() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.failure != nil {
		return l.failure
	}
	return l.sticky(l.sync())
}

func (l *Log) sync() error {
	if l.synced == l.end {
		return nil
	}
	if err := l.current().File.Sync(); err != nil {
		return fmt.Errorf("segment: sync %s: %w", l.current().name, err)
	}
	l.synced = l.end
	return l.seal()
}

// seal records in the previous segment that this one has records. It does so once they are durable and before the first
// of them is acknowledged, so that the loss of a newest segment is detected.
func (l *Log) seal() error {
	f := l.unsealed
	if f == nil || l.synced == headerBytes {
		return nil
	}
	r := record{kind: kindSeal, previous: l.current().previous, durable: f.sealAt, at: l.current().header.base}
	if _, err := f.WriteAt(r.append(nil, f.header, f.seed, nil), f.sealAt); err != nil {
		return fmt.Errorf("segment: seal %s: %w", f.name, err)
	}
	if err := f.File.Sync(); err != nil {
		return fmt.Errorf("segment: sync %s: %w", f.name, err)
	}
	l.unsealed = nil
	return nil
}

// Truncate records a checkpoint and removes the segments in which every entry is at or before it. Entries in the newest
// segment stay.
func (l *Log) Truncate(c Checkpoint) error {
	if err := c.validate(); err != nil {
		return err
	}
	l.removing.Lock()
	defer l.removing.Unlock()
	err := l.write(func() error {
		if c.Index > l.last.Index || c.Index < l.checkpoint.Index {
			return fmt.Errorf("segment: a checkpoint at %d, after one at %d, in a log that ends at %d",
				c.Index, l.checkpoint.Index, l.last.Index)
		}
		if err := l.add(record{kind: kindCheckpoint, at: c.Position}, c.Data); err != nil {
			return err
		}
		// A copy, because the log must not retain the caller's memory.
		c.Data = slices.Clone(c.Data)
		l.checkpoint = c
		l.bytes.Store(0)
		return nil
	})
	if err != nil {
		return err
	}
	// The checkpoint is durable before a segment is removed, otherwise a crash could leave a log that begins after it.
	if err := l.Sync(); err != nil {
		return err
	}
	return l.remove(l.detachCovered(c.Index))
}

// detachCovered removes from the index the segments in which every entry is at or before index.
func (l *Log) detachCovered(index uint64) []*file {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	gone := 0
	// The segment whose seal is still to be written stays open, because seal writes to it.
	for gone < len(l.files)-1 && l.files[gone+1].header.base.Index <= index && l.files[gone] != l.unsealed {
		gone++
	}
	removed := l.detach(gone)
	l.base = l.files[0].base
	for _, f := range l.files {
		l.base = lower(l.base, f.base)
	}
	return removed
}

// detach removes the oldest segments from the index.
func (l *Log) detach(count int) []*file {
	// A copy, because Delete moves the other files to where these are.
	removed := slices.Clone(l.files[:count])
	l.files = slices.Delete(l.files, 0, count)
	keep := slices.IndexFunc(l.points, func(p point) bool { return !slices.Contains(removed, p.file) })
	if keep < 0 {
		keep = len(l.points)
	}
	l.points = slices.Delete(l.points, 0, keep)
	return removed
}

// remove deletes files, oldest first. Each deletion is durable before the next one starts, so that no crash leaves a
// gap.
func (l *Log) remove(files []*file) error {
	for _, f := range files {
		err := f.Close()
		if err == nil {
			err = l.o.Disk.Remove(f.name)
		}
		if err == nil {
			err = l.o.Disk.Sync()
		}
		if err != nil {
			l.writing.Lock()
			defer l.writing.Unlock()
			return l.sticky(fmt.Errorf("segment: remove %s: %w", f.name, err))
		}
	}
	return nil
}

// Reset empties the log, which continues after the checkpoint. It is for a state store that has installed another
// node's state, which must be durable before Reset is called.
func (l *Log) Reset(c Checkpoint, state State) error {
	if err := c.validate(); err != nil {
		return err
	}
	l.removing.Lock()
	defer l.removing.Unlock()
	var removed []*file
	err := l.write(func() error {
		l.checkpoint = Checkpoint{c.Position, slices.Clone(c.Data)}
		l.state = state
		if err := l.rotate(0, true, c.Position); err != nil {
			return err
		}
		l.points, l.base, l.last, l.written = nil, c.Position, c.Position, c.Index
		l.bytes.Store(0)
		l.unsealed = nil // it is removed, and the new segment's header says so
		removed = l.detach(len(l.files) - 1)
		return nil
	})
	if err != nil {
		return err
	}
	return l.remove(removed)
}

// Close writes a final record, which distinguishes damage to earlier records from a torn write, and closes the files.
// It returns the failure of a failed log.
func (l *Log) Close() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if errors.Is(l.failure, ErrClosed) {
		return nil
	}
	if l.failure == nil {
		err := l.sync()
		if err == nil {
			l.mu.Lock()
			err = l.add(record{kind: kindState}, encodeState(l.state))
			l.mu.Unlock()
		}
		if err == nil {
			err = l.flush()
		}
		if err == nil {
			err = l.sync()
		}
		_ = l.sticky(err)
	}
	failure := l.failure // closeFiles overwrites it
	return errors.Join(failure, l.closeFiles())
}

// Abandon closes the files and writes nothing more, like a crash.
func (l *Log) Abandon() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if errors.Is(l.failure, ErrClosed) {
		return nil
	}
	return l.closeFiles()
}

func (l *Log) closeFiles() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, f := range l.files {
		errs = append(errs, f.Close())
	}
	l.failure = ErrClosed
	return errors.Join(errs...)
}
