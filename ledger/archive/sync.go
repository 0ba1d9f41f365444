package archive

import (
	"errors"
	"syscall"
)

// isInvalid tells whether a file system refuses to sync a directory.
func isInvalid(err error) bool { return errors.Is(err, syscall.EINVAL) }
