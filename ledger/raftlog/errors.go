package raftlog

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/seqledger/seqledger/ledger/raftlog/host"
	"github.com/seqledger/seqledger/ledger/raftlog/legacy"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

var (
	// ErrNotLeader means that the proposal was certainly never in the log, so
	// that it is safe to send it elsewhere as if it had never been made.
	ErrNotLeader = host.ErrNotLeader
	// ErrOutcomeUnknown means that the entry may or may not be committed, now
	// or after a restart. It wraps the cause.
	ErrOutcomeUnknown = host.ErrOutcomeUnknown
	// ErrClosed means that the log was closed before the call; a proposal that
	// ends with it was never in the log.
	ErrClosed = host.ErrClosed
	// ErrNeedsCluster refuses to open the log of a node that has others without Options.Cluster.
	ErrNeedsCluster = errors.New("the node belongs to a cluster: start it with --peer-listen")
	// ErrEntryTooLarge refuses an entry over MaxEntryBytes; it was never proposed.
	ErrEntryTooLarge = host.ErrEntryTooLarge
)

// BehindError is the failure of a node that needs the state of another one, because the others
// have dropped what it would need of the log.
type BehindError = host.BehindError

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
	return fmt.Sprintf("raftlog: the log in %s is damaged: %s%s. "+
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
	_, damaged := errors.AsType[*segment.DamageError](err)
	return found || damaged || legacy.IsDamage(err)
}

// refusal says that a log cannot be opened: it is damaged, unless the cause is a system
// that could not do what it was asked. An operator who lacks file descriptors must not be
// told to restore a backup.
func refusal(dir string, cause error, format string, args ...any) error {
	found := fmt.Sprintf(format, args...)
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.EROFS, syscall.EACCES, syscall.EPERM, syscall.ENOSPC, syscall.EDQUOT,
		syscall.ENOMEM, syscall.ENOLCK, syscall.EIO,
	} {
		if errors.Is(cause, errno) {
			return fmt.Errorf("raftlog: the log in %s cannot be used: %s: %w", dir, found, cause)
		}
	}
	return &DamageError{Dir: dir, Found: found, Cause: cause}
}
