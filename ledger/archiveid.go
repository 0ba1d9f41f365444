package ledger

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seqledger/seqledger/internal/private"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
)

// archiveIDPath returns the path of the file that holds the id of the ledger's archive. Another archive, or the empty
// mount point of a file system, has another id and confirms nothing. While the file exists, no block file is dropped
// that is not in that archive, whatever the options say.
func (l *Ledger) archiveIDPath() string { return filepath.Join(l.options.Dir, datadir.ArchiveName) }

// archiveID reads the id of the archive.
func (l *Ledger) archiveID() (string, error) {
	content, err := os.ReadFile(l.archiveIDPath())
	if err != nil {
		return "", err
	}
	id, err := parseArchiveID(content)
	if err != nil {
		err = fmt.Errorf("%s: %w; write the id into it that the first line of INDEX in the archive has, and a "+
			"newline, or remove it to begin with the archive that is given", l.archiveIDPath(), err)
	}
	return id, err
}

// parseArchiveID takes the one form that the file has. Without an id any archive would do.
func parseArchiveID(content []byte) (string, error) {
	id := strings.TrimSuffix(string(content), "\n")
	raw, err := hex.DecodeString(id)
	if err != nil || len(raw) != 16 || string(content) != hex.EncodeToString(raw)+"\n" {
		return "", fmt.Errorf("%w: it is not the id of an archive, 32 hex digits", machine.ErrCorrupt)
	}
	return id, nil
}

// findArchive looks whether the ledger has an archive that this start does not name. A forgotten flag must not remove
// history that the operator means to keep.
func (l *Ledger) findArchive() error {
	if l.options.Archive != "" {
		return nil
	}
	_, err := os.Stat(l.archiveIDPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("id of the archive: %w", err)
	}
	if l.options.EndArchive {
		l.options.Logger.Warn("the archive is given up: from now on retention removes files that are in no archive",
			"removed", l.archiveIDPath())
		return l.directory.RemoveFile(datadir.ArchiveName)
	}
	l.archiver.unnamed = true
	s := &l.archiver.stats
	s.Problem = fmt.Sprintf("%s says that this ledger has an archive, and none is given: retention removes nothing; "+
		"name the archive (serve --archive DIR), or give it up (serve --archive none)", l.archiveIDPath())
	s.FailingSince = time.Now()
	l.options.Logger.Warn(s.Problem)
	return nil
}

// openArchive opens the archive, or makes it, once.
func (l *Ledger) openArchive(ctx context.Context) (*archive.Archive, error) {
	if a := l.archiver.opened; a != nil {
		return a, nil
	}
	id, err := l.archiveID()
	if errors.Is(err, fs.ErrNotExist) {
		if err = l.createArchive(ctx); err == nil {
			id, err = l.archiveID()
		}
	}
	if err != nil {
		return nil, err
	}
	a, err := archive.Open(archive.Directory(l.options.Archive), id)
	if errors.Is(err, archive.ErrOther) {
		err = fmt.Errorf("%w; remove %s to begin with this one", err, l.archiveIDPath())
	}
	if err == nil {
		private.Narrow(l.options.Logger, l.options.Archive)
		l.archiver.opened = a
	}
	return a, err
}

// createArchive creates the archive, or adopts an existing one, and stores its id.
func (l *Ledger) createArchive(ctx context.Context) error {
	id := ""
	a, err := archive.Open(archive.Directory(l.options.Archive), "")
	switch {
	case err == nil:
		id = a.ID()
	case errors.Is(err, archive.ErrNone):
		if id, err = archive.Create(archive.Directory(l.options.Archive), rand.Reader); err != nil {
			return err
		}
	default:
		return err
	}
	if ctx.Err() != nil { // the data directory may be another process's by now
		return context.Cause(ctx)
	}
	// Noted last, so that a crash before it leaves an archive that the next start takes over.
	return l.directory.WriteFile(datadir.ArchiveName, []byte(id+"\n"))
}
