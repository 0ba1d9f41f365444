package ledger

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/stats"
)

// An archive that is full, read-only or missing stops the removal of files and nothing else: writes continue, and the
// counters, the log and the status report it. An archive on a file system that hangs, such as one on a network, has the
// same effect: its calls may never return, so every wait for them reports that, and ends with the ledger.

// archiver copies sealed files to the archive. There is something in copying while a goroutine uses the archive.
type archiver struct {
	copying chan struct{}    // capacity 1; not a mutex, so that waiting for it can end with a context
	answers atomic.Uint64    // how often the archive has taken or confirmed a file
	opened  *archive.Archive // nil until it could be opened
	checked uint64           // number of the last file that the archive has, as this ledger has it
	refused uint64           // number of a file that it has lost since; 0 for none

	mu    sync.Mutex
	stats stats.Archive
	// unnamed says that the ledger has an archive that Options.Archive does not name. It is constant once Open has
	// returned.
	unnamed bool
}

// archivePass is one use of the archive. It is guarded by archiver.mu.
type archivePass struct {
	answers uint64 // as of the last look at them
	over    bool   // its result is recorded, so that later silence is not taken for a hang
}

// useArchive runs f once no other use of the archive is under way, and tells whether f has ended. It waits for that
// until ctx ends, and notes when the archive does not answer.
func (l *Ledger) useArchive(ctx context.Context, f func(pass *archivePass)) (ended bool) {
	pass := &archivePass{answers: l.archiver.answers.Load()}
	slow := time.NewTicker(slowFactor * l.options.archivePatience)
	defer slow.Stop()
	free, done := l.archiver.copying, make(chan struct{})
	for {
		select {
		case free <- struct{}{}:
			free = nil // f is begun once
			// Ends with f. If the file system hangs, f may never return, and the goroutine is not joined; after such a
			// call f does nothing more once its context has ended.
			go func() {
				defer close(done)
				defer func() { <-l.archiver.copying }()
				f(pass)
			}()
		case <-done:
			return true
		case <-slow.C:
			l.noteSilence(pass)
		case <-ctx.Done():
			if free != nil {
				return false
			}
			select { // it ends with the piece that is being copied
			case <-done:
				return true
			case <-time.After(l.options.archivePatience):
				l.options.Logger.Warn("the archive does not answer; nothing waits for it any longer")
				return false
			}
		}
	}
}

// slowFactor is after how many times Options.archivePatience without an answer an archive counts as failing.
const slowFactor = 30

// archiveFiles copies what is sealed and durable.
func (l *Ledger) archiveFiles(ctx context.Context) {
	if err := l.coverSealed(); err != nil {
		l.fail(err)
		return
	}
	l.useArchive(ctx, func(pass *archivePass) {
		err := l.copyToArchive(ctx)
		if ctx.Err() == nil && !errors.Is(err, boltstore.ErrClosed) {
			l.noteArchive(pass, err)
		}
	})
}

// coverSealed takes a checkpoint once a sealed file has waited for one, because only a file that a checkpoint covers is
// copied, and dropped: where little is written the next one may be days away. Where much is written one comes by
// itself, and a checkpoint for each file would write the pages of the state more often than need be.
func (l *Ledger) coverSealed() error {
	last := time.Unix(0, l.counters.lastCheckpoint.Load())
	if time.Since(last) < l.options.sealedPatience || len(l.store.UncoveredBlocks()) == 0 {
		return nil
	}
	return l.flush()
}

var errArchiveHangs = errors.New("the archive has not answered for minutes; does its file system hang?")

func (l *Ledger) copyToArchive(ctx context.Context) error {
	a, err := l.openArchive(ctx)
	if err != nil {
		return err
	}
	archived := uint64(0)
	if entries := a.Entries(); len(entries) > 0 {
		archived = entries[len(entries)-1].Number
		if err := a.Confirmed(archived); err != nil { // so that one that has gone away is noticed at once
			return err
		}
		l.archiver.answers.Add(1)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	sealed := l.store.SealedBlocks()
	if l.archiver.checked == 0 {
		// Files bear the hash of the one before, so that of those which both have the last one speaks for all. The
		// archive may be that of a ledger of which this one is an old copy: then they differ from some file on.
		for len(sealed) > 1 && sealed[1].Number <= archived {
			sealed = sealed[1:]
		}
	}
	for _, f := range sealed {
		if f.Number <= l.archiver.checked {
			continue
		}
		if err := l.copyOne(ctx, a, f.Number); err != nil {
			return err
		}
		l.archiver.checked = f.Number
		l.archiver.answers.Add(1)
	}
	if l.archiver.refused > 0 { // it stays a problem until the file is back
		if err := a.Confirmed(l.archiver.refused); err != nil {
			return err
		}
		l.archiver.refused = 0
	}
	return nil
}

func (l *Ledger) copyOne(ctx context.Context, a *archive.Archive, number uint64) (err error) {
	source, err := l.store.SealedBlockFile(number)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	return a.Add(ctx, number, source)
}

// noteArchive counts what is archived and what is not, and what a pass came to.
func (l *Ledger) noteArchive(pass *archivePass, failed error) {
	s := &l.archiver.stats
	l.archiver.mu.Lock()
	defer l.archiver.mu.Unlock()
	pass.over = true
	s.Directory, s.WaitingFiles, s.WaitingBytes = l.options.Archive, 0, 0
	if a := l.archiver.opened; a != nil {
		s.Files, s.Bytes = 0, 0
		for _, e := range a.Entries() {
			s.Files, s.Bytes, s.Last = s.Files+1, s.Bytes+uint64(e.Size), e.Last
		}
	}
	for _, f := range l.store.Droppable(math.MaxUint64) { // those that no checkpoint covers wait as well
		if f.Number > l.archiver.checked {
			s.WaitingFiles, s.WaitingBytes = s.WaitingFiles+1, s.WaitingBytes+uint64(f.Size)
		}
	}
	if failed == nil {
		if s.Problem != "" {
			l.options.Logger.Info("the archive takes files again", "directory", s.Directory)
		}
		s.Problem, s.FailingSince = "", time.Time{}
		return
	}
	l.setArchiveProblem(failed)
}

// noteSilence notes that the archive hangs if a pass is under way and the archive has answered no more often than
// when this was asked last.
func (l *Ledger) noteSilence(pass *archivePass) {
	l.archiver.mu.Lock()
	defer l.archiver.mu.Unlock()
	answers := l.archiver.answers.Load()
	if !pass.over && answers == pass.answers {
		l.setArchiveProblem(errArchiveHangs)
	}
	pass.answers = answers
}

// setArchiveProblem needs the lock of the counters.
func (l *Ledger) setArchiveProblem(failed error) {
	s := &l.archiver.stats
	s.Failures++
	if s.Problem == "" {
		s.FailingSince = time.Now()
	}
	// The same problem comes back with each pass, and must not fill the log.
	if s.Problem != failed.Error() {
		l.options.Logger.Error("the archive takes or confirms a file no longer; writes go on, and retention "+
			"removes nothing that is not archived", "error", failed)
	}
	s.Problem = failed.Error()
}

// archiveStats returns what is known of the archive; nil for none.
func (l *Ledger) archiveStats() *stats.Archive {
	if l.options.Archive == "" && !l.archiver.unnamed {
		return nil
	}
	l.archiver.mu.Lock()
	defer l.archiver.mu.Unlock()
	s := l.archiver.stats
	if l.archiver.unnamed { // which files it has is not known
		for _, f := range l.store.Droppable(l.source.Horizon.Load().Index()) {
			s.WaitingFiles, s.WaitingBytes = s.WaitingFiles+1, s.WaitingBytes+uint64(f.Size)
		}
	}
	s.Directory = l.options.Archive
	return &s
}

// confirmed returns how many of the first files the archive confirms at this moment; all of them where there is
// no archive, and none where it does not answer until the ledger is closed, or is not named.
func (l *Ledger) confirmed(numbers []uint64) int {
	if l.archiver.unnamed {
		return 0
	}
	if l.options.Archive == "" {
		return len(numbers)
	}
	n := 0
	ended := l.useArchive(l.stopping, func(pass *archivePass) {
		checked, _ := slices.BinarySearch(numbers, l.archiver.checked+1)
		if checked == 0 {
			return
		}
		err := l.archiver.opened.Confirm(numbers[:checked], func() bool {
			n++
			l.archiver.answers.Add(1)
			return l.stopping.Err() == nil
		})
		if err != nil && l.stopping.Err() == nil {
			l.archiver.refused = numbers[n]
			l.noteArchive(pass, err)
		}
	})
	if !ended { // n may change yet
		return 0
	}
	return n
}
