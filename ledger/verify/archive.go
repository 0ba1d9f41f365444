package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// Opener opens a file of a state: 0 is the state file, and every other number that of a block file.
type Opener = func(file uint64) (io.Writer, error)

// Source is where a state is read from.
type Source struct {
	Name string // what an operator calls it
	// Read puts the state into files.
	Read func(open Opener, progress func(done, total int64)) (backupfile.Info, error)

	log   *archive.Log // that follows it; nil for none
	until *Until
	entry uint64 // of the log, with which the state ends
	least uint64 // where a log ends at the earliest that nothing is missing of; see Replay
}

// FromBackup returns a backup as a source.
func FromBackup(ctx context.Context, backup io.Reader) Source {
	read := func(open Opener, progress func(done, total int64)) (backupfile.Info, error) {
		return backupfile.Read(ctx, backup, nil, open, progress)
	}
	return Source{Name: "the backup", Read: read}
}

// Until says up to where a ledger is restored: the last whole entry of the log that ends at a ledger index or before
// it, and at a ledger time or before it. The zero value is the end of the log.
type Until struct {
	Index uint64    // 0 for any
	Time  time.Time // zero for any

	position uint64 // the last entry of the log; 0 for any. See errPassed.
}

var (
	// ErrNoState means that an archive has no state at or before a moment.
	ErrNoState = errors.New("the archive has no state from which that can be restored")

	errReached = errors.New("the replay has reached its end")
	// errPassed means that an entry has turned out to go beyond the index up to which is restored: what it evicts has
	// indexes, too. The replay begins anew, and ends before it.
	errPassed = errors.New("the replay has gone too far")
)

// FromArchive returns the states of an archive from which a moment can be reached, the newest first.
func FromArchive(ctx context.Context, t archive.Target, ledger machine.LedgerID, until Until) ([]Source, error) {
	states, err := archive.States(ctx, t, ledger)
	if err != nil {
		return nil, err
	}
	log, err := archive.ListLog(ctx, t, ledger)
	if err != nil {
		return nil, err
	}
	var sources []Source
	least := uint64(0)
	for i := len(states) - 1; i >= 0; i-- {
		s := states[i]
		if until.Index != 0 && s.Index > until.Index {
			continue
		}
		least = max(least, s.Index) // one after the time, too: the log must have something after that, then
		if !until.Time.IsZero() && s.Time.After(until.Time) {
			continue
		}
		sources = append(sources, Source{
			Name: fmt.Sprintf("the state up to index %d, of %s", s.Index, s.Time.UTC().Format(time.RFC3339)),
			Read: func(open Opener, progress func(done, total int64)) (backupfile.Info, error) {
				return archive.ReadState(ctx, t, s, open, progress)
			},
			log: log, until: &until, entry: s.Log, least: least,
		})
	}
	if len(sources) == 0 {
		err = fmt.Errorf("%s: %w", t, ErrNoState)
		if len(states) > 0 {
			err = fmt.Errorf("%w: the oldest is up to index %d, of %s", err, states[0].Index,
				states[0].Time.UTC().Format(time.RFC3339))
		}
		return nil, err
	}
	return sources, nil
}

// End returns the last entry of the log that the source leads to; 0 for a backup.
func (s *Source) End() uint64 {
	if s.log == nil {
		return 0
	}
	return s.log.End(s.entry)
}

// Again reports whether the source must be read again after an error of Replay.
func (s *Source) Again(err error) bool { return errors.Is(err, errPassed) }

// Damaged reports whether an error of Read or Replay means that another source may do.
func (*Source) Damaged(err error) bool {
	_, inside := errors.AsType[*backupfile.DamageError](err)
	return inside || IsDamage(err) || errors.Is(err, boltstore.ErrForeign)
}

// Replay brings the state that was read into a file, which gets an identity, up to where the source goes, and info with
// it. Damage is machine.ErrCorrupt. So is a log that ends before a newer state: what is lost must not go
// unnoticed.
func (s *Source) Replay(
	ctx context.Context, path string, identity []byte, info *backupfile.Info, told func(index uint64),
) (err error) {
	if _, err := boltstore.AdoptAt(path, identity); err != nil || s.log == nil {
		return err
	}
	store, err := boltstore.Open(path, boltstore.Options{Identity: identity, NoPageSums: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	report := new(Report)
	r := replay{report: report, store: store, undecided: true, until: s.until, applied: func(now stand) error {
		if told != nil {
			told(now.index)
		}
		return flushMuch(store)
	}}
	members, _, err := raftlog.DecodeMembers(info.Members)
	known := err == nil
	m, err := r.run(ctx, logOf(ctx, s.log, store, func(e *raftlog.Entry) {
		members = members.After(e)
		if info.At = (raftlog.Position{Index: e.Index, Term: e.Term}); known {
			info.Members = members.Encode()
		}
	}))
	if err != nil || m == nil {
		return errors.Join(err, report.Problem("the state"))
	}
	if err := report.Problem("the log in the archive"); err != nil {
		return fmt.Errorf("%w; up to index %d it can be restored", err, m.Check().Index)
	}
	return errors.Join(store.View(func(reader machine.Reader) error {
		v := m.View(reader)
		info.LedgerID, info.Index, info.Digest, info.Time = v.LedgerID(), v.Index(), v.Digest(), v.Time()
		switch {
		case !r.ended:
			return nil
		case s.until.Index > info.Index:
			return fmt.Errorf("the archive ends at index %d, before %d", info.Index, s.until.Index)
		case info.Index < s.least:
			return fmt.Errorf("%w: the log leads to index %d, and a newer state is up to %d", machine.ErrCorrupt,
				info.Index, s.least)
		}
		return nil
	}), store.Flush())
}

// flushMuch writes changes once there are many.
func flushMuch(store *boltstore.Store) error {
	if store.PendingBytes() < flushBytes {
		return nil
	}
	return store.Flush()
}

// logOf returns how replay reads the log of an archive after the state in a store. seen is called after each entry that
// is a command, and before it for those that are none since the last one; it may be nil.
func logOf(ctx context.Context, log *archive.Log, store *boltstore.Store, seen func(*raftlog.Entry)) logReader {
	return func(each func(at raftlog.Position, entry []byte, decided bool) error) error {
		var others []raftlog.Entry // that are no commands
		return log.Visit(ctx, store.Checkpoint().Index, func(e *raftlog.Entry) error {
			if !raftlog.IsCommand(e) {
				others = append(others, *e)
				return nil
			}
			err := each(raftlog.Position{Index: e.Index, Term: e.Term}, e.Data, true)
			if err == nil && seen != nil {
				for i := range others {
					seen(&others[i])
				}
				seen(e)
			}
			others = others[:0]
			return err
		})
	}
}

// Archive checks the states and the log of an archive, whose objects package archive has checked: it replays the log
// from each state to the next one, which must be what that leads to, and audits the last state with all that follows
// it. It puts a state into the system's directory for temporary files, which takes as much room as the ledger.
func Archive(
	ctx context.Context, t archive.Target, ledger machine.LedgerID, o Options, told func(index uint64),
) (report *Report, err error) {
	states, err := archive.States(ctx, t, ledger)
	if err != nil {
		return nil, err
	}
	log, err := archive.ListLog(ctx, t, ledger)
	if err != nil {
		return nil, err
	}
	report = new(Report)
	for len(states) > 0 {
		c := archiveCheck{report: report, target: t, states: states, log: log, told: told}
		if err := c.run(ctx, o); err != nil {
			return nil, err
		}
		states = c.states
	}
	return report, nil
}

// archiveCheck replays the log from one state on, as far as it goes.
type archiveCheck struct {
	report *Report
	target archive.Target
	states []archive.State // those not yet reached; the first one is where the replay begins
	log    *archive.Log
	told   func(index uint64)
}

func (c *archiveCheck) run(ctx context.Context, o Options) error {
	from := c.states[0]
	c.states = c.states[1:]
	return inTemporary(func(d *datadir.Directory) error {
		err := d.MakeState(func(open func(file uint64) (io.Writer, error)) error {
			_, err := archive.ReadState(ctx, c.target, from, open, nil)
			return err
		}, func(path string) error {
			_, err := boltstore.AdoptAt(path, d.Identity())
			return err
		})
		if err != nil {
			return c.report.addState(from, err)
		}
		store, err := boltstore.Open(d.State(), boltstore.Options{Identity: d.Identity(), NoPageSums: true})
		if err != nil {
			return c.report.addState(from, err)
		}
		return errors.Join(c.replay(ctx, store, o), store.Close())
	})
}

func (c *archiveCheck) replay(ctx context.Context, store *boltstore.Store, o Options) error {
	end := c.log.End(store.Checkpoint().Index)
	r := replay{report: c.report, store: store, undecided: true, applied: func(now stand) error {
		if c.told != nil {
			c.told(now.index)
		}
		return errors.Join(c.compare(ctx, now), flushMuch(store))
	}}
	m, err := r.run(ctx, logOf(ctx, c.log, store, nil))
	if err != nil || m == nil {
		return err
	}
	// What the log does not lead to is where the next replay begins.
	for len(c.states) > 0 && c.states[0].Log <= end {
		c.report.addProblem(machine.Problem{
			Where: fmt.Sprintf("state up to index %d", c.states[0].Index),
			What:  fmt.Sprintf("no command of the log ends at its entry %d", c.states[0].Log),
		})
		c.states = c.states[1:]
	}
	if len(c.states) > 0 {
		return nil
	}
	return c.report.audit(ctx, store, m, o.Progress)
}

// compare compares where the replay stands with the states that were made there.
func (c *archiveCheck) compare(ctx context.Context, now stand) error {
	for len(c.states) > 0 && c.states[0].Log == now.position {
		s := c.states[0]
		c.states = c.states[1:]
		info, err := archive.StateInfo(ctx, c.target, s)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			if err := c.report.addState(s, err); err != nil {
				return err
			}
		case info.Index != now.index || info.Digest != now.digest:
			c.report.addProblem(machine.Problem{
				Where: fmt.Sprintf("state up to index %d", s.Index),
				What: fmt.Sprintf("its digest is %s, and the log leads to index %d with %s", info.Digest, now.index,
					now.digest),
			})
		}
	}
	return nil
}

// addState adds what is wrong with a state of an archive.
func (p *Report) addState(s archive.State, err error) error {
	if !new(Source).Damaged(err) {
		return err
	}
	return p.add(fmt.Sprintf("state up to index %d", s.Index), err)
}

// inTemporary lends a directory for a state.
func inTemporary(use func(*datadir.Directory) error) (err error) {
	dir, err := os.MkdirTemp("", "seqledger-state-*")
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d, err := datadir.Open(dir, datadir.Restored)
	if err != nil {
		return err
	}
	return errors.Join(use(d), d.Close())
}
