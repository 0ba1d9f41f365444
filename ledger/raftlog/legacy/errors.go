package legacy

import (
	"errors"
	"fmt"
	"syscall"

	wal "github.com/hashicorp/raft-wal"
)

// DamageError refuses a log that is not the one the state store was written
// with. Its message says what was found and what an operator does.
type DamageError struct {
	Dir   string // directory of the log
	Found string // what is wrong, in a sentence without a full stop
	Cause error  // the underlying error, or nil
}

// Error returns the finding, its cause and the remedy.
func (e *DamageError) Error() string {
	cause := ""
	if e.Cause != nil {
		cause = ": " + e.Cause.Error()
	}
	return fmt.Sprintf("legacy: the log in %s is damaged: %s%s. "+
		"Stop here: restore the whole data directory from a backup, or put back the files that were moved away; "+
		"never delete or create files in it by hand, because acknowledged writes may be in them",
		e.Dir, e.Found, cause)
}

// Unwrap returns the cause, or nil.
func (e *DamageError) Unwrap() error { return e.Cause }

// IsDamage tells whether an error means that what the log holds is not what was
// written, rather than that it could not be read or written.
func IsDamage(err error) bool {
	_, found := errors.AsType[*DamageError](err)
	return found || errors.Is(err, wal.ErrCorrupt)
}

// damage builds a DamageError for dir, unless the cause is a system that could
// not do what it was asked: an operator who lacks file descriptors must not be
// told to restore a backup.
func damage(dir string, cause error, format string, args ...any) error {
	found := fmt.Sprintf(format, args...)
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.EROFS, syscall.EACCES, syscall.EPERM, syscall.ENOSPC, syscall.EDQUOT,
		syscall.ENOMEM, syscall.ENOLCK, syscall.EIO,
	} {
		if errors.Is(cause, errno) {
			return fmt.Errorf("legacy: the log in %s cannot be used: %s: %w", dir, found, cause)
		}
	}
	return &DamageError{Dir: dir, Found: found, Cause: cause}
}
