package journal

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// memory is a storage that keeps what a disk would have after a crash apart
// from what a running system sees, and that fails when it is told to.
type memory struct {
	mu sync.Mutex
	// seen is what reads find, kept what a power failure leaves.
	seen, kept map[string]*memoryFile
	// fail is asked before each step; a short write gives how many bytes still
	// go through.
	fail func(step string, path string) (short int, err error)
	// steps counts the steps by name.
	steps map[string]int
}

type memoryFile struct {
	owner *memory
	path  string // of its creation; where it is now does not matter to a fault
	// written is in the cache, synced on the disk.
	written, synced []byte
}

func newMemory() *memory {
	return &memory{seen: make(map[string]*memoryFile), kept: make(map[string]*memoryFile), steps: make(map[string]int)}
}

func (m *memory) step(name, path string) (int, error) {
	m.steps[name]++
	if m.fail == nil {
		return 0, nil
	}
	return m.fail(name, path)
}

func (m *memory) read(path string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.step("read", path); err != nil {
		return nil, err
	}
	f := m.seen[path]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return slices.Clone(f.written), nil
}

func (m *memory) create(path string) (file, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.step("create", path); err != nil {
		return nil, err
	}
	f := &memoryFile{owner: m, path: path}
	m.seen[path] = f
	return f, nil
}

func (m *memory) rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.step("rename", from); err != nil {
		return err
	}
	m.seen[to] = m.seen[from]
	delete(m.seen, from)
	return nil
}

func (m *memory) syncDir(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.step("syncDir", path); err != nil {
		return err
	}
	clear(m.kept)
	for name, f := range m.seen {
		m.kept[name] = f
	}
	return nil
}

func (f *memoryFile) WriteAt(b []byte, offset int64) (int, error) {
	f.owner.mu.Lock()
	defer f.owner.mu.Unlock()
	short, err := f.owner.step("write", f.path)
	if err != nil {
		b = b[:min(short, len(b))]
	}
	if grow := int(offset) + len(b) - len(f.written); grow > 0 {
		f.written = append(f.written, make([]byte, grow)...)
	}
	copy(f.written[offset:], b)
	return len(b), err
}

func (f *memoryFile) Sync() error {
	f.owner.mu.Lock()
	defer f.owner.mu.Unlock()
	if _, err := f.owner.step("sync", f.path); err != nil {
		return err
	}
	f.synced = slices.Clone(f.written)
	return nil
}

func (f *memoryFile) Close() error { return nil }

// powerFailure returns a storage with what was durable, and of the file that
// was being written also the first extra bytes that were not.
func (m *memory) powerFailure(path string, extra int) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	after := newMemory()
	for name, f := range m.kept {
		content := slices.Clone(f.synced)
		if name == path {
			// They follow what is written and not the zeros behind it.
			begin := written(content)
			if end := min(len(f.written), begin+extra); end > len(content) {
				content = append(content, make([]byte, end-len(content))...)
			}
			copy(content[begin:], f.written[begin:min(len(f.written), begin+extra)])
		}
		after.seen[name] = &memoryFile{owner: after, written: content, synced: content}
	}
	return after
}

// set puts content where the journal is.
func (m *memory) set(path string, content []byte) *memory {
	m.seen[path] = &memoryFile{owner: m, written: content, synced: content}
	return m
}

var one = Name{"acme", "main", "till-1"}

// open opens a journal on m that must open. The path has a directory of its own
// because the lock is a real file.
func (m *memory) open(t testing.TB, path string, options Options) *File {
	t.Helper()
	options.storage = m
	f, err := Open(path, options)
	must.Do(t, err, "opening")
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func temporary(t testing.TB) string { return filepath.Join(t.TempDir(), "journal") }

// begin claims one and gives it a session.
func begin(t testing.TB, f *File) State {
	t.Helper()
	state, err := f.Claim(one)
	if err == nil && state.Head.Session == 0 {
		err = f.Append(one, Record{Kind: KindHead, Head: Head{Ledger: 7, Session: 3, NextSequence: 1}})
	}
	must.Do(t, err)
	return state
}

// write is the next write of a stream whose ids and sequences go together.
func write(id uint64, tag string) Record {
	return Record{Kind: KindWrite, ID: id, Sequence: id + 1, Key: "key", Tag: tag,
		Request: []byte("pay " + tag), Reserve: 20}
}

// add appends and syncs.
func add(t testing.TB, f *File, records ...Record) {
	t.Helper()
	for _, r := range records {
		must.Do(t, f.Append(one, r))
	}
	must.Do(t, f.Sync())
}

// tags lists the entries, those that are settled with a mark.
func tags(s State) []string {
	var all []string
	for _, e := range s.Entries {
		mark := ""
		if e.Settled {
			mark = "+"
		}
		all = append(all, e.Tag+mark)
	}
	return all
}

// only returns the state of one, empty when there is none.
func only(f *File) State {
	for _, s := range f.Streams() {
		if s.Name == one {
			return s
		}
	}
	return State{}
}

var errDisk = errors.New("the test's disk fails")
