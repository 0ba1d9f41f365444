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

// Read checks the log in dir as Open does and calls visit for the commands that
// come after checkpoint, until visit returns an error. No process may have the log
// open. It changes nothing: what an interrupted write left is passed over. A log that does
// not fit is refused with a *DamageError. On a sole voter everything in the log is, or will
// be, committed.
func Read(dir string, identity []byte, checkpoint Position, command func(at Position, entry []byte) error) (err error) {
	o := Options{Dir: dir, Identity: identity, Checkpoint: checkpoint, Logger: slog.New(slog.DiscardHandler)}
	o.setDefaults()
	files, _, err := openSegments(&o, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Abandon()) }()
	return visit(files, checkpoint.Index+1, files.Last().Index, func(e *segment.Entry) error {
		if e.Kind != core.KindCommand || len(e.Data) == 0 {
			return nil
		}
		return command(Position{Index: e.Index, Term: e.Term}, e.Data)
	})
}

// ReadOld is Read for a log of before that was not converted yet. It works on a copy below
// the system's directory for temporary files.
func ReadOld(
	dir string, identity []byte, checkpoint Position, command func(at Position, entry []byte) error,
) (err error) {
	temporary, err := os.MkdirTemp("", "seqledger-log-*")
	if err != nil {
		return fmt.Errorf("raftlog: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	_, err = readOld(dir, filepath.Join(temporary, "log"), identity, checkpoint, func(e *legacy.Entry) error {
		if len(e.Command) == 0 {
			return nil
		}
		return command(Position(e.Position), e.Command)
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
