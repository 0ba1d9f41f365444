package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/stats"
)

// An archive that is full, read-only or away stops the removal of files, and nothing else: writes go on, and the
// counters, the log and the status say so.

// archiver copies sealed files to the archive. copying is held by the goroutine that uses the archive.
type archiver struct {
	copying sync.Mutex
	opened  *archive.Archive // nil until it could be opened
	checked uint64           // number of the last file that the archive has, as this ledger has it

	mu    sync.Mutex
	stats stats.Archive
}

// archiveIDName is the file in the data directory that has the id of its archive: another archive, or the empty
// directory below a file system that is not mounted, confirms nothing.
const archiveIDName = "ARCHIVE"

// archiveLoop copies files whenever some have been sealed, and tries again after a failure.
func (l *Ledger) archiveLoop() {
	defer l.loops.Done()
	if l.options.Archive == "" {
		return
	}
	timer := time.NewTicker(l.options.retainInterval)
	defer timer.Stop()
	for {
		l.archiveFiles(l.stopping)
		select {
		case <-timer.C:
		case <-l.archiveDue:
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
	}
}

// archiveFiles copies what is sealed and durable.
func (l *Ledger) archiveFiles(ctx context.Context) {
	l.archiver.copying.Lock()
	defer l.archiver.copying.Unlock()
	copied, err := l.copyToArchive(ctx)
	if ctx.Err() != nil || errors.Is(err, boltstore.ErrClosed) {
		return
	}
	l.noteArchive(err)
	if copied > 0 {
		signal(l.retainDue) // for files that waited for it
	}
}

// openArchive opens the archive, or makes it, once.
func (l *Ledger) openArchive() (*archive.Archive, error) {
	if a := l.archiver.opened; a != nil {
		return a, nil
	}
	id, err := os.ReadFile(l.archiveIDPath())
	if errors.Is(err, fs.ErrNotExist) {
		if err = l.createArchive(); err == nil {
			id, err = os.ReadFile(l.archiveIDPath())
		}
	}
	if err != nil {
		return nil, err
	}
	a, err := archive.Open(l.options.Archive, strings.TrimSpace(string(id)))
	if errors.Is(err, archive.ErrOther) {
		err = fmt.Errorf("%w; remove %s to begin with this one", err, l.archiveIDPath())
	}
	if err == nil {
		l.archiver.opened = a
	}
	return a, err
}

func (l *Ledger) archiveIDPath() string { return filepath.Join(l.options.Dir, archiveIDName) }

// createArchive makes the archive, or takes over the one that is there, and notes its id.
func (l *Ledger) createArchive() error {
	id := ""
	a, err := archive.Open(l.options.Archive, "")
	switch {
	case err == nil:
		id = a.ID()
	case errors.Is(err, archive.ErrNone):
		if id, err = archive.Create(l.options.Archive); err != nil {
			return err
		}
	default:
		return err
	}
	return l.directory.WriteFile(archiveIDName, []byte(id+"\n"))
}

func (l *Ledger) copyToArchive(ctx context.Context) (copied int, err error) {
	a, err := l.openArchive()
	if err != nil {
		return 0, err
	}
	archived := uint64(0)
	if entries := a.Entries(); len(entries) > 0 {
		archived = entries[len(entries)-1].Number
		if err := a.Confirmed(archived); err != nil { // so that one that has gone away is noticed at once
			return 0, err
		}
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
			return copied, err
		}
		l.archiver.checked = f.Number
		copied++
	}
	return copied, nil
}

func (l *Ledger) copyOne(ctx context.Context, a *archive.Archive, number uint64) (err error) {
	source, err := l.store.SealedBlockFile(number)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	return a.Add(ctx, number, source)
}

// noteArchive counts what is archived and what is not, and what the last try gave.
func (l *Ledger) noteArchive(failed error) {
	s := &l.archiver.stats
	l.archiver.mu.Lock()
	defer l.archiver.mu.Unlock()
	s.Directory, s.WaitingFiles, s.WaitingBytes = l.options.Archive, 0, 0
	if a := l.archiver.opened; a != nil {
		s.Files, s.Bytes = 0, 0
		for _, e := range a.Entries() {
			s.Files, s.Bytes, s.Last = s.Files+1, s.Bytes+uint64(e.Size), e.Last
		}
	}
	for _, f := range l.store.SealedBlocks() {
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
	s.Failures++
	if s.Problem == "" {
		s.FailingSince = time.Now()
	}
	if s.Problem != failed.Error() {
		l.options.Logger.Error("a file could not be copied to the archive; writes go on, and retention removes "+
			"nothing that is not archived", "error", failed)
	}
	s.Problem = failed.Error()
}

// archiveStats returns what is known of the archive; nil for none.
func (l *Ledger) archiveStats() *stats.Archive {
	if l.options.Archive == "" {
		return nil
	}
	l.archiver.mu.Lock()
	defer l.archiver.mu.Unlock()
	s := l.archiver.stats
	s.Directory = l.options.Archive
	return &s
}

// confirmed returns how many of the first files the archive confirms at this moment; all of them where there is
// no archive.
func (l *Ledger) confirmed(numbers []uint64) int {
	if l.options.Archive == "" {
		return len(numbers)
	}
	l.archiver.copying.Lock()
	defer l.archiver.copying.Unlock()
	a := l.archiver.opened
	if a == nil {
		return 0
	}
	for i, number := range numbers {
		if number > l.archiver.checked || a.Confirmed(number) != nil {
			return i
		}
	}
	return len(numbers)
}
