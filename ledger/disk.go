package ledger

import (
	"fmt"
	"os"
)

// DiskUsage says what a ledger takes and what is left for it, in bytes.
type DiskUsage struct {
	State uint64 // the state file
	Free  uint64 // left on the file system, for this user
	Size  uint64 // of the file system; 0 where this system does not say
}

// DiskUsage asks the file system of the data directory. It reads nothing of
// the ledger, so that it answers after a failure, too.
func (l *Ledger) DiskUsage() (DiskUsage, error) {
	state, err := os.Stat(l.directory.file(stateName))
	if err != nil {
		return DiskUsage{}, fmt.Errorf("disk usage: %w", err)
	}
	u := DiskUsage{State: uint64(state.Size())}
	if u.Free, u.Size, err = diskSpace(l.directory.path); err != nil {
		return DiskUsage{}, fmt.Errorf("disk usage of %s: %w", l.directory.path, err)
	}
	return u, nil
}
