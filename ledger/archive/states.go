package archive

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/machine"
)

// State is a state of a ledger in its archive.
type State struct {
	Index uint64    // ledger index of the last command in it
	Log   uint64    // index of the log up to which it has everything
	Time  time.Time // ledger time at that index

	ledger machine.LedgerID
	unique uint64 // random, so that two that copy the same state do not meet
}

const (
	stateMagic   = "seqledger state"
	stateVersion = 1
	stateSuffix  = ".state"
	maxList      = 64 << 20 // bytes of the object that lists the parts
)

func statesFolder(ledger machine.LedgerID) string { return folder(ledger) + "state/" }

// name returns the name of the object that lists the parts, without its suffix.
func (s *State) name() string {
	return fmt.Sprintf("%s%020d-%020d-%020d-%016x", statesFolder(s.ledger), s.Index, s.Log, s.Time.UnixNano(), s.unique)
}

func (s *State) listName() string { return s.name() + stateSuffix }

func (s *State) folder() string { return s.name() + "/" }

// partName returns the name of a part, from 1.
func (s *State) partName(number int) string { return fmt.Sprintf("%s%05d", s.folder(), number) }

// parseState is the inverse of name.
func parseState(ledger machine.LedgerID, name string) (s State, ok bool) {
	fields := strings.Split(strings.TrimPrefix(name, statesFolder(ledger)), "-")
	if len(fields) != 4 {
		return s, false
	}
	at, err1 := strconv.ParseUint(fields[0], 10, 64)
	log, err2 := strconv.ParseUint(fields[1], 10, 64)
	nanos, err3 := strconv.ParseInt(fields[2], 10, 64)
	unique, err4 := strconv.ParseUint(fields[3], 16, 64)
	s = State{Index: at, Log: log, Time: time.Unix(0, nanos), ledger: ledger, unique: unique}
	return s, errors.Join(err1, err2, err3, err4) == nil && s.name() == name
}

// States returns the states of a ledger, the oldest first.
func States(ctx context.Context, t Target, ledger machine.LedgerID) ([]State, error) {
	found, err := listStates(ctx, t, ledger)
	return found.whole, err
}

// listedStates are the states of a ledger on a target, the oldest first.
type listedStates struct {
	whole, begun []State // begun are folders of parts, whose list is absent for those that were not finished
	unlisted     []string
}

func listStates(ctx context.Context, t Target, ledger machine.LedgerID) (l listedStates, err error) {
	found, err := t.List(ctx, statesFolder(ledger))
	for _, o := range found {
		name, isList := strings.CutSuffix(o.Name, stateSuffix)
		name, isFolder := strings.CutSuffix(name, "/")
		switch s, ok := parseState(ledger, name); {
		case ok && isList:
			l.whole = append(l.whole, s)
		case ok && isFolder:
			l.begun = append(l.begun, s)
		default:
			l.unlisted = append(l.unlisted, o.Name)
		}
	}
	for _, states := range [][]State{l.whole, l.begun} {
		slices.SortFunc(states, func(a, b State) int {
			return cmp.Or(cmp.Compare(a.Index, b.Index), a.Time.Compare(b.Time), cmp.Compare(a.unique, b.unique))
		})
	}
	return l, err
}

// part is a part of a state, as the list of them has it.
type part struct {
	size int64
	sum  [sha256.Size]byte
}

// encodeParts returns the content of the object that lists the parts.
func encodeParts(parts []part) []byte {
	b := fmt.Appendf(nil, "%s %d\n", stateMagic, stateVersion)
	for _, p := range parts {
		b = fmt.Appendf(b, "%d %x\n", p.size, p.sum)
	}
	return fmt.Appendf(b, "%x\n", sha256.Sum256(b))
}

// decodeParts is the inverse of encodeParts.
func decodeParts(b []byte) (parts []part, err error) {
	const last = 2*sha256.Size + 1
	content := b[:max(len(b), last)-last]
	lines := strings.Split(string(content), "\n")
	version := 0
	_, err = fmt.Sscanf(lines[0], stateMagic+" %d", &version)
	if err != nil || string(b[len(content):]) != fmt.Sprintf("%x\n", sha256.Sum256(content)) {
		return nil, fmt.Errorf("%w: it does not begin like that of a state, or its hash does not match",
			machine.ErrCorrupt)
	}
	if err := format.Check(version, stateVersion); err != nil {
		return nil, err
	}
	for _, line := range lines[1 : len(lines)-1] {
		var p part
		var sum []byte
		_, err = fmt.Sscanf(line, "%d %x", &p.size, &sum)
		copy(p.sum[:], sum)
		parts = append(parts, p)
	}
	if err != nil || string(encodeParts(parts)) != string(b) {
		return nil, fmt.Errorf("%w: it is not written as that of a state is", machine.ErrCorrupt)
	}
	return parts, nil
}

// StateWriter puts a state in parts. Nothing reads them before Finish has put the list of them.
type StateWriter struct {
	State

	ctx    context.Context //nolint:containedctx // It lives as long as one copy.
	target Target
	size   int // of a part
	buffer []byte
	parts  []part
	listed bool // the list may be there
}

// NewState begins a state with a description in parts of a size.
func NewState(ctx context.Context, t Target, info *backupfile.Info, size int, random io.Reader) (*StateWriter, error) {
	var unique [8]byte
	if _, err := io.ReadFull(random, unique[:]); err != nil {
		return nil, err
	}
	return &StateWriter{ctx: ctx, target: t, size: size, State: State{
		Index: info.Index, Log: info.At.Index, Time: time.Unix(0, info.Time), ledger: info.LedgerID,
		unique: binary.BigEndian.Uint64(unique[:]),
	}}, nil
}

// Write implements [io.Writer]. After an error nothing more may be written.
func (w *StateWriter) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		taken := min(len(b)-n, w.size-len(w.buffer))
		w.buffer = append(w.buffer, b[n:n+taken]...)
		n += taken
		if len(w.buffer) == w.size {
			err = w.put()
		}
	}
	return n, err
}

// put makes a part of what was gathered. The target may use it even after it has returned.
func (w *StateWriter) put() error {
	content := w.buffer
	p := part{int64(len(content)), sha256.Sum256(content)}
	w.parts = append(w.parts, p)
	err := putBytes(w.ctx, w.target, w.partName(len(w.parts)), content)
	w.buffer = make([]byte, 0, len(content))
	return err
}

func putBytes(ctx context.Context, t Target, name string, content []byte) error {
	return t.Put(ctx, name, bytes.NewReader(content), int64(len(content)), sha256.Sum256(content))
}

// Flush puts the last part.
func (w *StateWriter) Flush() error {
	if len(w.buffer) == 0 {
		return nil
	}
	return w.put()
}

// Finish puts the list of the parts, which makes a state of them. All block files of the state must be in the archive.
func (w *StateWriter) Finish() error {
	w.listed = true
	return putBytes(w.ctx, w.target, w.listName(), encodeParts(w.parts))
}

// Abort removes what was put, as far as it can. It leaves the parts if Finish was called, because a call that failed
// may have put the list, or may yet put it.
func (w *StateWriter) Abort(ctx context.Context) error {
	if w.listed {
		return nil
	}
	return removeParts(ctx, w.target, &w.State)
}

func removeParts(ctx context.Context, t Target, s *State) error {
	found, err := t.List(ctx, s.folder())
	for _, o := range found {
		if err == nil {
			err = t.Delete(ctx, o.Name)
		}
	}
	if err == nil {
		err = t.Delete(ctx, s.folder())
	}
	return err
}

// unfinishedFor is for how long parts without a list are kept, in ledger time: another node may be putting them.
const unfinishedFor = 24 * time.Hour

// RemoveStates removes the states that are older than the window before the newest one, except the newest of those:
// with it, each moment of the window has a state before it. Of the log it removes what all these states have. A window
// of 0 keeps all.
func RemoveStates(ctx context.Context, t Target, ledger machine.LedgerID, window time.Duration) error {
	found, err := listStates(ctx, t, ledger)
	if err != nil || len(found.whole) == 0 {
		return err
	}
	newest, whole := found.whole[len(found.whole)-1], map[State]bool{}
	for i, s := range found.whole {
		if window > 0 && i+1 < len(found.whole) && !found.whole[i+1].Time.After(newest.Time.Add(-window)) {
			if err := t.Delete(ctx, s.listName()); err != nil { // first, so that no state lacks parts
				return err
			}
			continue
		}
		whole[s] = true
	}
	for _, s := range found.begun {
		listed := slices.Contains(found.whole, s)
		if whole[s] || !listed && s.Time.After(newest.Time.Add(-unfinishedFor)) {
			continue
		}
		if err := removeParts(ctx, t, &s); err != nil {
			return err
		}
	}
	if window == 0 {
		return nil
	}
	log, err := ListLog(ctx, t, ledger)
	if err != nil {
		return err
	}
	oldest := newest.Log
	for s := range whole {
		oldest = min(oldest, s.Log)
	}
	return log.remove(ctx, oldest)
}

// Prune removes the first block files of an archive as long as all of their records are before a ledger index and no
// state needs them. It returns how many, their bytes, and the ledger index of the first record that is left.
func Prune(
	ctx context.Context, t Target, ledger machine.LedgerID, before uint64,
) (files int, bytes int64, first uint64, err error) {
	if _, err := readHeader(ctx, t, ledger); err != nil {
		return 0, 0, 0, err
	}
	needed := uint64(math.MaxUint64)
	states, err := States(ctx, t, ledger)
	for i := range states {
		info, err := StateInfo(ctx, t, states[i])
		if err != nil {
			return 0, 0, 0, err
		}
		needed = min(needed, info.First)
	}
	if err != nil {
		return 0, 0, 0, err
	}
	found, err := list(ctx, t, ledger)
	if err != nil {
		return 0, 0, 0, err
	}
	for i := range len(found.files) - 1 {
		f := &found.files[i]
		if f.Last >= before || f.Number >= needed {
			break
		}
		if err := t.Delete(ctx, f.name()); err != nil {
			return files, bytes, first, err
		}
		files, bytes, first = files+1, bytes+f.Size, f.Last+1
	}
	return files, bytes, first, nil
}

// HasBlocks returns an error unless a new list of the archive has the block files of a state that are not in it.
func (a *Archive) HasBlocks(ctx context.Context, info *backupfile.Info) error {
	if err := a.list(ctx); err != nil {
		return err
	}
	return filesOf(info, slices.Collect(maps.Values(a.files))).all()
}

// stateFiles are the block files of a state that are not in it, the last one first.
type stateFiles struct {
	files       []entry
	after, from uint64       // numbers of the next one and of the first
	hash        machine.Hash // of the next one; zeros if that is not known
}

func filesOf(info *backupfile.Info, files []entry) *stateFiles {
	return &stateFiles{files: files, after: info.From, from: info.First, hash: info.Sealed}
}

// next returns the next file, or io.EOF. The hash of the one before it is not known then.
func (s *stateFiles) next() (*entry, error) {
	if s.after <= s.from {
		return nil, io.EOF
	}
	s.after--
	i := slices.IndexFunc(s.files, func(f entry) bool {
		return f.Number == s.after && (f.Hash == s.hash || s.hash == machine.Hash{})
	})
	if i < 0 {
		return nil, fmt.Errorf("%w: its block file %s is missing", machine.ErrCorrupt, blockfile.Name(s.after))
	}
	s.hash = machine.Hash{}
	return &s.files[i], nil
}

// all returns an error if one of them is missing.
func (s *stateFiles) all() (err error) {
	for err == nil {
		_, err = s.next()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

// partsReader reads the parts of a state in order.
type partsReader struct {
	parts *ahead[[]byte]
	rest  []byte // of the current one
}

// Read implements [io.Reader].
func (r *partsReader) Read(b []byte) (n int, err error) {
	if len(r.rest) == 0 {
		if r.rest, err = r.parts.next(); err != nil {
			return 0, err
		}
	}
	n = copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// readPart reads a part, which must be what the list says.
func (s *State) readPart(ctx context.Context, t Target, number int, p part) ([]byte, error) {
	name := s.partName(number)
	content, err := readSmall(ctx, t, name, p.size+1)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%w: it is missing", machine.ErrCorrupt)
	case err == nil && (int64(len(content)) != p.size || sha256.Sum256(content) != p.sum):
		err = fmt.Errorf("%w: it is not the part that its list speaks of", machine.ErrCorrupt)
	}
	if err != nil {
		err = fmt.Errorf("%s in %s: %w", name, t, err)
	}
	return content, err
}

// ReadState is backupfile.Read for a state of an archive, with its block files. Damage is machine.ErrCorrupt, and the
// error names the object.
func ReadState(
	ctx context.Context, t Target, s State, open func(file uint64) (io.Writer, error),
	progress func(done, total int64),
) (info backupfile.Info, err error) {
	found, err := list(ctx, t, s.ledger)
	if err != nil {
		return info, err
	}
	done := int64(0)
	told := func(more int64) {
		if done += more; progress != nil {
			total := info.StateBytes
			for _, f := range found.files {
				if f.Number >= info.First && f.Number < info.From {
					total += f.Size
				}
			}
			progress(done, total)
		}
	}
	info, err = s.read(ctx, t, func(i *backupfile.Info) error { info = *i; return s.check(i) }, open,
		func(now, _ int64) { told(now - done) })
	if err != nil {
		return info, err
	}
	return info, copyFiles(ctx, t, filesOf(&info, found.files), open, told)
}

// copyFiles copies block files, each once it has been checked.
func copyFiles(
	ctx context.Context, t Target, files *stateFiles, open func(file uint64) (io.Writer, error), told func(bytes int64),
) error {
	contents := readAhead(ctx, func(ctx context.Context) (c checkedFile, err error) {
		f, err := files.next()
		if err == nil {
			c, err = readFile(ctx, t, f)
			files.hash = c.previous
		}
		return c, err
	})
	defer contents.close()
	for {
		c, err := contents.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		w, err := open(c.number)
		if err == nil {
			_, err = w.Write(c.content)
		}
		if err != nil {
			return err
		}
		told(int64(len(c.content)))
	}
}

// StateInfo reads what a state says of itself.
func StateInfo(ctx context.Context, t Target, s State) (info backupfile.Info, err error) {
	enough := errors.New("the header is read")
	info, err = s.read(ctx, t, func(i *backupfile.Info) error { return errors.Join(s.check(i), enough) }, nil, nil)
	if errors.Is(err, enough) && !errors.Is(err, machine.ErrCorrupt) {
		err = nil
	}
	return info, err
}

// read reads the parts.
func (s *State) read(
	ctx context.Context, t Target, accept func(*backupfile.Info) error, open func(file uint64) (io.Writer, error),
	progress func(done, total int64),
) (info backupfile.Info, err error) {
	b, err := readSmall(ctx, t, s.listName(), maxList)
	var parts []part
	if err == nil {
		parts, err = decodeParts(b)
	}
	if err != nil {
		return info, fmt.Errorf("%s in %s: %w", s.listName(), t, err)
	}
	number := 0
	r := &partsReader{parts: readAhead(ctx, func(ctx context.Context) ([]byte, error) {
		if number++; number > len(parts) {
			return nil, io.EOF
		}
		return s.readPart(ctx, t, number, parts[number-1])
	})}
	defer r.parts.close()
	return backupfile.Read(ctx, r, accept, open, progress)
}

// check returns an error unless a state is the one that its name speaks of.
func (s *State) check(info *backupfile.Info) error {
	if info.LedgerID != s.ledger || info.Index != s.Index || info.At.Index != s.Log || info.Time != s.Time.UnixNano() {
		return fmt.Errorf("%w: %s is not the state that its name speaks of", machine.ErrCorrupt, s.listName())
	}
	return nil
}

// checkedFile is a block file that was read and checked.
type checkedFile struct {
	number   uint64
	content  []byte
	previous machine.Hash // of the file before it
}

func readFile(ctx context.Context, t Target, f *entry) (c checkedFile, err error) {
	content, err := readSmall(ctx, t, f.name(), min(f.Size, math.MaxInt32))
	var info blockfile.SealedInfo
	if err == nil {
		info, err = blockfile.CheckSealed(blockfile.InMemory(content))
	}
	if err == nil {
		err = f.check(&info)
	}
	if err != nil {
		return c, fmt.Errorf("%s in %s: %w", f.name(), t, err)
	}
	return checkedFile{f.Number, content, info.Previous}, nil
}
