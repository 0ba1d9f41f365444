package main

import (
	"context"
	"fmt"
	"time"

	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/upgrade"
)

// upgradeCommand converts a data directory of an older format.
type upgradeCommand struct {
	Data string `help:"Data directory." default:"./seqledger-data" type:"path"`
}

// Help is shown below the flags.
func (*upgradeCommand) Help() string {
	return `Converts a data directory that an older seqledger has written and that no server has open. The new files
are made beside the old state file, checked as seqledger verify does, and then take its place in one step. Killed at
any moment, run the same command again. It needs about as much room as the state file takes.

Older programs cannot open the directory afterwards: make a backup first. A directory that needs no conversion is
checked and stays as it is.

    seqledger backup ledger.seqledger
    seqledger upgrade --data /var/lib/seqledger
    seqledger serve --data /var/lib/seqledger`
}

// upgradeResult is the one object that is printed with --json.
type upgradeResult struct {
	Data     string `json:"data"`
	Upgraded bool   `json:"upgraded"`
	LedgerID string `json:"ledgerId"`
	Index    uint64 `json:"index,string"`
	Digest   string `json:"digest"`
}

// Run is called by kong.
func (c *upgradeCommand) Run(e *environment) error {
	var told *transfer
	checked := time.Now()
	info, err := upgrade.Directory(e.ctx, c.Data, upgrade.Options{
		Progress: func(done int64) {
			if told == nil {
				told = newTransfer(e, "upgrading", 0)
			}
			told.to(done)
		},
		Verified: func(s machine.AuditSummary) {
			told.end()
			told = nil
			if now := time.Now(); !e.json && now.Sub(checked) >= progressEvery {
				checked = now
				e.notice("checked %d blocks, %d transactions", s.Blocks, s.Transactions)
			}
		},
	})
	told.end()
	if err != nil {
		if e.ctx.Err() != nil {
			return fail(exitFailed, "run it again", "%w", context.Cause(e.ctx))
		}
		return fail(exitFailed, storageHint(err, c.Data), "upgrade of %s: %w", c.Data, err)
	}
	if e.json {
		return e.showObject(upgradeResult{
			Data: c.Data, Upgraded: info.Upgraded, LedgerID: info.LedgerID.String(), Index: info.Index,
			Digest: info.Digest.String(),
		})
	}
	what := "has the format of this program already"
	if info.Upgraded {
		what = "is upgraded"
	}
	_, err = fmt.Fprintf(e.stdout, "%s %s: ledger %s up to index %d, digest %s; everything in it is checked\n",
		c.Data, what, info.LedgerID, info.Index, info.Digest)
	return err
}
