package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/legacy"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// Read checks the log of Options.Dir, Identity, Node and Checkpoint as Open does, and calls command for the commands
// that come after the checkpoint, until it returns an error. No process may have the log open. It changes nothing: what
// an interrupted write left is passed over. A log that does not fit is refused with a *DamageError.
//
// Decided says that the log itself tells that an entry was committed, or always will be, as all entries of a sole
// voter. Of the end of another node's log only the other nodes know; once an entry is not decided, no later one is.
func Read(o Options, command func(at Position, entry []byte, decided bool) error) (err error) {
	o.Logger = slog.New(slog.DiscardHandler)
	o.setDefaults()
	files, members, err := openSegments(&o, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Abandon()) }()
	commit, alone := files.State().Commit, true
	return visit(files, o.Checkpoint.Index+1, files.Last().Index, func(e *segment.Entry) error {
		// The members before the entry decide about it.
		if e.Index > commit {
			alone = alone && isSole(&members, o.Node)
		}
		members = members.After(e)
		if e.Kind != core.KindCommand || len(e.Data) == 0 {
			return nil
		}
		return command(Position{Index: e.Index, Term: e.Term}, e.Data, alone)
	})
}

// ReadOld is Read for a log of before that was not converted yet, which is one of a sole voter. It works on a copy
// below the system's directory for temporary files.
func ReadOld(o Options, command func(at Position, entry []byte, decided bool) error) (err error) {
	temporary, err := os.MkdirTemp("", "seqledger-log-*")
	if err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	_, err = readOld(o.Dir, filepath.Join(temporary, "log"), o.Identity, o.Checkpoint, func(e *legacy.Entry) error {
		if len(e.Command) == 0 {
			return nil
		}
		return command(Position(e.Position), e.Command, true)
	})
	return err
}

// readOld is legacy.Read with the errors of this package.
func readOld(
	dir, copied string, identity []byte, checkpoint Position, do func(*legacy.Entry) error,
) (term uint64, err error) {
	term, err = legacy.Read(dir, copied, identity, legacy.Position(checkpoint), do)
	if damage, ok := errors.AsType[*legacy.DamageError](err); ok {
		err = &DamageError{Dir: damage.Dir, Found: damage.Found, Cause: damage.Cause}
	}
	return term, err
}
