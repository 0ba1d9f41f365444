package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/seqledger/seqledger/internal/private"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
)

// archiveMarkPath returns the path of the file with the mark of the ledger's archive. While it exists, no block file is
// dropped that is not in that archive, whatever the options say.
func (l *Ledger) archiveMarkPath() string { return filepath.Join(l.options.Dir, datadir.ArchiveName) }

// archiveMark reads the mark; a zero one if there is none.
func (l *Ledger) archiveMark() (m archive.Mark, err error) {
	content, err := os.ReadFile(l.archiveMarkPath())
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		m, err = archive.ParseMark(content)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w; write into it the id of the archive and that of the ledger, as the first line of "+
			"FORMAT in the archive has them, or remove it to begin with the archive that is given",
			l.archiveMarkPath(), err)
	}
	return m, err
}

// findArchive looks whether the ledger has an archive that this start does not name. A forgotten flag must not remove
// history that the operator means to keep.
func (l *Ledger) findArchive() error {
	if l.options.Archive != nil {
		return nil
	}
	_, err := os.Stat(l.archiveMarkPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("id of the archive: %w", err)
	}
	if l.options.EndArchive {
		l.options.Logger.Warn("the archive is given up: from now on retention removes files that are in no archive",
			"removed", l.archiveMarkPath())
		return l.directory.RemoveFile(datadir.ArchiveName)
	}
	l.archiver.unnamed = true
	s := &l.archiver.archiveUse
	s.problem = fmt.Sprintf("%s says that this ledger has an archive, and none is given: retention removes nothing; "+
		"name the archive (serve --archive TARGET), or give it up (serve --archive none)", l.archiveMarkPath())
	s.since = time.Now()
	l.options.Logger.Warn(s.problem)
	return nil
}

// openArchive opens the archive once for each ledger id, or makes it. It returns nil while the ledger has no id.
func (l *Ledger) openArchive(ctx context.Context) (*archive.Archive, error) {
	o := archive.Options{Random: rand.Reader}
	err := l.StoredView(ctx, func(v machine.View) error {
		if v.Created() {
			o.Ledger, o.Parents = v.LedgerID(), v.ParentIDs()
		}
		return nil
	})
	if err != nil || o.Ledger == 0 {
		return nil, err
	}
	if a := l.archiver.opened; a != nil && a.Mark().Ledger == o.Ledger {
		return a, nil
	}
	if o.Mark, err = l.archiveMark(); err != nil {
		return nil, err
	}
	a, err := archive.Open(ctx, l.options.Archive, o)
	if errors.Is(err, archive.ErrOther) {
		err = fmt.Errorf("%w; remove %s to begin with this one", err, l.archiveMarkPath())
	}
	if err == nil && ctx.Err() != nil { // the data directory may be another process's by now
		err = context.Cause(ctx)
	}
	if err == nil && a.Mark() != o.Mark {
		// Noted last, so that a crash before it leaves an archive that the next start takes over.
		err = l.directory.WriteFile(datadir.ArchiveName, a.Mark().Encode())
	}
	if err != nil {
		return nil, err
	}
	if d, is := l.options.Archive.(interface{ Path() string }); is {
		private.Narrow(l.options.Logger, d.Path())
	}
	mark := a.Mark()
	l.archiver.opened = a
	l.archiver.mark.Store(&mark)
	return a, nil
}
