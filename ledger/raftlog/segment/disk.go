package segment

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Disk is the directory that holds a log. The simulation has one that loses unsynced data; OpenDirectory returns one of
// the operating system.
type Disk interface {
	// List returns the names of the files, in any order.
	List() ([]string, error)
	// Create creates a file of size zero bytes with its blocks allocated, or replaces the file with that name. Neither
	// is durable yet.
	Create(name string, size int64) (File, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// Sync makes the names durable.
	Sync() error
}

// File is one file of a Disk. Reads and writes may come from several goroutines.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	// Sync makes the bytes durable that were written before the call.
	Sync() error
}

type directory struct {
	name string
	flag int // with which files are opened
}

// OpenDirectory returns the Disk of an existing directory.
func OpenDirectory(path string) Disk { return directory{path, os.O_RDWR} }

// OpenDirectoryReadOnly is OpenDirectory for a directory that is only read, and may be on a file system that is mounted
// read-only.
func OpenDirectoryReadOnly(path string) Disk { return directory{path, os.O_RDONLY} }

func (d directory) path(name string) string { return filepath.Join(d.name, name) }

// List implements Disk.
func (d directory) List() ([]string, error) {
	entries, err := os.ReadDir(d.name)
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// Create implements Disk. Syncing a write to allocated blocks does not change the file's size, which makes it cheaper
// than syncing an append.
func (d directory) Create(name string, size int64) (File, error) {
	f, err := os.OpenFile(d.path(name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	err = allocate(f, size)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make log segment %s of %d bytes: %w", f.Name(), size, err), f.Close())
	}
	return osFile{f}, nil
}

// Open implements Disk.
func (d directory) Open(name string) (File, error) {
	f, err := os.OpenFile(d.path(name), d.flag, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Rename implements Disk.
func (d directory) Rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }

// Remove implements Disk.
func (d directory) Remove(name string) error { return os.Remove(d.path(name)) }

// Sync implements Disk.
func (d directory) Sync() error {
	f, err := os.Open(d.name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

type osFile struct{ *os.File }

// Size implements File.
func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Sync implements File. The file's times need not be durable; where the system has a call that skips them, the file
// system's journal is not written.
func (f osFile) Sync() error { return syncData(f.File) }
