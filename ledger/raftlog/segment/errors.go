package segment

import (
	"errors"
	"fmt"
)

var (
	// ErrTruncated means that the requested entries were truncated.
	ErrTruncated = errors.New("segment: the entries were truncated")
	// ErrMissing means that the log does not have the requested entries yet.
	ErrMissing = errors.New("segment: the log has no such entries")
	// ErrClosed is returned by calls after Close.
	ErrClosed = errors.New("segment: closed")
)

// DamageError means that the log does not hold what was written to it.
type DamageError struct {
	Segment string // name of the file; empty if the damage concerns several
	Offset  int64  // in the file, in bytes
	Found   string // the finding, without a full stop
}

// Error returns the file, the offset and the finding.
func (e *DamageError) Error() string {
	if e.Segment == "" {
		return "segment: damaged log: " + e.Found
	}
	return fmt.Sprintf("segment: damaged log: %s at offset %d: %s", e.Segment, e.Offset, e.Found)
}

func damagef(s *file, offset int64, format string, args ...any) error {
	e := &DamageError{Offset: offset, Found: fmt.Sprintf(format, args...)}
	if s != nil {
		e.Segment = s.name
	}
	return e
}
