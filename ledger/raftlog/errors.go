package raftlog

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

var (
	// ErrNotLeader means that the proposal was certainly never in the log. It is safe to send it elsewhere as if it had
	// never been made.
	ErrNotLeader = errors.New("raftlog: not the leader")
	// ErrOutcomeUnknown means that the entry may or may not be committed, now or after a restart. It wraps the cause.
	ErrOutcomeUnknown = errors.New("raftlog: outcome unknown")
	// ErrClosed means that the log was closed before the call. A proposal that ends with ErrClosed was never in the
	// log.
	ErrClosed = errors.New("raftlog: closed")
	// ErrNeedsCluster means that the log has other members and Options.Cluster is not set.
	ErrNeedsCluster = errors.New("the node belongs to a cluster: start it with --peer-listen")
	// ErrEntryTooLarge means that an entry exceeds MaxEntryBytes. It was never proposed.
	ErrEntryTooLarge = errors.New("raftlog: the entry is too large")
)

// BehindError is the failure of a node that lacks log entries which the others have dropped. Its state and log are
// intact, only old.
type BehindError struct {
	At Position // the position of the state that the leader offers; a later state works too
}

// Error says what the operator can do if nothing handles the error automatically.
func (e *BehindError) Error() string {
	return fmt.Sprintf("raftlog: this node is too far behind to follow the log: it needs the state of another node "+
		"at index %d or later", e.At.Index)
}

// ForgottenError is the failure of a node whose log has lost entries that the node once acknowledged.
type ForgottenError = core.ForgottenError

// DamageError means that the log is not the one that the state store was written with. Its message says what was found
// and what the operator should do.
type DamageError struct {
	Dir   string // directory of the log
	Found string // the finding, as a sentence without a full stop
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

// IsDamage reports whether err means that the log's content is not what was written, rather than that it could not be
// read or written.
func IsDamage(err error) bool {
	_, found := errors.AsType[*DamageError](err)
	_, damaged := errors.AsType[*segment.DamageError](err)
	return found || damaged
}

// refusal returns the error for a log that cannot be opened. The log is damaged unless the cause is a failing system
// call or another version: an operator who lacks file descriptors must not be told to restore a backup.
func refusal(dir string, cause error, what string, args ...any) error {
	found := fmt.Sprintf(what, args...)
	for _, sound := range []error{
		syscall.EMFILE, syscall.ENFILE, syscall.EROFS, syscall.EACCES, syscall.EPERM, syscall.ENOSPC, syscall.EDQUOT,
		syscall.ENOMEM, syscall.ENOLCK, syscall.EIO, format.ErrVersion,
	} {
		if errors.Is(cause, sound) {
			return fmt.Errorf("raftlog: the log in %s cannot be used: %s: %w", dir, found, cause)
		}
	}
	return &DamageError{Dir: dir, Found: found, Cause: cause}
}
