package archive

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seqledger/seqledger/ledger/blockfile"
)

// Disk is where an archive is. [Directory] is the real one; the simulation has one that is away, full or dies.
type Disk interface {
	blockfile.Disk
	// Create makes a file, or empties an existing one. It is written from the beginning to the end, because some
	// mounted buckets support nothing else.
	Create(name string) (Writer, error)
	// Rename gives a file another name, in place of the file that has it.
	Rename(from, to string) error
	// Lock keeps other processes from changing the archive until unlock is called. A process that dies gives it back.
	Lock() (unlock func() error, err error)
	// String names the disk in errors.
	String() string
}

// Writer is a file that is being made.
type Writer interface {
	io.WriteCloser
	// Sync makes the contents durable.
	Sync() error
}

// Directory is a directory of the system by its path. It is never made: below a file system that is not mounted it
// would be the wrong one.
type Directory string

// String implements [Disk].
func (d Directory) String() string { return string(d) }

func (d Directory) path(name string) string { return filepath.Join(string(d), name) }

func (d Directory) files() blockfile.Directory { return blockfile.Directory{Path: string(d)} }

// Open implements [blockfile.Disk]. Nothing in an archive is written by it.
func (d Directory) Open(name string, _ bool) (blockfile.File, error) {
	return d.files().Open(name, false)
}

// OpenSealed implements [blockfile.Disk].
func (d Directory) OpenSealed(name string) (blockfile.File, error) { return d.files().OpenSealed(name) }

// List implements [blockfile.Disk]. A directory that is not there is fs.ErrNotExist.
func (d Directory) List() ([]string, error) {
	if _, err := os.Stat(string(d)); err != nil {
		return nil, err
	}
	return d.files().List()
}

// Create implements [Disk].
func (d Directory) Create(name string) (Writer, error) {
	return os.OpenFile(d.path(name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
}

// Rename implements [Disk].
func (d Directory) Rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }

// Remove implements [blockfile.Disk].
func (d Directory) Remove(name string) error { return os.Remove(d.path(name)) }

// Sync makes names durable. Some mounted file systems cannot sync a directory; their renames are durable when they
// return.
func (d Directory) Sync() error {
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrInvalid) || isInvalid(err) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// Lock implements [Disk].
func (d Directory) Lock() (unlock func() error, err error) { return lock(string(d)) }
