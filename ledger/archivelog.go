package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// The leader copies the log to the archive every ten seconds, or sooner where much is written: a restore brings a state
// to any later moment with it. The entries are read from the log's own files after they were applied, so that writes
// have nothing to do with it. The log is kept until it is copied, within bounds; beyond them entries are missing, and
// the next state makes what comes after them useful again.

var (
	// ErrNoArchive means that the ledger copies no log to an archive.
	ErrNoArchive = errors.New("the log is copied to no archive")
	// ErrNotArchived means that the archive does not have what it is to have. The error's text says why.
	ErrNotArchived = errors.New("not archived")
)

// logShipper is the part of the archiver that copies the log.
type logShipper struct {
	archiveUse

	wake chan struct{} // a signal: copy now
	// shipped is the index of the log up to which the archive has it; 0 if that is not known, or another node copies
	// it.
	shipped atomic.Uint64
	// gap is the last entry of those that the archive lacks after its newest state; 0 if it lacks none.
	gap atomic.Uint64

	// For the goroutine that copies.

	writer archive.LogWriter
	term   uint64           // in which shipped was found; 0 for none
	ledger machine.LedgerID // of the archive in which it was found

	// Guarded by archiver.mu.

	moved chan struct{} // closed after each try, and when one hangs

	// What a node that does not lead, and may, drops of its log is what it has seen in the archive.

	look atomic.Bool // the log is to be truncated
	seen atomic.Uint64

	due []uint64 // up to where the log was to be truncated the last times; guarded by upkeep.jobs
}

// noteState notes that there is a state with the log up to an index.
func (s *logShipper) noteState(index uint64) {
	if gap := s.gap.Load(); gap != 0 && index >= gap {
		s.gap.CompareAndSwap(gap, 0)
	}
}

// shipTick is how often is looked at how much of the log is to be copied.
const shipTick = time.Second

func (l *Ledger) shipLoop() {
	s := &l.archiver.log
	ticker := time.NewTicker(min(shipTick, l.options.shipInterval))
	defer ticker.Stop()
	var last time.Time
	var before uint64
	for {
		now := false
		select {
		case <-ticker.C:
		case <-s.wake:
			now = true
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
		bytes := l.counters.logBytes.Load()
		if now || time.Since(last) >= l.options.shipInterval || bytes-before >= archive.LogObjectBytes {
			l.ship(l.stopping)
			last, before = time.Now(), bytes
		}
	}
}

// ship copies what of the log is to be copied.
func (l *Ledger) ship(ctx context.Context) {
	s := &l.archiver.log
	l.useArchive(ctx, &s.archiveUse, func(pass *archivePass) {
		err := l.shipLog(ctx)
		if ctx.Err() == nil {
			l.noteUse(&s.archiveUse, pass, err)
		}
		l.archiver.mu.Lock()
		defer l.archiver.mu.Unlock()
		s.tell()
	})
}

// tell wakes those who wait for the next try. It needs the lock of the counters.
func (s *logShipper) tell() {
	close(s.moved)
	s.moved = make(chan struct{})
}

// shipLast copies the rest of the log before a stop, unless another node leads by now or the archive fails already.
func (l *Ledger) shipLast() {
	l.archiver.mu.Lock()
	failing := l.archiver.log.problem != ""
	l.archiver.mu.Unlock()
	if failing || l.cluster.Term() == 0 || l.archiver.mark.Load() == nil || l.options.ArchiveInterval < 0 {
		return
	}
	ctx, cancel := context.WithTimeout(l.stopping, l.options.archivePatience)
	defer cancel()
	l.ship(ctx)
}

func (l *Ledger) shipLog(ctx context.Context) error {
	s, mark, term := &l.archiver.log, l.archiver.mark.Load(), l.cluster.Term()
	if mark == nil {
		return nil
	}
	target := &patientTarget{Target: l.options.Archive, answers: &s.answers, patience: l.options.archiveSilence()}
	defer target.calls.Wait() // the archive is still in use where a call hangs
	if term == 0 {
		s.term = 0
		s.shipped.Store(0)
		l.noteLog(0, time.Time{}, time.Time{})
		if !s.look.Swap(false) {
			return nil
		}
		_, _, end, err := l.archivedLog(ctx, target, mark.Ledger)
		if err == nil {
			s.seen.Store(end)
		}
		return err
	}
	if s.term != term || s.ledger != mark.Ledger {
		if err := l.findShipped(ctx, target, mark.Ledger); err != nil {
			return fmt.Errorf("look for the log: %w", err)
		}
		s.term, s.ledger = term, mark.Ledger
	}
	began := time.Now()
	index, at, applied, err := l.standing(ctx)
	for err == nil && s.shipped.Load() < applied {
		var more bool
		if more, err = l.shipOne(ctx, target, mark.Ledger, at); !more && err == nil {
			return nil // the log has not got the last of it yet: the next time
		}
	}
	if err != nil {
		return fmt.Errorf("copy the log: %w", err)
	}
	l.noteLog(index, at, began)
	return nil
}

// standing returns the ledger index and the ledger time of what is applied, and the entry of the log that it ends with,
// or a later one.
func (l *Ledger) standing(ctx context.Context) (index uint64, at time.Time, applied uint64, err error) {
	err = l.StoredView(ctx, func(v machine.View) error {
		index, at = v.Index(), time.Unix(0, v.Time())
		return nil
	})
	return index, at, l.store.Applied().Index, err
}

// archivedLog lists the log in an archive. It ends after the entry end, as far as this node may know, and follows a
// state whose last entry is after.
func (l *Ledger) archivedLog(
	ctx context.Context, t archive.Target, ledger machine.LedgerID,
) (found *archive.Log, after, end uint64, err error) {
	states, err := archive.States(ctx, t, ledger)
	if err != nil {
		return nil, 0, 0, err
	}
	if found, err = archive.ListLog(ctx, t, ledger); err != nil {
		return nil, 0, 0, err
	}
	for i := len(states) - 1; i >= 0; i-- {
		// What the last leader did not copy before a later state is copied if this node has it.
		if e := found.End(states[i].Log); end == 0 || e < end && e+1 >= l.log.First() {
			after, end = states[i].Log, e
		}
	}
	if len(states) > 0 {
		l.noteState(states[len(states)-1])
	}
	return found, after, end, nil
}

// findShipped finds out up to where the archive has the log.
func (l *Ledger) findShipped(ctx context.Context, t archive.Target, ledger machine.LedgerID) error {
	found, after, end, err := l.archivedLog(ctx, t, ledger)
	if err != nil {
		return err
	}
	if end > l.log.Last() { // this node has applied all that was committed before it led
		return fmt.Errorf("%s: %w: its log goes on to entry %d, and this one's to %d", t, archive.ErrOther, end,
			l.log.Last())
	}
	if own, err := l.log.Entries(end, 1); end > after && err == nil && len(own) > 0 {
		archived, err := found.Entry(ctx, end)
		switch {
		case errors.Is(err, machine.ErrCorrupt): // archive verify tells; what follows is copied all the same
		case err != nil:
			return err
		case !raftlog.SameEntry(&own[0], &archived):
			return fmt.Errorf("%s: %w: entry %d of its log is another one", t, archive.ErrOther, end)
		}
	}
	l.archiver.log.shipped.Store(max(end, 1))
	return nil
}

// readBytes is how many bytes of the log are read at once, because an append waits meanwhile.
const readBytes = 256 << 10

// shipOne copies the next entries as one object, and reports whether there were any.
func (l *Ledger) shipOne(
	ctx context.Context, t archive.Target, ledger machine.LedgerID, at time.Time,
) (some bool, err error) {
	s := &l.archiver.log
	s.writer.Begin(ledger)
	for next, full := s.shipped.Load()+1, false; !full; next = s.writer.Last() + 1 {
		entries, err := l.log.Entries(next, readBytes)
		if errors.Is(err, segment.ErrTruncated) && s.writer.Last() == 0 {
			l.options.Logger.Warn("the archive lacks entries of the log, because it did not take them in time; "+
				"moments from there to the next state cannot be restored", "after", next-1)
			gap := l.log.First() - 1
			s.gap.Store(gap)
			s.shipped.Store(gap)
			signal(l.historyDue)
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if len(entries) == 0 {
			break
		}
		full = s.writer.Add(entries)
	}
	if s.writer.Last() == 0 {
		return false, nil
	}
	if err := s.writer.Put(ctx, t, ledger, at); err != nil {
		return false, err
	}
	s.shipped.Store(s.writer.Last())
	return true, nil
}

// noteLog notes up to where the log is copied.
func (l *Ledger) noteLog(index uint64, at, safe time.Time) {
	l.archiver.mu.Lock()
	defer l.archiver.mu.Unlock()
	l.archiver.stats.LogIndex, l.archiver.stats.LogTime, l.archiver.stats.LogSafe = index, at, safe
}

// logHold is how many truncations the log is kept for the archive.
const logHold = 16

// keepLog returns up to where the log is to be truncated where it could be truncated up to an index: no further than
// the archive is known to have it, but for what it takes too slowly or not at all.
func (l *Ledger) keepLog(upTo uint64) uint64 {
	if l.options.Archive == nil && !l.archiver.unnamed || l.options.ArchiveInterval < 0 {
		return upTo
	}
	s := &l.archiver.log
	keep := s.shipped.Load()
	if keep == 0 {
		keep = s.seen.Load()
		s.look.Store(true)
		signal(s.wake)
	}
	if s.due = append(s.due, upTo); len(s.due) > logHold {
		keep, s.due = max(keep, s.due[0]), s.due[1:]
	}
	return max(min(keep, upTo), l.log.Truncated())
}

// ArchivePoint copies the log up to everything that was acknowledged before the call, and returns the ledger index and
// the ledger time of it: a restore can name either. On a node that does not lead it returns a *cluster.NotLeaderError.
func (l *Ledger) ArchivePoint(ctx context.Context) (index uint64, at time.Time, err error) {
	if l.options.Archive == nil || l.options.ArchiveInterval < 0 {
		return 0, at, ErrNoArchive
	}
	if err := l.Fresh(ctx); err != nil {
		return 0, at, err
	}
	index, at, applied, err := l.standing(ctx)
	if err != nil {
		return 0, at, err
	}
	s := &l.archiver.log
	for tried := false; ; tried = true {
		l.archiver.mu.Lock()
		moved, problem, state := s.moved, s.problem, l.archiver.stats.StateIndex
		l.archiver.mu.Unlock()
		switch {
		case l.cluster.Term() == 0:
			return 0, at, l.cluster.NotLeading()
		case tried && problem != "":
			return 0, at, fmt.Errorf("%w: %s", ErrNotArchived, problem)
		case s.shipped.Load() >= applied && state > index: // which may be the first one that there is, or after a gap
			if index, at, applied, err = l.standing(ctx); err != nil {
				return 0, at, err
			}
			continue
		case s.shipped.Load() >= applied && state != 0 && s.gap.Load() == 0:
			return index, at, nil
		case s.shipped.Load() >= applied && tried:
			return 0, at, fmt.Errorf("%w: the archive has no state yet that the log follows; it is being copied",
				ErrNotArchived)
		}
		signal(s.wake)
		select {
		case <-moved:
		case <-ctx.Done():
			return 0, at, context.Cause(ctx)
		case <-l.failed:
			return 0, at, l.Err()
		case <-l.stopping.Done():
			return 0, at, ErrClosed
		}
	}
}
