// Package verify checks what a ledger has stored: a data directory, or a backup.
//
// It replays the log over the state in memory, as a start would, and audits the
// result: checksums, hash chains, Merkle roots, dense sequences, receipts against
// transactions, and every table against what the blocks say.
package verify

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// Options say how to verify.
type Options struct {
	// Progress is called after every block that has been checked; it may be nil.
	Progress func(machine.AuditSummary)
	// Archive is the target of an archive that has the blocks which were dropped; nil for none. They are audited with
	// the others then.
	Archive archive.Target
}

// Report is the result of a check.
type Report struct {
	machine.AuditSummary
	LedgerID   machine.LedgerID
	Index      uint64
	Digest     machine.Hash
	LogEntries uint64 // after the checkpoint, which were replayed in memory
	// Undecided are the entries at the end of the log of a node in a cluster of which nothing here tells that they were
	// committed. The other nodes know, and they are not in what the report says.
	Undecided uint64
	Pages     uint64 // of the state file that were compared with their checksums
	Problems  []machine.Problem
	Omitted   uint64 // problems beyond the first maxProblems
}

// maxProblems bounds the report, because a directory that is damaged all over
// would otherwise have one for every row.
const maxProblems = 1_000

// Directory checks a data directory that no process has open, and changes nothing
// in it. The error tells that the check itself could not be done. Damage is in the
// report instead, so that one finding never hides the next.
func Directory(ctx context.Context, dir string, o Options) (report *Report, err error) {
	c, err := open(ctx, dir, o, nil)
	if err != nil {
		return nil, err
	}
	return c.report, c.close()
}

// checked is a directory that was checked, and can be read until close.
type checked struct {
	report *Report
	dir    *datadir.Directory // that close unlocks
	store  *boltstore.Store   // nil when it cannot be opened
	m      *machine.Machine   // nil when the state cannot be read
	stands *[]stand           // the positions that the replay passed; nil: not wanted
}

// stand is where the state stood at a position in the log.
type stand struct {
	position, index uint64 // Raft's, and the ledger's
	digest          machine.Hash
}

func (c *checked) close() (err error) {
	if c.store != nil {
		err = c.store.Close()
	}
	return errors.Join(err, c.dir.Close())
}

// open checks a directory.
func open(ctx context.Context, dir string, o Options, stands *[]stand) (*checked, error) {
	d, err := datadir.OpenLedger(dir)
	if err != nil {
		return nil, err
	}
	c := &checked{report: new(Report), dir: d, stands: stands}
	if err := c.check(ctx, d, o); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *checked) check(ctx context.Context, d *datadir.Directory, o Options) (err error) {
	report := c.report
	store, err := boltstore.OpenReadOnly(d.State(), d.Identity())
	if err != nil {
		return report.add(datadir.StateName, err)
	}
	if o.Archive != nil {
		if store, err = c.withArchive(ctx, store, d, o.Archive); err != nil {
			return err
		}
	}
	c.store = store
	if report.Pages, err = scrub(ctx, store); err != nil {
		if ctx.Err() != nil {
			return err
		}
		if err := report.add(datadir.SumsName, err); err != nil { // the first; what hangs on it follows
			return err
		}
	}
	r := replay{report: report, store: store, stands: c.stands}
	if c.m, err = r.run(ctx, logIn(d, store)); err != nil || c.m == nil {
		return err
	}
	return report.audit(ctx, store, c.m, o.Progress)
}

// withArchive opens the state of a directory together with an archive. If that is damaged, what the directory has is
// checked all the same, so that the operator learns which of the two is.
func (c *checked) withArchive(
	ctx context.Context, store *boltstore.Store, d *datadir.Directory, t archive.Target,
) (*boltstore.Store, error) {
	var id machine.LedgerID
	err := store.View(func(r machine.Reader) error {
		m, err := machine.Open(r)
		if err == nil {
			id = m.View(r).LedgerID()
		}
		return err
	})
	if err != nil {
		return store, nil // the check of the directory says so
	}
	archived, err := archive.NewReader(ctx, t, id)
	if errors.Is(err, machine.ErrCorrupt) {
		return store, c.report.add(t.String(), err)
	}
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	if err := store.Close(); err != nil {
		return nil, err
	}
	store, err = boltstore.OpenWithArchive(d.State(), d.Identity(), archived.With)
	if wrong, is := errors.AsType[*blockfile.FileError](err); is && wrong.Place != (blockfile.Place{}) {
		if err := c.report.add(t.String(), wrong); err != nil {
			return nil, err
		}
		return boltstore.OpenReadOnly(d.State(), d.Identity())
	}
	return store, err
}

// Backup is State for a backup.
func Backup(ctx context.Context, backup io.Reader, o Options) (*Report, error) {
	return State(ctx, FromBackup(ctx, backup), o)
}

// State checks a state: its checksums first, then what it holds, as Directory does that of a directory. It puts the
// state into the system's directory for temporary files, because an audit reads at random; that takes as much room as
// the state. Damage of either kind is in the report.
func State(ctx context.Context, from Source, o Options) (report *Report, err error) {
	for {
		report = new(Report)
		err = inTemporary(func(d *datadir.Directory) error { return report.state(ctx, d, &from, o) })
		if err != nil && !from.Again(err) {
			return nil, err
		}
		if err == nil {
			return report, nil
		}
	}
}

func (p *Report) state(ctx context.Context, d *datadir.Directory, from *Source, o Options) error {
	var info backupfile.Info
	err := d.MakeState(func(open func(file uint64) (io.Writer, error)) (err error) {
		info, err = from.Read(open, nil)
		return err
	}, func(path string) error { return from.Replay(ctx, path, d.Identity(), &info, nil) })
	if err == nil {
		return p.auditFile(ctx, d, &info, o.Progress)
	}
	problem := machine.Problem{Where: "the state", What: err.Error()}
	if damage, is := errors.AsType[*backupfile.DamageError](err); is {
		problem = machine.Problem{Where: fmt.Sprintf("byte %d of the backup", damage.Offset), What: damage.What}
	} else if !from.Damaged(err) {
		return err
	}
	p.addProblem(problem)
	return nil
}

// auditFile checks the state of a backup.
func (p *Report) auditFile(
	ctx context.Context, d *datadir.Directory, info *backupfile.Info, progress func(machine.AuditSummary),
) (err error) {
	store, err := boltstore.OpenReadOnly(d.State(), d.Identity())
	if err != nil {
		return p.add(datadir.StateName, err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	m, err := p.openMachine(store)
	if m == nil {
		return err
	}
	if err := p.audit(ctx, store, m, progress); err != nil {
		return err
	}
	if p.LedgerID != info.LedgerID || p.Index != info.Index || p.Digest != info.Digest {
		p.addProblem(machine.Problem{
			Where: "header of the backup", What: "it names another ledger, index or digest than the state has",
		})
	}
	return nil
}

// flushBytes is how many bytes of changes ReplayInto gathers before it writes them.
const flushBytes = 32 << 20

// ReplayInto brings a copy of the state file of a directory to the end of the
// directory's log, and checks everything in it. Of a node in a cluster that is more than Directory takes: the end of
// the log may have been acknowledged, and only the other nodes know. The report is of the copy as it is then. For
// damage, errors.Is(err, machine.ErrCorrupt) is true.
func ReplayInto(ctx context.Context, path string, from *datadir.Directory) (report *Report, err error) {
	if err := comparePages(ctx, from); err != nil {
		return nil, err
	}
	store, err := boltstore.Open(path, boltstore.Options{Identity: from.Identity(), NoPageSums: true})
	if err != nil {
		return nil, fmt.Errorf("state in %s: %w", from.Path(), err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	report = new(Report)
	r := replay{report: report, store: store, undecided: true, applied: func(stand) error { return flushMuch(store) }}
	m, err := r.run(ctx, logIn(from, store))
	if err == nil && m != nil {
		err = report.audit(ctx, store, m, nil)
	}
	if err == nil {
		err = report.Problem(from.Path())
	}
	if err != nil {
		return nil, err
	}
	return report, store.Flush()
}

// comparePages compares the pages of a directory's state file with their checksums, which its copy
// does not have.
func comparePages(ctx context.Context, from *datadir.Directory) (err error) {
	store, err := boltstore.OpenReadOnly(from.State(), from.Identity())
	if err != nil {
		return fmt.Errorf("state in %s: %w", from.Path(), err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	_, err = scrub(ctx, store)
	return err
}

// scrubPages is how many pages one call of Scrub compares.
const scrubPages = 1 << 10

// scrub compares all pages with their checksums, and returns how many; none if the file has
// no checksums yet.
func scrub(ctx context.Context, store *boltstore.Store) (pages uint64, err error) {
	for next := uint64(0); ; {
		if ctx.Err() != nil {
			return pages, context.Cause(ctx)
		}
		var compared int
		next, compared, err = store.Scrub(next, scrubPages)
		if pages += uint64(compared); err != nil || next == 0 {
			return pages, err
		}
	}
}

// Problem makes an error of the problems of a directory; nil when there are none.
func (p *Report) Problem(dir string) error {
	if len(p.Problems) == 0 {
		return nil
	}
	first := p.Problems[0]
	return fmt.Errorf("%w: %s has %d problems, the first of them: %s: %s",
		machine.ErrCorrupt, dir, uint64(len(p.Problems))+p.Omitted, first.Where, first.What)
}

// audit checks the state as a whole.
func (p *Report) audit(
	ctx context.Context, store *boltstore.Store, m *machine.Machine, progress func(machine.AuditSummary),
) error {
	err := store.View(func(r machine.Reader) (err error) {
		v := m.View(r)
		if v.Created() { // a crash may have come before the first command
			p.LedgerID, p.Index, p.Digest = v.LedgerID(), v.Index(), v.Digest()
		}
		audit := m.Audit
		if store.BlockBase() == 0 {
			audit = m.AuditWhole
		}
		p.AuditSummary, err = audit(contextReader{r, ctx}, p.addProblem, progress)
		return err
	})
	if err != nil && ctx.Err() == nil {
		err = p.add(datadir.StateName, err)
	}
	return err
}

// add adds a problem. What has another version is none: the check cannot be done, and add returns the error.
func (p *Report) add(where string, err error) error {
	if errors.Is(err, format.ErrVersion) {
		return fmt.Errorf("%s: %w", where, err)
	}
	p.addProblem(machine.Problem{Where: where, What: err.Error()})
	return nil
}

func (p *Report) addProblem(problem machine.Problem) {
	if n := len(p.Problems); n > 0 && p.Problems[n-1] == problem {
		return // found again from the next state of an archive
	}
	if len(p.Problems) == maxProblems {
		p.Omitted++
		return
	}
	p.Problems = append(p.Problems, problem)
}

// replay applies the log after the checkpoint to the state in memory.
type replay struct {
	report    *Report
	store     *boltstore.Store
	undecided bool              // take entries of which nothing tells that they were committed, too
	applied   func(stand) error // called at the checkpoint and after each entry; may be nil
	stands    *[]stand          // gets the position of the checkpoint and of each entry; may be nil
	until     *Until            // nil for the end of the log

	m             *machine.Machine
	ended         bool   // the log has nothing after what was applied
	asked         bool   // whether lastUncovered is known
	lastUncovered uint64 // the last ledger index of a whole block after the checkpoint
}

// logReader calls each for the commands of a log after the checkpoint; see raftlog.Read.
type logReader func(each func(at raftlog.Position, entry []byte, decided bool) error) error

// logIn returns how the log of a directory is read.
func logIn(d *datadir.Directory, store *boltstore.Store) logReader {
	log := raftlog.Options{
		Dir: d.Log(), Identity: d.Identity(), Node: d.Node(), Checkpoint: raftlog.Position(store.Checkpoint()),
	}
	return func(each func(at raftlog.Position, entry []byte, decided bool) error) error {
		return raftlog.Read(log, each)
	}
}

// run returns the machine at the end of the log, or nil when damage keeps the state from being read at all.
func (r *replay) run(ctx context.Context, read logReader) (m *machine.Machine, err error) {
	if r.m, err = r.report.openMachine(r.store); r.m == nil {
		return nil, err
	}
	now, err := r.note(raftlog.Position(r.store.Checkpoint()))
	if err == nil && r.applied != nil {
		err = r.applied(now)
	}
	if err != nil {
		return nil, err
	}
	err = read(func(at raftlog.Position, entry []byte, decided bool) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return r.entry(at, entry, decided)
	})
	r.ended = err == nil
	switch {
	case errors.Is(err, errReached):
		err = nil
	case errors.Is(err, errPassed):
		return nil, err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case r.store.Err() != nil: // nothing can be said of the rest, because half an entry is in memory
		return nil, r.report.add(fmt.Sprintf("log entry %d after the checkpoint", r.report.LogEntries), err)
	case err != nil && !IsDamage(err): // a file that cannot be read or made is not damage
		return nil, fmt.Errorf("log: %w", err)
	case err != nil: // the state can still be audited without the log
		err = r.report.add(datadir.LogName, err)
	}
	if wrong := r.store.EndReplay(); wrong != nil && err == nil {
		err = r.report.add(datadir.BlocksName, wrong)
	}
	return r.m, err
}

// entry applies an entry that was committed for all that the directory tells, or counts it.
func (r *replay) entry(at raftlog.Position, entry []byte, decided bool) (err error) {
	if !decided && !r.undecided {
		if !r.asked {
			if r.lastUncovered, err = r.store.LastUncovered(); err != nil {
				return err
			}
			r.asked = true
		}
		if s, err := r.stand(at); err != nil || s.index >= r.lastUncovered {
			r.report.Undecided++
			return err
		}
	}
	if err := r.mayApply(at, entry); err != nil {
		return err
	}
	r.report.LogEntries++
	err = r.store.Update(boltstore.Position(at), func(tx machine.Tx) error {
		_, err := r.m.Apply(tx, entry)
		return err
	})
	if err != nil {
		return err
	}
	now, err := r.note(at)
	if err != nil {
		return err
	}
	if r.until != nil && r.until.Index != 0 && now.index > r.until.Index {
		r.until.position = at.Index - 1
		return errPassed
	}
	if r.applied == nil {
		return nil
	}
	return r.applied(now)
}

// mayApply returns errReached if an entry goes beyond where the replay is to end, as far as can be told.
func (r *replay) mayApply(at raftlog.Position, entry []byte) error {
	u := r.until
	if u == nil || *u == (Until{}) {
		return nil
	}
	header, commands, err := machine.DecodeEntry(entry)
	if err != nil {
		return err
	}
	if u.position != 0 && at.Index > u.position || !u.Time.IsZero() && header.UnixNanos > u.Time.UnixNano() ||
		u.Index != 0 && r.m.Check().Index+uint64(len(commands)) > u.Index {
		return errReached
	}
	return nil
}

// note tells where the state stands, and adds it to stands.
func (r *replay) note(at raftlog.Position) (s stand, err error) {
	if r.stands == nil && r.applied == nil && r.until == nil {
		return s, nil
	}
	if s, err = r.stand(at); r.stands != nil {
		*r.stands = append(*r.stands, s)
	}
	return s, err
}

// stand tells where the state stands.
func (r *replay) stand(at raftlog.Position) (s stand, err error) {
	err = r.store.View(func(reader machine.Reader) error {
		v := r.m.View(reader)
		s = stand{at.Index, v.Index(), v.Digest()}
		return nil
	})
	return s, err
}

// openMachine reads the head of the state; nil when it is damaged.
func (p *Report) openMachine(store *boltstore.Store) (m *machine.Machine, err error) {
	err = store.View(func(r machine.Reader) (err error) {
		m, err = machine.Open(r)
		return err
	})
	if err != nil {
		return nil, p.add("head of the state", err)
	}
	return m, nil
}

// IsDamage reports whether an error means that what is stored is not what was
// written. Then acknowledged writes may be missing, and only a backup helps;
// any other failure of the storage has lost nothing that was acknowledged.
func IsDamage(err error) bool { return errors.Is(err, machine.ErrCorrupt) || raftlog.IsDamage(err) }

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
