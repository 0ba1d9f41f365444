//go:build unix && !solaris && !aix

package boltstore

import (
	"errors"
	"os"
	"syscall"
)

// abandon leaves the file of a bbolt that panicked and can no longer be
// closed. The lock is dropped by name, because bbolt's memory map keeps the
// open file alive, and the lock with it, however often the handle is closed.
func abandon(file *os.File) error {
	return errors.Join(syscall.Flock(int(file.Fd()), syscall.LOCK_UN), file.Close())
}
