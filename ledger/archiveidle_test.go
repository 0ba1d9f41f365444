package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/verify"
)

// neverCheckpoints opens a ledger with an archive that takes no checkpoint by itself, however much is written.
func neverCheckpoints(t *testing.T, dir, to string, patience time.Duration) *retainingLedger {
	t.Helper()
	return openRetaining(t, dir, func(o *Options) {
		o.Archive, o.CheckpointBytes, o.LogBytes = archive.Directory(to), 1<<30, 1<<30
		o.retainInterval, o.sealedPatience = 10*time.Millisecond, patience
	})
}

// TestSealedFilesWaitForNoWrites: a sealed file gets into the archive and is dropped, although so little is written
// that no checkpoint covers it.
func TestSealedFilesWaitForNoWrites(t *testing.T) {
	t.Parallel()
	to := t.TempDir()
	l := neverCheckpoints(t, t.TempDir(), to, time.Nanosecond)
	l.fill(5 << 20)
	l.awaitDrop()
	l.await("every sealed file to be archived", func() bool {
		s := l.Stats().Archive
		return s.WaitingFiles == 0 && s.Files > 0
	})
	dropped := l.Stats().DroppedFiles // before the archive is read, which goes on
	if report := verifyArchive(t, to); report.Files < dropped {
		t.Errorf("%d files were dropped, the archive has %+v", dropped, report)
	}
	l.closeAndAudit()
}

// TestSealedFilesCountAsWaiting: a file that no checkpoint covers waits for the archive like every other one.
func TestSealedFilesCountAsWaiting(t *testing.T) {
	t.Parallel()
	l := neverCheckpoints(t, t.TempDir(), t.TempDir(), time.Hour)
	l.fill(1 << 20)
	l.archiveFiles(t.Context())
	sealed := uint64(len(l.files()) - 1)
	if s := l.Stats().Archive; s.WaitingFiles != sealed || s.WaitingBytes == 0 || s.Files != 0 {
		t.Errorf("%d files are sealed and none is covered; the archive says %+v", sealed, s)
	}
	l.archiveAll()
	if s := l.Stats().Archive; s.Files != sealed {
		t.Errorf("%d files are sealed; the archive says %+v", sealed, s)
	}
	l.closeAndAudit()
}

// TestArchiveIsNotForgotten: a start that does not name the archive of the ledger removes no file, and says so.
func TestArchiveIsNotForgotten(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), t.TempDir()
	l := openArchiving(t, dir, to)
	l.fill(1 << 19)
	l.archiveAll()
	mustDo(t, l.Close())

	l = openRetaining(t, dir, nil)
	l.fill(4 << 20)
	mustDo(t, l.flush())
	mustDo(t, l.dropHistory())
	must.Equal(t, l.Stats().DroppedFiles, 0, "%d files were dropped, and no archive was asked")
	s := l.Stats().Archive
	if s == nil || !strings.Contains(s.Problem, datadir.ArchiveName) || s.FailingSince.IsZero() || s.WaitingFiles == 0 {
		t.Errorf("the archive is not missed: %+v", s)
	}
	l.closeAndAudit()

	// With the archive again nothing is missing in it.
	l = openArchiving(t, dir, to)
	l.archiveAll()
	mustDo(t, l.dropHistory())
	l.awaitDrop()
	dropped := l.Stats().DroppedFiles // before the archive is read, which goes on
	if report := verifyArchive(t, to); report.First != 1 || report.Files < dropped {
		t.Errorf("%d files were dropped, the archive has %+v", dropped, report)
	}
	l.closeAndAudit()
}

// TestArchivingEnds: an operator who gives the archive up says so once.
func TestArchivingEnds(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), t.TempDir()
	l := openArchiving(t, dir, to)
	l.fill(1 << 19)
	l.archiveAll()
	mustDo(t, l.Close())
	before := verifyArchive(t, to)

	l = openRetaining(t, dir, func(o *Options) { o.EndArchive = true })
	if s := l.Stats().Archive; s != nil {
		t.Errorf("the archive that was given up says %+v", s)
	}
	l.fill(4 << 20)
	l.awaitDrop()
	l.closeAndAudit()
	l = openRetaining(t, dir, nil)
	if s := l.Stats().Archive; s != nil {
		t.Errorf("at the next start the archive that was given up says %+v", s)
	}
	l.closeAndAudit()

	// The old archive lacks what was dropped since, and takes nothing behind the gap.
	l = openArchiving(t, dir, to)
	l.fill(1 << 19)
	mustDo(t, l.flush())
	l.archiveFiles(t.Context())
	if s := l.Stats().Archive; !strings.Contains(s.Problem, archive.ErrOther.Error()) {
		t.Errorf("an archive with a gap goes on: %+v", s)
	}
	l.closeAndAudit()
	if after := verifyArchive(t, to); after.Files != before.Files {
		t.Errorf("the archive had %d files, and has %d", before.Files, after.Files)
	}
	both := Options{Dir: t.TempDir(), Archive: archive.Directory(to), EndArchive: true}
	if _, err := Open(t.Context(), both); err == nil {
		t.Error("an archive is named and given up at once")
	}
}

// TestEmptyArchiveID: with a file ARCHIVE that lost its content no archive confirms anything, an empty one of another
// ledger neither.
func TestEmptyArchiveID(t *testing.T) {
	t.Parallel()
	dir, to, other := t.TempDir(), t.TempDir(), t.TempDir()
	l := openArchiving(t, dir, to)
	l.fill(3 << 20)
	l.archiveAll()
	l.awaitDrop()
	l.closeAndAudit()
	o := openArchiving(t, t.TempDir(), other)
	o.archiveFiles(t.Context())
	mustDo(t, o.Close())

	path := filepath.Join(dir, datadir.ArchiveName)
	whole, err := os.ReadFile(path)
	mustDo(t, err)
	mustDo(t, os.Truncate(path, 0))
	for _, archived := range []string{to, other} {
		l = openArchiving(t, dir, archived)
		l.fill(1 << 20)
		mustDo(t, l.flush())
		l.archiveFiles(t.Context())
		if s := l.Stats().Archive; !strings.Contains(s.Problem, path) || s.Files != 0 {
			t.Errorf("an archive is used without its id: %+v", s)
		}
		mustDo(t, l.dropHistory())
		check.Equal(t, l.Stats().DroppedFiles, 0, "%d files were dropped without an archive")
		l.closeAndAudit()
	}
	mustDo(t, os.WriteFile(path, whole, 0o600))
	l = openArchiving(t, dir, to)
	l.archiveAll()
	verifyArchive(t, to)
	l.closeAndAudit()
}

// TestVerifyNamesTheArchive: what is wrong with the archive is told as that, with what to do about it, and the
// directory is checked all the same.
func TestVerifyNamesTheArchive(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), t.TempDir()
	l := openArchiving(t, dir, to)
	l.fill(3 << 20)
	l.archiveAll()
	l.awaitDrop()
	l.closeAndAudit()
	if report, err := verify.Directory(t.Context(), dir, verify.Options{Archive: archive.Directory(to)}); err != nil ||
		len(report.Problems) != 0 || report.Dropped != 0 {
		t.Fatalf("with a sound archive: %+v, %v", report, err)
	}
	for what, damage := range map[string]func(path string) error{
		"missing": os.Remove,
		"header":  func(path string) error { return flipByte(path, 40) },
		"footer":  func(path string) error { return flipByte(path, -40) },
	} {
		for _, name := range []string{"0000000001-*", "0000000002-*"} {
			path := must.Get(filepath.Glob(filepath.Join(archivedBlocks(t, to), name)))(t)[0]
			whole, err := os.ReadFile(path)
			mustDo(t, errors.Join(err, damage(path)))
			report, err := verify.Directory(t.Context(), dir, verify.Options{Archive: archive.Directory(to)})
			mustDo(t, errors.Join(err, os.WriteFile(path, whole, 0o600)))
			if len(report.Problems) == 0 || report.Transactions == 0 {
				t.Errorf("%s of %s: %+v", what, name, report)
				continue
			}
			for _, p := range report.Problems {
				if !strings.Contains(p.What, "in the archive "+to) ||
					!strings.Contains(p.What, "seqledger archive verify") ||
					strings.Contains(p.What, "restore the data directory") {
					t.Errorf("%s of %s: %s: %s", what, name, p.Where, p.What)
				}
			}
		}
	}
}

func flipByte(path string, at int) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if at < 0 {
		at += len(b)
	}
	b[at] ^= 1
	return os.WriteFile(path, b, 0o600)
}
