package raftlog

import (
	"errors"
	"log/slog"

	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// Read checks the log of Options.Dir, Identity, Node and Checkpoint as Open does, and calls command for each command
// after the checkpoint until command returns an error. No process may have the log open. Read changes nothing and skips
// the remains of an interrupted write. A log that does not match is refused with a *DamageError.
//
// decided means that the log itself shows that the entry is committed or always will be, as every entry of a sole voter
// is. For the end of another node's log only the other nodes know. After the first entry that is not decided, no later
// entry is decided.
func Read(o Options, command func(at Position, entry []byte, decided bool) error) (err error) {
	o.setReadOnly()
	files, members, err := openSegments(&o, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Abandon()) }()
	commit, alone := files.State().Commit, true
	return visit(files, o.Checkpoint.Index+1, files.Last().Index, func(e *segment.Entry) error {
		// The members before the entry decide whether it is committed.
		if e.Index > commit {
			alone = alone && members.IsSole(o.Node)
		}
		members = members.After(e)
		if !IsCommand(e) {
			return nil
		}
		return command(Position{Index: e.Index, Term: e.Term}, e.Data, alone)
	})
}

// setReadOnly sets the defaults for a log that is only read.
func (o *Options) setReadOnly() {
	o.Logger = slog.New(slog.DiscardHandler)
	if o.disk == nil {
		o.disk = segment.OpenDirectoryReadOnly
	}
	o.setDefaults()
}
