package ledger

import (
	"errors"
	"io"

	"github.com/seqledger/seqledger/ledger/backupfile"
)

// SetSegmentBytes sets the size of log files. TestMain calls it, before anything is opened.
func SetSegmentBytes(n int) { segmentBytes = n }

// SetSealBytes sets the size of block files of new ledgers. TestMain calls it, too.
func SetSealBytes(n int64) { sealBytes = n }

// LogFileBytes is logFileBytes.
var LogFileBytes = logFileBytes

// RecoverWith is Recover with steps.
var RecoverWith = recoverWith

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
	if info, err = describe(snapshot, nil); err != nil {
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
