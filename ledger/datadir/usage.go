package datadir

import (
	"fmt"
	"os"
)

// Usage is the disk space that a ledger uses and has available, in bytes.
type Usage struct {
	State uint64 // the state file
	Free  uint64 // left on the file system, for this user
	Size  uint64 // of the file system; 0 where unknown
}

// Usage asks the file system of the directory. It opens no file, so that it
// answers after a failure of the storage, too.
func (d *Directory) Usage() (u Usage, err error) {
	state, err := os.Stat(d.State())
	if err != nil {
		return Usage{}, fmt.Errorf("disk usage: %w", err)
	}
	u.State = uint64(state.Size())
	if u.Free, u.Size, err = space(d.path); err != nil {
		return Usage{}, fmt.Errorf("disk usage of %s: %w", d.path, err)
	}
	return u, nil
}
