package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// VerifyOptions say how to verify a data directory.
type VerifyOptions struct {
	// Progress is told of every block that has been checked; may be nil.
	Progress func(machine.AuditSummary)
}

// VerifyReport is what Verify has found.
type VerifyReport struct {
	machine.AuditSummary
	LedgerID   machine.LedgerID
	Index      uint64
	Digest     machine.Hash
	LogEntries uint64 // after the checkpoint, which were replayed in memory
	Problems   []machine.Problem
	Omitted    uint64 // problems beyond the first maxProblems
}

// maxProblems bounds the report of a directory that is thoroughly broken.
const maxProblems = 1_000

// Verify checks a data directory that no process has open, and changes nothing
// in it. It replays the log over the state in memory, as a start would, and
// audits the result: checksums, hash chains, Merkle roots, dense sequences,
// receipts against transactions, and every table against what the blocks say.
// The error tells that the check itself could not be done; damage is in the
// report.
func Verify(ctx context.Context, dir string, o VerifyOptions) (report *VerifyReport, err error) {
	d, err := lockLedger(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	report = new(VerifyReport)
	store, err := boltstore.OpenReadOnly(d.file(stateName), d.identity)
	if err != nil {
		report.add(machine.Problem{Where: stateName, What: err.Error()})
		return report, nil
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	m, err := report.replay(ctx, d, store, func() error { return nil })
	if err != nil || m == nil {
		return report, err
	}
	return report, report.audit(ctx, store, m, o.Progress)
}

// VerifyBackup checks a backup: its checksums first, then the state in it, as
// Verify does that of a directory. For that it puts the state into the system's
// directory for temporary files, which needs as much room as the backup takes.
// Damage of either kind is in the report.
func VerifyBackup(ctx context.Context, backup io.Reader, o VerifyOptions) (report *VerifyReport, err error) {
	temporary, err := os.MkdirTemp("", "seqledger-backup-*")
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	report = new(VerifyReport)
	d := &directory{path: temporary, identity: make([]byte, 16)} // any identity does: nobody else has it
	info, err := d.receiveState(ctx, backup, new(RestoreOptions))
	if err != nil {
		damage, damaged := errors.AsType[*BackupDamageError](err)
		switch {
		case damaged:
			report.add(machine.Problem{Where: fmt.Sprintf("byte %d of the backup", damage.Offset), What: damage.What})
		case errors.Is(err, machine.ErrCorrupt), errors.Is(err, boltstore.ErrForeign), errors.Is(err, boltstore.ErrVersion):
			report.add(machine.Problem{Where: stateName, What: err.Error()})
		default:
			return nil, err
		}
		return report, nil
	}
	store, err := boltstore.OpenReadOnly(d.file(stateName), d.identity)
	if err != nil {
		report.add(machine.Problem{Where: stateName, What: err.Error()})
		return report, nil
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	m := report.openMachine(store)
	if m == nil {
		return report, nil
	}
	if err := report.audit(ctx, store, m, o.Progress); err != nil {
		return report, err
	}
	if report.LedgerID != info.LedgerID || report.Index != info.Index || report.Digest != info.Digest {
		report.add(machine.Problem{Where: "header of the backup", What: "it names another ledger, index or digest than the state has"})
	}
	return report, nil
}

// audit checks the state as a whole.
func (p *VerifyReport) audit(
	ctx context.Context, store *boltstore.Store, m *machine.Machine, progress func(machine.AuditSummary),
) error {
	err := store.View(func(r machine.Reader) (err error) {
		v := m.View(r)
		if v.Created() { // a crash may have come before the first command
			p.LedgerID, p.Index, p.Digest = v.LedgerID(), v.Index(), v.Digest()
		}
		p.AuditSummary, err = m.Audit(contextReader{r, ctx}, p.add, progress)
		return err
	})
	if err != nil && ctx.Err() == nil {
		p.add(machine.Problem{Where: stateName, What: err.Error()})
		err = nil
	}
	return err
}

func (p *VerifyReport) add(problem machine.Problem) {
	if len(p.Problems) == maxProblems {
		p.Omitted++
		return
	}
	p.Problems = append(p.Problems, problem)
}

// replay applies the log after the checkpoint to the state in memory, and calls
// applied after each entry. It returns nil when damage keeps the state from
// being read at all.
func (p *VerifyReport) replay(
	ctx context.Context, d *directory, store *boltstore.Store, applied func() error,
) (m *machine.Machine, err error) {
	if m = p.openMachine(store); m == nil {
		return nil, nil
	}
	at := store.Checkpoint()
	err = raftlog.Read(d.file(logName), d.identity, raftlog.Position{Index: at.Index, Term: at.Term},
		func(at raftlog.Position, entry []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			p.LogEntries++
			err := store.Update(boltstore.Position{Index: at.Index, Term: at.Term}, func(tx machine.Tx) error {
				_, err := m.Apply(tx, entry)
				return err
			})
			if err != nil {
				return err
			}
			return applied()
		})
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case store.Err() != nil: // half an entry is in memory: nothing can be said of the rest
		p.add(machine.Problem{Where: fmt.Sprintf("log entry %d after the checkpoint", p.LogEntries), What: err.Error()})
		return nil, nil
	case err != nil: // the state by itself can still be audited
		p.add(machine.Problem{Where: logName, What: err.Error()})
	}
	if err := store.CheckAhead(); err != nil {
		p.add(machine.Problem{Where: stateName, What: err.Error()})
	}
	return m, p.mustReachProven(store, m)
}

// mustReachProven looks whether the log has everything that was applied.
func (p *VerifyReport) mustReachProven(store *boltstore.Store, m *machine.Machine) error {
	return store.View(func(r machine.Reader) error {
		if err := mustReachProven(store.Proven(), m.View(r).Index()); err != nil {
			p.add(machine.Problem{Where: logName, What: err.Error()})
		}
		return nil
	})
}

// openMachine reads the head of the state; nil when it is damaged.
func (p *VerifyReport) openMachine(store *boltstore.Store) (m *machine.Machine) {
	err := store.View(func(r machine.Reader) (err error) {
		m, err = machine.Open(r)
		return err
	})
	if err != nil {
		p.add(machine.Problem{Where: "head of the state", What: err.Error()})
		return nil
	}
	return m
}

// contextReader ends an audit with its context.
type contextReader struct {
	machine.Reader
	ctx context.Context //nolint:containedctx // It lives as long as one audit.
}

// Ascend implements machine.Reader.
func (r contextReader) Ascend(table machine.Table, from []byte, visit func(k, v []byte) bool) error {
	err := r.Reader.Ascend(table, from, func(k, v []byte) bool {
		return r.ctx.Err() == nil && visit(k, v)
	})
	if err == nil {
		err = r.ctx.Err()
	}
	return err
}
