package journal

import (
	"io"
	"os"

	"github.com/seqledger/seqledger/internal/durable"
)

// storage is the part of a file system that a journal needs. Tests substitute one that fails.
type storage interface {
	// read returns the whole file.
	read(path string) ([]byte, error)
	// create makes an empty file for its owner alone, or empties it.
	create(path string) (file, error)
	// rename replaces the file at to.
	rename(from, to string) error
	// syncDir makes the names in a directory durable.
	syncDir(path string) error
}

// file is a file that is written sequentially.
type file interface {
	io.WriterAt
	io.Closer
	// Sync returns once everything written can be read back after a power failure.
	Sync() error
}

// diskFile is a file of the operating system.
type diskFile struct{ *os.File }

// Sync implements file.
func (f diskFile) Sync() error { return syncData(f.File) }

// disk is the storage of the operating system.
type disk struct{}

func (disk) read(path string) ([]byte, error) { return os.ReadFile(path) }

func (disk) create(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err // not f, because a nil *os.File makes a non-nil interface
	}
	return diskFile{f}, nil
}

func (disk) rename(from, to string) error { return os.Rename(from, to) }

func (disk) syncDir(path string) error { return durable.SyncDir(path) }
