// Package upgrade converts data directories that older programs have written.
//
// Its tests are with those of package ledger, which has such directories.
package upgrade

import (
	"context"
	"errors"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
)

// Options say how to upgrade.
type Options struct {
	// Progress is told how many bytes have been copied; may be nil.
	Progress func(done int64)
	// Verified is told of every block that has been checked; may be nil.
	Verified func(machine.AuditSummary)
}

// Info tells what Directory has found.
type Info struct {
	Upgraded bool // false if the directory has the format of this program already
	LedgerID machine.LedgerID
	Index    uint64
	Digest   machine.Hash // at that index
}

// Directory converts a data directory of an older format, which no process has open, in
// place. The new files are made beside the old state file and verified with the log, as
// package verify does; only then the state file is replaced, in one step. A call that was
// interrupted at any moment is begun again, or has nothing left to do. It needs about as
// much room as the state file takes. Older programs cannot open the directory afterwards.
func Directory(ctx context.Context, dir string, o Options) (info Info, err error) {
	d, err := datadir.OpenLedger(dir)
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	path := d.State()
	if info.Upgraded, err = boltstore.IsOld(path); err != nil {
		return info, err
	}
	if info.Upgraded {
		if err := d.RemoveUnfinished(); err != nil {
			return info, err
		}
		if path, err = boltstore.Upgrade(path, d.Identity(), o.Progress); err != nil {
			return info, err
		}
	}
	report, err := verify.State(ctx, d, path, verify.Options{Progress: o.Verified})
	if err == nil {
		err = report.Problem(dir)
	}
	if err != nil {
		return info, err
	}
	info.LedgerID, info.Index, info.Digest = report.LedgerID, report.Index, report.Digest
	if !info.Upgraded {
		return info, nil
	}
	return info, boltstore.Replace(path, d.State())
}
