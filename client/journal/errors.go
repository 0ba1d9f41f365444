package journal

import (
	"errors"
	"fmt"
)

// Sentinels for errors.Is.
var (
	// ErrFull: the live records leave no room for another write. Settling writes, and
	// acknowledging those with a tag, makes room.
	ErrFull = errors.New("journal: full")
	// ErrTooLarge: a write that would not fit into an empty journal.
	ErrTooLarge = errors.New("journal: write too large for the journal")
	// ErrTagInUse: the journal knows this tag. Its write is under way, or committed and not yet acknowledged, or was
	// acknowledged within Options.RememberTags; a write that was not executed leaves its tag free. It is therefore not
	// a new write, and submitting it under another tag, or none, would execute it twice.
	ErrTagInUse = errors.New("journal: tag is in use")
	// ErrClaimed: another Writer of this process has the stream.
	ErrClaimed = errors.New("journal: stream is in use by another writer")
	// ErrLocked: another process has the journal open.
	ErrLocked = errors.New("journal: locked by another process")
	// ErrMissing: Options.MustExist is set and there is no file.
	ErrMissing = errors.New("journal: file is missing")
	// ErrVersion: a program with another version of this package wrote the file. It is not damaged.
	ErrVersion = errors.New("journal: of another version")
	// ErrFailed: a write or an fsync failed, so nothing later is certain to be on disk. It is
	// final for this File: repair the cause, then open the journal again.
	ErrFailed = errors.New("journal: failed")
	// ErrClosed: the File was closed.
	ErrClosed = errors.New("journal: closed")
)

// DamageError reports that a file is not a journal, or was changed by something other than this
// package. The package repairs nothing, because any record that it skips might be a payment.
type DamageError struct {
	// Path of the file.
	Path string
	// Offset is the byte, from 0, at which the first bad group begins; 0 for the file's header.
	Offset int64
	// Reason is for messages.
	Reason string
}

// Error implements error.
func (e *DamageError) Error() string {
	return fmt.Sprintf("journal %s is damaged at byte %d: %s", e.Path, e.Offset, e.Reason)
}
