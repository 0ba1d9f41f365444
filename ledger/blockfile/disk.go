package blockfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/seqledger/seqledger/internal/durable"
)

// Disk is a directory. [Directory] is the real one; tests simulate crashes.
type Disk interface {
	// Open opens a file for reading and writing; with create it makes the file if
	// there is none.
	Open(name string, create bool) (File, error)
	// OpenSealed opens a file for reading alone.
	OpenSealed(name string) (File, error)
	// List returns the names in the directory.
	List() ([]string, error)
	Remove(name string) error
	// Sync makes the names durable.
	Sync() error
}

// File is a file on a Disk.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	Truncate(size int64) error
	// Sync makes the contents and the length durable.
	Sync() error
	// Map maps the first size bytes of the file, or returns nil where the system
	// does not. Bytes beyond the file's end must not be touched.
	Map(size int64) ([]byte, error)
	Unmap([]byte) error
}

// Directory is a directory of the system, which is made when the first file is.
type Directory struct {
	Path   string
	NoSync bool // for tests: leaves out every fsync
}

// Open implements [Disk].
func (d Directory) Open(name string, create bool) (File, error) {
	flag := os.O_RDWR
	if create {
		if err := os.Mkdir(d.Path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		flag |= os.O_CREATE
	}
	f, err := os.OpenFile(filepath.Join(d.Path, name), flag, 0o600)
	return systemFile{f, d.NoSync}, err
}

// OpenSealed implements [Disk].
func (d Directory) OpenSealed(name string) (File, error) {
	f, err := os.Open(filepath.Join(d.Path, name))
	return systemFile{f, d.NoSync}, err
}

// List implements [Disk]. A directory that is not there has no names.
func (d Directory) List() ([]string, error) {
	entries, err := os.ReadDir(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// Remove implements [Disk].
func (d Directory) Remove(name string) error { return os.Remove(filepath.Join(d.Path, name)) }

// Sync implements [Disk]. It syncs the directory above as well, whose entry the
// directory itself is.
func (d Directory) Sync() error {
	if d.NoSync {
		return nil
	}
	return errors.Join(durable.SyncDir(d.Path), durable.SyncDir(filepath.Dir(d.Path)))
}

type systemFile struct {
	*os.File
	noSync bool
}

func (f systemFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f systemFile) Sync() error {
	if f.noSync {
		return nil
	}
	return f.File.Sync()
}

// scratch is a Disk whose changes stay in memory: of a replay that only verifies.
// It holds a copy of each file that is opened for writing.
type scratch struct {
	Disk
	mu    sync.Mutex
	files map[string]*memoryFile
}

func newScratch(d Disk) *scratch { return &scratch{Disk: d, files: map[string]*memoryFile{}} }

func (s *scratch) Open(name string, create bool) (File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.files[name]; f != nil {
		return f, nil
	}
	below, err := s.Disk.OpenSealed(name)
	if errors.Is(err, fs.ErrNotExist) && create {
		s.files[name] = new(memoryFile)
		return s.files[name], nil
	}
	if err != nil {
		return nil, err
	}
	size, err := below.Size()
	f := &memoryFile{data: make([]byte, size)}
	if err == nil {
		if _, err = below.ReadAt(f.data, 0); errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err = errors.Join(err, below.Close()); err != nil {
		return nil, err
	}
	s.files[name] = f
	return f, nil
}

func (s *scratch) OpenSealed(name string) (File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.files[name]; f != nil {
		return f, nil
	}
	return s.Disk.OpenSealed(name)
}

func (s *scratch) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, name)
	return nil
}

func (s *scratch) Sync() error { return nil }

// memoryFile is a file in memory.
type memoryFile struct {
	mu   sync.RWMutex
	data []byte
}

// InMemory returns a file with the given content.
func InMemory(content []byte) File { return &memoryFile{data: content} }

func (f *memoryFile) ReadAt(b []byte, at int64) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if at >= int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.data[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memoryFile) WriteAt(b []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if missing := at + int64(len(b)) - int64(len(f.data)); missing > 0 {
		f.data = append(f.data, make([]byte, missing)...)
	}
	return copy(f.data[at:], b), nil
}

func (f *memoryFile) Size() (int64, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return int64(len(f.data)), nil
}

func (f *memoryFile) Truncate(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = f.data[:min(size, int64(len(f.data)))]
	return nil
}

func (f *memoryFile) Sync() error               { return nil }
func (f *memoryFile) Close() error              { return nil }
func (f *memoryFile) Map(int64) ([]byte, error) { return nil, nil }
func (f *memoryFile) Unmap([]byte) error        { return nil }
