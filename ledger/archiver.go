package ledger

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/stats"
)

// An archive that is full, read-only or missing stops the removal of files and nothing else: writes continue, and the
// counters, the log and the status report it. An archive on a file system that hangs, such as one on a network, has the
// same effect: its calls may never return, so every wait for them reports that, and ends with the ledger.

// archiver copies sealed files and states to the archive, and beside them the log.
type archiver struct {
	archiveUse // of sealed files and states

	log    logShipper
	opened *archive.Archive // nil until it could be opened
	mark   atomic.Pointer[archive.Mark]
	states stateShipper
	yield  atomic.Pointer[context.CancelCauseFunc] // of a state that is being copied; nil for none

	mu    sync.Mutex
	stats stats.Archive // without what failed
	// unnamed says that the ledger has an archive that Options.Archive does not name. It is constant once Open has
	// returned.
	unnamed bool
}

func (a *archiver) init() {
	a.copying, a.log.copying = make(chan struct{}, 1), make(chan struct{}, 1)
	a.log.wake, a.log.moved = make(chan struct{}, 1), make(chan struct{})
}

// archiveUse is one of those who use the archive. There is something in copying while its goroutine does.
type archiveUse struct {
	copying chan struct{} // capacity 1; not a mutex, so that waiting for it can end with a context
	answers atomic.Uint64 // how often the archive has answered, or taken a part of a file

	// Guarded by archiver.mu.

	failures uint64
	problem  string // of the last try; empty if it succeeded
	since    time.Time
	told     time.Time // when a problem was logged last
}

// archivePass is one use of the archive. It is guarded by archiver.mu.
type archivePass struct {
	answers uint64 // as of the last look at them
	over    bool   // its result is recorded, so that later silence is not taken for a hang
}

// useArchive runs f once no other use of the archive is under way, and tells whether f has ended. It waits for that
// until ctx ends, and notes when the archive does not answer.
func (l *Ledger) useArchive(ctx context.Context, u *archiveUse, f func(pass *archivePass)) (ended bool) {
	pass := &archivePass{answers: u.answers.Load()}
	slow := time.NewTicker(l.options.archiveSilence())
	defer slow.Stop()
	free, done := u.copying, make(chan struct{})
	for {
		select {
		case free <- struct{}{}:
			free = nil // f is begun once
			// Ends with f. If the file system hangs, f may never return, and the goroutine is not joined; after such a
			// call f does nothing more once its context has ended.
			go func() {
				defer close(done)
				defer func() { <-u.copying }()
				f(pass)
			}()
		case <-done:
			return true
		case <-slow.C:
			l.noteSilence(u, pass)
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
	l.useArchive(ctx, &l.archiver.archiveUse, func(pass *archivePass) {
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
	sealed := l.store.SealedBlocks() // before the ledger's id is read, so that none is of an epoch that begins then
	a, err := l.openArchive(ctx)
	if a == nil || err != nil {
		return err
	}
	if err := a.Check(ctx); err != nil { // so that one that has gone away is noticed at once
		return err
	}
	l.archiver.answers.Add(1)
	if err := l.copySealed(ctx, a, sealed); err != nil {
		return err
	}
	return l.copyState(ctx, a)
}

// copySealed copies the sealed files that the archive does not have.
func (l *Ledger) copySealed(ctx context.Context, a *archive.Archive, sealed []blockfile.SealedFile) error {
	for i := range sealed {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if a.Has(&sealed[i]) {
			continue
		}
		if err := l.copyOne(ctx, a, &sealed[i]); err != nil {
			return err
		}
		l.archiver.answers.Add(1)
	}
	return nil
}

func (l *Ledger) copyOne(ctx context.Context, a *archive.Archive, f *blockfile.SealedFile) (err error) {
	source, err := l.store.SealedBlockFile(f.Number)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	return a.Add(ctx, f, readFile{source, &l.archiver.answers})
}

// archiveSilence is for how long a target may take nothing before it counts as one that hangs.
func (o *Options) archiveSilence() time.Duration { return slowFactor * o.archivePatience }

// readFile is a file that is copied. A target that takes its bytes answers, however slowly.
type readFile struct {
	blockfile.File

	reads *atomic.Uint64
}

// ReadAt implements io.ReaderAt.
func (f readFile) ReadAt(b []byte, at int64) (int, error) {
	f.reads.Add(1)
	return f.File.ReadAt(b, at)
}

// noteArchive counts what is archived and what is not, and notes what a pass came to.
func (l *Ledger) noteArchive(pass *archivePass, failed error) {
	l.countArchived()
	l.noteUse(&l.archiver.archiveUse, pass, failed)
}

func (l *Ledger) countArchived() {
	s := &l.archiver.stats
	l.archiver.mu.Lock()
	defer l.archiver.mu.Unlock()
	a := l.archiver.opened
	if a != nil {
		s.Files, s.Bytes, s.Last = a.Count()
	}
	s.WaitingFiles, s.WaitingBytes = 0, 0
	for _, f := range l.store.Droppable(math.MaxUint64) { // those that no checkpoint covers wait as well
		if a == nil || !a.Has(&f) {
			s.WaitingFiles, s.WaitingBytes = s.WaitingFiles+1, s.WaitingBytes+uint64(f.Size)
		}
	}
}

// noteUse notes what a pass came to.
func (l *Ledger) noteUse(u *archiveUse, pass *archivePass, failed error) {
	l.archiver.mu.Lock()
	defer l.archiver.mu.Unlock()
	pass.over = true
	if failed != nil {
		l.setArchiveProblem(u, failed)
		return
	}
	if u.problem != "" {
		l.options.Logger.Info("the archive takes files again", "target", l.options.Archive.String())
	}
	u.problem, u.since = "", time.Time{}
}

// noteSilence notes that the archive hangs if a pass is under way and the archive has answered no more often than
// when this was asked last.
func (l *Ledger) noteSilence(u *archiveUse, pass *archivePass) {
	l.archiver.mu.Lock()
	defer l.archiver.mu.Unlock()
	answers := u.answers.Load()
	if !pass.over && answers == pass.answers {
		l.setArchiveProblem(u, errArchiveHangs)
	}
	pass.answers = answers
}

// setArchiveProblem needs the lock of the counters.
func (l *Ledger) setArchiveProblem(u *archiveUse, failed error) {
	u.failures++
	if u.problem == "" {
		u.since = time.Now()
	}
	// The same problem comes back with each pass, often in other words, and must not fill the log.
	if now := time.Now(); u.problem == "" || u.problem != failed.Error() && now.Sub(u.told) > time.Minute {
		u.told = now
		l.options.Logger.Error("the archive takes or confirms a file no longer; writes go on, and retention "+
			"removes nothing that is not archived", "error", failed)
	}
	u.problem = failed.Error()
	if u == &l.archiver.log.archiveUse {
		l.archiver.log.tell()
	}
}

// archiveStats returns what is known of the archive; nil for none.
func (l *Ledger) archiveStats() *stats.Archive {
	if l.options.Archive == nil && !l.archiver.unnamed {
		return nil
	}
	l.archiver.mu.Lock()
	defer l.archiver.mu.Unlock()
	s := l.archiver.stats
	for _, u := range []*archiveUse{&l.archiver.archiveUse, &l.archiver.log.archiveUse} {
		if s.Failures += u.failures; s.Problem == "" && u.problem != "" {
			s.Problem, s.FailingSince = u.problem, u.since
		}
	}
	if l.archiver.unnamed { // which files it has is not known
		for _, f := range l.store.Droppable(l.source.Horizon.Load().Index()) {
			s.WaitingFiles, s.WaitingBytes = s.WaitingFiles+1, s.WaitingBytes+uint64(f.Size)
		}
	} else {
		s.Target = l.options.Archive.String()
	}
	return &s
}

// confirmed returns how many of the first files the archive confirms at this moment; all of them where there is
// no archive, and none where it does not answer until the ledger is closed, or is not named.
func (l *Ledger) confirmed(files []blockfile.SealedFile) int {
	if l.archiver.unnamed {
		return 0
	}
	if l.options.Archive == nil {
		return len(files)
	}
	n := 0
	ended := l.useArchive(l.stopping, &l.archiver.archiveUse, func(pass *archivePass) {
		a, copied := l.archiver.opened, 0
		for a != nil && copied < len(files) && a.Has(&files[copied]) {
			copied++
		}
		if copied == 0 {
			return
		}
		confirmed, err := a.Confirm(l.stopping, files[:copied])
		l.archiver.answers.Add(1)
		if l.stopping.Err() == nil {
			n = confirmed
		}
		if err != nil && l.stopping.Err() == nil {
			l.noteArchive(pass, err)
		}
	})
	if !ended { // n may change yet
		return 0
	}
	return n
}
