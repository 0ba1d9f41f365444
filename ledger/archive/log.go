package archive

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

const (
	logMagic       = "seqledger log\x00\x00\x00"
	logVersion     = 1
	logSuffix      = ".log"
	logHeaderBytes = len(logMagic) + 4 + 8 + 8
	logEntryBytes  = 8 + 1 + 4 // before the data
	logDay         = time.DateOnly
	// LogObjectBytes is roughly how many bytes an object of the log has at most; a larger entry makes a larger object.
	LogObjectBytes = 8 << 20
	maxLogObject   = LogObjectBytes + segment.MaxEntryBytes
)

// logObject is an object with entries of the log, as its name and the list say. It is in the folder of a day of ledger
// time, so that no folder has very many.
type logObject struct {
	first, last uint64 // indexes of the log
	sum         [sha256.Size]byte
	day         string
	size        int64 // bytes
}

func logFolder(ledger machine.LedgerID) string { return folder(ledger) + "log/" }

func (o *logObject) name(ledger machine.LedgerID) string {
	return fmt.Sprintf("%s%s/%020d-%020d-%x%s", logFolder(ledger), o.day, o.first, o.last, o.sum, logSuffix)
}

// parseLog is the inverse of name.
func parseLog(ledger machine.LedgerID, listed Object) (o logObject, ok bool) {
	day, name, _ := strings.Cut(strings.TrimPrefix(listed.Name, logFolder(ledger)), "/")
	fields := strings.Split(strings.TrimSuffix(name, logSuffix), "-")
	if len(fields) != 3 {
		return o, false
	}
	first, err1 := strconv.ParseUint(fields[0], 10, 64)
	last, err2 := strconv.ParseUint(fields[1], 10, 64)
	sum, err3 := hex.DecodeString(fields[2])
	_, err4 := time.Parse(logDay, day)
	if errors.Join(err1, err2, err3, err4) != nil || len(sum) != len(o.sum) || first == 0 || first > last {
		return o, false
	}
	o = logObject{first, last, [sha256.Size]byte(sum), day, listed.Size}
	return o, o.name(ledger) == listed.Name
}

// LogWriter gathers entries of the log, all of them committed, for one object after another, in the same memory.
type LogWriter struct {
	content     []byte
	first, last uint64 // indexes of the log; 0 for none yet
}

// Begin begins an object of a ledger's log.
func (w *LogWriter) Begin(ledger machine.LedgerID) {
	if cap(w.content) > 2*LogObjectBytes { // of a large entry
		w.content = nil
	}
	w.content = append(w.content[:0], logMagic...)
	w.content = binary.BigEndian.AppendUint32(w.content, logVersion)
	w.content = binary.BigEndian.AppendUint64(w.content, uint64(ledger))
	w.first, w.last = 0, 0
}

// Add adds entries, which follow those before, and reports whether the object is to be put now.
func (w *LogWriter) Add(entries []raftlog.Entry) (full bool) {
	b := w.content
	for i := range entries {
		if w.first == 0 {
			w.first = entries[i].Index
			b = binary.BigEndian.AppendUint64(b, w.first)
		}
		b = binary.BigEndian.AppendUint64(b, entries[i].Term)
		b = append(b, entries[i].Kind)
		b = binary.BigEndian.AppendUint32(b, uint32(len(entries[i].Data)))
		b = append(b, entries[i].Data...)
		w.last = entries[i].Index
	}
	w.content = b
	return len(b) >= LogObjectBytes
}

// Last returns the index of the last entry that was added; 0 for none.
func (w *LogWriter) Last() uint64 { return w.last }

// Put puts the object. at is the ledger time at about its last entry. The writer may be used again once the target does
// not use it any more, which may be after an error.
func (w *LogWriter) Put(ctx context.Context, t Target, ledger machine.LedgerID, at time.Time) error {
	o := logObject{first: w.first, last: w.last, sum: sha256.Sum256(w.content), day: at.UTC().Format(logDay)}
	return t.Put(ctx, o.name(ledger), bytes.NewReader(w.content), int64(len(w.content)), o.sum)
}

// decodeLog takes an object apart. The entries alias b.
func decodeLog(b []byte) (ledger machine.LedgerID, entries []raftlog.Entry, err error) {
	if len(b) < logHeaderBytes || string(b[:len(logMagic)]) != logMagic {
		return 0, nil, fmt.Errorf("%w: it does not begin like one with entries of the log", machine.ErrCorrupt)
	}
	if err := format.Check(binary.BigEndian.Uint32(b[len(logMagic):]), logVersion); err != nil {
		return 0, nil, err
	}
	ledger = machine.LedgerID(binary.BigEndian.Uint64(b[len(logMagic)+4:]))
	next := binary.BigEndian.Uint64(b[len(logMagic)+12:])
	for b = b[logHeaderBytes:]; len(b) > 0; next++ {
		if len(b) < logEntryBytes || uint64(len(b)-logEntryBytes) < uint64(binary.BigEndian.Uint32(b[9:])) {
			return 0, nil, fmt.Errorf("%w: it ends within entry %d", machine.ErrCorrupt, next)
		}
		end := logEntryBytes + int(binary.BigEndian.Uint32(b[9:]))
		entries = append(entries, raftlog.Entry{
			Index: next, Term: binary.BigEndian.Uint64(b), Kind: b[8], Data: b[logEntryBytes:end:end],
		})
		b = b[end:]
	}
	return ledger, entries, nil
}

// Log is what a target had of the log of a ledger when it was listed. Objects may overlap, because a leader may copy
// what another one has copied; they have the same entries then.
type Log struct {
	target   Target
	ledger   machine.LedgerID
	objects  []logObject // in the order of their first entries
	unlisted []string
}

// ListLog lists the objects of a ledger's log.
func ListLog(ctx context.Context, t Target, ledger machine.LedgerID) (*Log, error) {
	l := &Log{target: t, ledger: ledger}
	days, err := t.List(ctx, logFolder(ledger))
	for _, day := range days {
		if !strings.HasSuffix(day.Name, "/") {
			l.unlisted = append(l.unlisted, day.Name)
			continue
		}
		found, err := t.List(ctx, day.Name)
		if err != nil {
			return nil, err
		}
		for _, listed := range found {
			if o, ok := parseLog(ledger, listed); ok {
				l.objects = append(l.objects, o)
			} else {
				l.unlisted = append(l.unlisted, listed.Name)
			}
		}
	}
	slices.SortFunc(l.objects, func(a, b logObject) int {
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last), bytes.Compare(a.sum[:], b.sum[:]))
	})
	return l, err
}

// End returns the last index of the entries that follow an index without a gap; that index itself if there are none.
func (l *Log) End(from uint64) uint64 {
	for i := range l.objects {
		if l.objects[i].first > from+1 {
			break
		}
		from = max(from, l.objects[i].last)
	}
	return from
}

// Entry reads one entry.
func (l *Log) Entry(ctx context.Context, index uint64) (e raftlog.Entry, err error) {
	found := errors.New("the entry is found")
	err = l.Visit(ctx, index-1, func(read *raftlog.Entry) error {
		e = *read
		return found
	})
	if errors.Is(err, found) {
		err = nil
	}
	return e, err
}

// Visit calls visit for the entries after an index, in order, until it returns an error. An object that is damaged or
// missing is machine.ErrCorrupt, and so are missing entries before later ones, unless other objects have the entries.
func (l *Log) Visit(ctx context.Context, after uint64, visit func(*raftlog.Entry) error) error {
	var open []*logObject // that have the next entry
	i := 0
	objects := readAhead(ctx, func(ctx context.Context) (entries []raftlog.Entry, err error) {
		for ; i < len(l.objects) && l.objects[i].first <= after+1; i++ {
			open = append(open, &l.objects[i])
		}
		open = slices.DeleteFunc(open, func(o *logObject) bool { return o.last <= after })
		switch {
		case len(open) > 0:
			entries, err = l.readOne(ctx, open)
		case i < len(l.objects):
			err = fmt.Errorf("%w: the log from entry %d to %d is missing in %s", machine.ErrCorrupt, after+1,
				l.objects[i].first-1, l.target)
		default:
			err = io.EOF
		}
		if err == nil {
			entries = entries[after+1-entries[0].Index:]
			after = entries[len(entries)-1].Index
		}
		return entries, err
	})
	defer objects.close()
	for {
		entries, err := objects.next()
		for k := range entries {
			if err := visit(&entries[k]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readOne reads the object that goes furthest; if it is damaged, another one.
func (l *Log) readOne(ctx context.Context, from []*logObject) (entries []raftlog.Entry, err error) {
	slices.SortStableFunc(from, func(a, b *logObject) int { return cmp.Compare(b.last, a.last) })
	var failed error
	for _, o := range from {
		if entries, err = l.read(ctx, o); err == nil {
			return entries, nil
		}
		if failed == nil {
			failed = err
		}
		if !errors.Is(err, machine.ErrCorrupt) {
			break
		}
	}
	return nil, failed
}

// read reads an object, which must be what its name says.
func (l *Log) read(ctx context.Context, o *logObject) (entries []raftlog.Entry, err error) {
	content, err := readSmall(ctx, l.target, o.name(l.ledger), min(o.size, maxLogObject)+1)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%w: it is missing", machine.ErrCorrupt)
	case err == nil && sha256.Sum256(content) != o.sum:
		err = fmt.Errorf("%w: its hash does not match", machine.ErrCorrupt)
	}
	var ledger machine.LedgerID
	if err == nil {
		ledger, entries, err = decodeLog(content)
	}
	if err == nil && (ledger != l.ledger || uint64(len(entries)) != o.last-o.first+1 || entries[0].Index != o.first) {
		err = fmt.Errorf("%w: it is not the object that its name speaks of", machine.ErrCorrupt)
	}
	if err != nil {
		return nil, fmt.Errorf("%s in %s: %w", o.name(l.ledger), l.target, err)
	}
	return entries, nil
}

// remove removes the objects that have no entry after an index.
func (l *Log) remove(ctx context.Context, upTo uint64) error {
	kept := map[string]bool{} // the days
	for i := range l.objects {
		o := &l.objects[i]
		if o.last > upTo {
			kept[o.day] = true
		} else if err := l.target.Delete(ctx, o.name(l.ledger)); err != nil {
			return err
		}
	}
	for i := range l.objects {
		day := l.objects[i].day
		if kept[day] || i+1 == len(l.objects) { // of the newest day another node may be putting one
			continue
		}
		kept[day] = true
		if err := l.target.Delete(ctx, logFolder(l.ledger)+day+"/"); err != nil {
			return err
		}
	}
	return nil
}

// verify reads every object, and compares the entries that several have.
func (l *Log) verify(ctx context.Context, read func(bytes int64), problem func(where string, err error)) error {
	var before []raftlog.Entry // of the object that has gone furthest
	for i := range l.objects {
		o := &l.objects[i]
		entries, err := l.read(ctx, o)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, format.ErrVersion):
			return err
		case err != nil:
			problem(o.name(l.ledger), err)
			continue
		}
		for k := range entries {
			if !sameEntry(before, &entries[k]) {
				problem(o.name(l.ledger), fmt.Errorf("%w: another object has another entry %d", ErrOther,
					entries[k].Index))
				break
			}
		}
		if len(before) == 0 || o.last > before[len(before)-1].Index {
			before = entries
		}
		read(o.size)
	}
	return nil
}

// sameEntry reports whether an entry is the one of its index in entries, if they have one.
func sameEntry(entries []raftlog.Entry, e *raftlog.Entry) bool {
	if len(entries) == 0 || e.Index < entries[0].Index || e.Index > entries[len(entries)-1].Index {
		return true
	}
	return raftlog.SameEntry(&entries[e.Index-entries[0].Index], e)
}
