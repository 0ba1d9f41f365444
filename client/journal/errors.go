package journal

import (
	"errors"
	"fmt"
)

// Sentinels for errors.Is.
var (
	// ErrFull: the live records leave no room for another write. Room comes
	// when writes are settled and, if they have a tag, acknowledged.
	ErrFull = errors.New("journal: full")
	// ErrTooLarge: a write that would not fit into an empty journal.
	ErrTooLarge = errors.New("journal: write too large for the journal")
	// ErrTagInUse: the journal knows this tag. Its write is under way, or committed
	// and not yet acknowledged, or was acknowledged within Options.RememberTags; a
	// write that was not executed leaves its tag free. So it is no new write, and
	// submitting it under another tag, or none, would do it twice.
	ErrTagInUse = errors.New("journal: tag is in use")
	// ErrClaimed: another Writer of this process has the stream.
	ErrClaimed = errors.New("journal: stream is in use by another writer")
	// ErrLocked: another process has the journal open.
	ErrLocked = errors.New("journal: locked by another process")
	// ErrMissing: Options.MustExist is set and there is no file.
	ErrMissing = errors.New("journal: file is missing")
	// ErrFailed: a write or an fsync failed, so that nothing later can be
	// trusted to be on disk. It is final for this File: repair the cause, then
	// open the journal again.
	ErrFailed = errors.New("journal: failed")
	// ErrClosed: the File was closed.
	ErrClosed = errors.New("journal: closed")
)

// DamageError says that a file is no journal, or that one was changed by
// something else than this package. Nothing is repaired by itself, because
// whatever is skipped might be a payment.
type DamageError struct {
	// Path of the file.
	Path string
	// Offset is the byte, from 0, at which the first bad group begins; 0 for
	// the file's header.
	Offset int64
	// Reason for people.
	Reason string
}

// Error implements error.
func (e *DamageError) Error() string {
	return fmt.Sprintf("journal %s is damaged at byte %d: %s", e.Path, e.Offset, e.Reason)
}
