// Package memorytarget has the disk of an archive in memory, which a loss of power leaves as a real one may be left.
package memorytarget

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/blockfile"
)

// Disk is an [archive.Disk] in memory. The names have their folders in them.
type Disk struct {
	*blockfile.MemoryDisk

	made int
}

// New returns an empty disk.
func New() *Disk { return &Disk{MemoryDisk: blockfile.NewMemoryDisk()} }

// String implements [archive.Disk].
func (*Disk) String() string { return "the archive" }

// Create implements [archive.Disk].
func (d *Disk) Create(object string) (archive.Writer, string, error) {
	d.made++
	name := fmt.Sprintf("%s.new-%d", object, d.made)
	f, err := d.MemoryDisk.Open(name, true)
	return &writer{File: f}, name, err
}

// Publish implements [archive.Disk].
func (d *Disk) Publish(temporary, object string) error {
	if _, err := d.MemoryDisk.Open(object, false); err == nil {
		return fs.ErrExist
	}
	return d.Rename(temporary, object)
}

// Sync implements [archive.Disk].
func (d *Disk) Sync(string) error { return d.MemoryDisk.Sync() }

// Open implements [archive.Disk].
func (d *Disk) Open(name string) (blockfile.File, error) { return d.MemoryDisk.Open(name, false) }

// List implements [archive.Disk].
func (d *Disk) List(folder string) (objects []archive.Object, err error) {
	names, err := d.MemoryDisk.List()
	for _, name := range names {
		rest, in := strings.CutPrefix(name, folder)
		if !in {
			continue
		}
		if below, _, deep := strings.Cut(rest, "/"); deep {
			o := archive.Object{Name: folder + below + "/"}
			if n := len(objects); n == 0 || objects[n-1] != o {
				objects = append(objects, o)
			}
			continue
		}
		f, err := d.Open(name)
		if err != nil {
			return nil, err
		}
		size, err := f.Size()
		if err != nil {
			return nil, err
		}
		objects = append(objects, archive.Object{Name: name, Size: size})
	}
	return objects, err
}

type writer struct {
	blockfile.File

	at int64
}

// Write implements io.Writer.
func (w *writer) Write(b []byte) (int, error) {
	n, err := w.WriteAt(b, w.at)
	w.at += int64(n)
	return n, err
}
