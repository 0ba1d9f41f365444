package ledger

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"

	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// SetSegmentBytes sets the size of log files. TestMain calls it, before anything is opened.
func SetSegmentBytes(n int) { segmentBytes = n }

// SetSealBytes sets the size of block files of new ledgers. TestMain calls it, too.
func SetSealBytes(n int64) { sealBytes = n }

// ArchivedInParts sets the size of the parts of a state in an archive.
func ArchivedInParts(o Options, n int64) Options {
	o.statePart = n
	return o
}

// Impatient lets an archive count as failing soon.
func Impatient(o Options) Options {
	o.archivePatience, o.shipInterval = 10*time.Millisecond, 50*time.Millisecond
	return o
}

// Patient gives an archive an hour before it counts as failing.
func Patient(o Options) Options {
	o.archivePatience = time.Hour
	return o
}

// ArchiveNow copies to the archive what it lacks.
func ArchiveNow(ctx context.Context, l *Ledger) { l.archiveFiles(ctx) }

// LogFileBytes is logFileBytes.
var LogFileBytes = logFileBytes

// HangLog makes the next write to a ledger's log hang until release is called.
func HangLog(l *Ledger) (release func()) {
	l.mu.Lock() // see Ledger.stored
	return l.mu.Unlock
}

// Alter changes the digest of a ledger's state, as a fault of a processor or of a program would. It is in memory, and
// on the disk with the next entry.
func Alter(l *Ledger) error {
	return l.store.Amend(func(tx machine.Tx) error { // for its lock
		changed, err := machine.Open(altered{tx, l.machine.View(tx).Digest()})
		if err == nil {
			*l.machine = *changed
			l.machine.Differs = l.differs
		}
		return err
	})
}

// altered is a state with another digest.
type altered struct {
	machine.Tx

	digest machine.Hash
}

func (a altered) Get(table machine.Table, key []byte) ([]byte, error) {
	value, err := a.Tx.Get(table, key)
	if at := bytes.Index(value, a.digest[:]); at >= 0 {
		value = bytes.Clone(value)
		value[at] ^= 1
	}
	return value, err
}

// Flush writes a checkpoint.
func (l *Ledger) Flush() error { return l.flush() }

// BackupNow writes a backup without the checkpoint that Backup begins with, as if the
// blocks since the last one had come between the two.
func (l *Ledger) BackupNow(w io.Writer) (info backupfile.Info, err error) {
	snapshot, err := l.store.Snapshot()
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	if info, err = l.describe(snapshot, false); err != nil {
		return info, err
	}
	out, err := backupfile.NewWriter(w, &info, func(int) error { return nil })
	for _, file := range snapshot.Files() {
		if err == nil {
			err = file.CopyTo(out)
		}
	}
	if err != nil {
		return info, err
	}
	_, err = out.Finish()
	return info, err
}

// OfferedState returns the position that a node offers to one that is too far behind, and where the members changed
// last.
func OfferedState(l *Ledger) (offered, changed uint64) {
	return l.log.Covered().Index, l.log.MembersChanged()
}
