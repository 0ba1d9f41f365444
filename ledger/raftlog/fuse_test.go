package raftlog

import (
	"errors"

	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

var errKilled = errors.New("killed")

// fuse interrupts work at a given file system step.
type fuse struct{ left int }

func (f *fuse) burn() error {
	if f.left--; f.left < 0 {
		return errKilled
	}
	return nil
}

// fusedDisk is a disk on which every change is a step.
type fusedDisk struct {
	segment.Disk
	fuse *fuse
}

func (d fusedDisk) Create(name string, size int64) (segment.File, error) {
	if err := d.fuse.burn(); err != nil {
		return nil, err
	}
	f, err := d.Disk.Create(name, size)
	return fusedFile{f, d.fuse}, err
}

func (d fusedDisk) Open(name string) (segment.File, error) {
	f, err := d.Disk.Open(name)
	return fusedFile{f, d.fuse}, err
}

func (d fusedDisk) Rename(from, to string) error {
	return errors.Join(d.fuse.burn(), onlyIf(d.fuse, func() error { return d.Disk.Rename(from, to) }))
}

func (d fusedDisk) Sync() error { return errors.Join(d.fuse.burn(), d.Disk.Sync()) }

func onlyIf(f *fuse, do func() error) error {
	if f.left < 0 {
		return nil
	}
	return do()
}

type fusedFile struct {
	segment.File
	fuse *fuse
}

func (f fusedFile) WriteAt(b []byte, at int64) (int, error) {
	if f.fuse.burn() != nil {
		n, _ := f.File.WriteAt(b[:len(b)/2], at) // a torn write
		return n, errKilled
	}
	return f.File.WriteAt(b, at)
}

func (f fusedFile) Sync() error { return errors.Join(f.fuse.burn(), f.File.Sync()) }
