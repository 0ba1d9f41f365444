package archive

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/gofrs/flock"
)

// lockName is the file that is locked while the archive changes.
const lockName = "LOCK"

// ErrBusy means that another process is writing to the archive at this moment.
var ErrBusy = errors.New("another process is writing to this archive; each ledger needs one of its own")

// lock keeps other processes from changing the archive until unlock is called. A process that dies gives it back.
func lock(dir string) (unlock func() error, err error) {
	l := flock.New(filepath.Join(dir, lockName), flock.SetPermissions(0o600))
	got, err := l.TryLock()
	switch {
	case withoutLocks(err):
		return l.Close, nil
	case err != nil:
		return nil, err
	case !got:
		return nil, fmt.Errorf("%s: %w", dir, ErrBusy)
	}
	return l.Close, nil
}

// withoutLocks tells whether a file system, such as a mounted bucket, has no locks.
func withoutLocks(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.ENOLCK)
}
