package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/blockfile"
)

func openArchiving(t *testing.T, dir, to string) *retainingLedger {
	t.Helper()
	return openRetaining(t, dir, func(o *Options) { o.Archive = archive.Directory(to) })
}

// archiveAll waits until nothing waits for the archive.
func (l *retainingLedger) archiveAll() {
	l.Helper()
	must.Do(l, l.flush())
	l.archiveFiles(l.Context())
	// The ledger's own goroutine may be in the middle of the same, and slow.
	l.await("everything to be in the archive", func() bool {
		s := l.Stats().Archive
		return s.WaitingFiles == 0 && s.Problem == "" && s.Files > 0
	})
	signal(l.historyDue) // what the test has copied may be removed
}

func verifyArchive(t *testing.T, dir string) archive.Report {
	t.Helper()
	target := archive.Directory(dir)
	ids, err := archive.Ledgers(t.Context(), target)
	mustDo(t, err)
	must.Equal(t, len(ids), 1, "the archive has the ledgers %v", ids)
	report, err := archive.Verify(t.Context(), target, ids[0], nil)
	if err != nil || len(report.Problems) != 0 {
		t.Fatalf("the archive: %+v, %v", report, err)
	}
	return report
}

// Every file that is dropped is in the archive first, and together with what is kept they are the whole history.
func TestNothingIsDroppedThatIsNotArchived(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), t.TempDir()
	l := openArchiving(t, dir, to)
	values := longValues(5)
	l.set(1, values)
	for range 3 {
		l.fill(1 << 20)
	}
	l.archiveAll()
	l.awaitDrop()
	l.wantValues(values)
	dropped := l.Stats().DroppedFiles // before the archive is read, which goes on
	report := verifyArchive(t, to)
	if report.First != 1 || report.Files < dropped {
		t.Errorf("%d files were dropped, the archive has %+v", dropped, report)
	}
	l.closeAndAudit()
	// After a restart it goes on with the same archive.
	l = openArchiving(t, dir, to)
	l.fill(1 << 20)
	l.archiveAll()
	if more := verifyArchive(t, to); more.Files <= report.Files {
		t.Errorf("the archive has %d files, it had %d", more.Files, report.Files)
	}
	l.closeAndAudit()
}

// An archive that is away, read-only, exchanged or another ledger's stops the removal of files, not the writes, and
// says so; when it is back everything goes on.
func TestArchiveThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct{ begin, end func(t *testing.T, to string) }{
		"away": {
			func(t *testing.T, to string) { mustDo(t, os.Rename(to, to+".away")) },
			func(t *testing.T, to string) { mustDo(t, os.Rename(to+".away", to)) },
		},
		"not mounted": {
			func(t *testing.T, to string) { mustDo(t, errors.Join(os.Rename(to, to+".away"), os.Mkdir(to, 0o700))) },
			func(t *testing.T, to string) { mustDo(t, errors.Join(os.Remove(to), os.Rename(to+".away", to))) },
		},
		"exchanged": {
			func(t *testing.T, to string) {
				mustDo(t, errors.Join(os.Rename(to, to+".away"), os.Mkdir(to, 0o700)))
				ids, err := archive.Ledgers(t.Context(), archive.Directory(to+".away"))
				mustDo(t, err)
				_, err = archive.Open(t.Context(), archive.Directory(to),
					archive.Options{Ledger: ids[0], Random: rand.Reader})
				mustDo(t, err)
			},
			func(t *testing.T, to string) { mustDo(t, errors.Join(os.RemoveAll(to), os.Rename(to+".away", to))) },
		},
		"no file can be made": { // root may write to what is read-only
			func(t *testing.T, to string) {
				blocks := archivedBlocks(t, to)
				mustDo(t, errors.Join(os.Rename(blocks, blocks+".away"), os.WriteFile(blocks, nil, 0o600)))
			},
			func(t *testing.T, to string) {
				blocks := strings.TrimSuffix(archivedBlocks(t, to), ".away")
				mustDo(t, errors.Join(os.Remove(blocks), os.Rename(blocks+".away", blocks)))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := filepath.Join(t.TempDir(), "archive")
			mustDo(t, os.Mkdir(to, 0o700))
			archiveFault(t, to, fault.begin, fault.end)
		})
	}
}

// archiveFault expects that an archive with a fault stops the removal of files alone, and that it is told; and that
// everything goes on once the fault has ended.
func archiveFault(t *testing.T, to string, begin, end func(t *testing.T, to string)) {
	t.Helper()
	dir := t.TempDir()
	l := openArchiving(t, dir, to)
	l.fill(1 << 19)
	l.archiveAll()
	archived := l.Stats().Archive.Files
	begin(t, to)
	l.fill(3 << 20)
	mustDo(t, l.flush())
	l.archiveFiles(t.Context())
	s := l.Stats().Archive
	if s.Problem == "" || s.FailingSince.IsZero() || s.Failures == 0 || s.WaitingFiles == 0 ||
		s.WaitingBytes == 0 {
		t.Errorf("the fault is not told: %+v", s)
	}
	mustDo(t, l.dropHistory())
	if n := l.Stats().DroppedFiles; n > archived {
		t.Fatalf("%d files were dropped, %d are archived", n, archived)
	}
	end(t, to)
	l.archiveAll()
	if s := l.Stats().Archive; !s.FailingSince.IsZero() {
		t.Errorf("still failing: %+v", s)
	}
	mustDo(t, l.dropHistory())
	l.await("files to be dropped", func() bool { return l.Stats().DroppedFiles > archived })
	verifyArchive(t, to)
	l.closeAndAudit()
}

// archivedBlocks returns the folder with the files of the archive in a directory.
func archivedBlocks(t *testing.T, to string) string {
	t.Helper()
	found := must.Get(filepath.Glob(filepath.Join(to, "*", "blocks*")))(t)
	return found[len(found)-1]
}

// A copy that the archive has lost is told when retention asks for it, and is made again; newer files are copied.
func TestCopyThatIsLost(t *testing.T) {
	t.Parallel()
	to := t.TempDir()
	l := openArchiving(t, t.TempDir(), to)
	l.fill(1 << 19)
	l.archiveAll()
	name := must.Get(filepath.Glob(filepath.Join(archivedBlocks(t, to), "0000000001-*")))(t)[0]
	l.archiver.copying <- struct{}{} // so that the ledger's own goroutine makes no copy
	mustDo(t, os.Remove(name))
	l.fill(3 << 20)
	mustDo(t, l.flush())
	l.backups <- struct{}{}
	l.remove() // does not wait for the archive, because nothing is removed whatever that says
	<-l.backups
	a, first := l.archiver.opened, l.store.SealedBlocks()[:1]
	n, err := a.Confirm(t.Context(), first)
	if <-l.archiver.copying; n != 0 || err == nil || !strings.Contains(err.Error(), filepath.Base(name)) {
		t.Errorf("%d files are confirmed, and the first one is gone: %v", n, err)
	}
	l.archiveAll()
	l.awaitDrop()
	verifyArchive(t, to)
	l.closeAndAudit()
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	must.Do(t, err)
}

// An old copy of a ledger that goes on by itself does not take the archive of the other for its own, wherever their
// histories part.
func TestArchiveOfAnotherHistory(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), t.TempDir()
	l := openArchiving(t, dir, to)
	l.fill(1 << 19)
	l.archiveAll()
	mustDo(t, l.Close())
	copied := t.TempDir()
	mustDo(t, os.CopyFS(copied, os.DirFS(dir)))
	l = openArchiving(t, dir, to)
	l.fill(1 << 19)
	l.archiveAll()
	mustDo(t, l.Close())
	before := verifyArchive(t, to)

	other := openArchiving(t, copied, to)
	w := testWrite("another", 1, 20_000) // the histories part
	must.Get(other.Write(context.Background(), w))(t)
	other.fill(3 << 20)
	mustDo(t, other.flush())
	other.archiveFiles(t.Context())
	if s := other.Stats().Archive; !strings.Contains(s.Problem, archive.ErrOther.Error()) {
		t.Errorf("an old copy takes the archive: %+v", s)
	}
	mustDo(t, other.dropHistory())
	other.closeAndAudit()
	if after := verifyArchive(t, to); after.Files != before.Files {
		t.Errorf("the archive has %d files, it had %d", after.Files, before.Files)
	}
}

// TestSilenceBehindAPass: an archive that has nothing more to do does not hang, however late that is seen, and one that
// answers between two looks does not either.
func TestSilenceBehindAPass(t *testing.T) {
	t.Parallel()
	l := openArchiving(t, t.TempDir(), t.TempDir())
	l.fill(1 << 19)
	l.archiveAll()
	l.archiver.copying <- struct{}{} // no answer to the ledger's own goroutine comes between
	failures := func() uint64 { return l.Stats().Archive.Failures }
	pass := &archivePass{answers: l.archiver.answers.Load()}
	l.archiver.answers.Add(1)
	l.noteSilence(&l.archiver.archiveUse, pass)
	check.Equal(t, failures(), 0, "an answer counts as %d failures")
	l.noteSilence(&l.archiver.archiveUse, pass)
	check.Equal(t, failures(), 1, "no answer between two looks counts as %d failures")
	l.noteArchive(pass, nil)
	for range 2 {
		l.noteSilence(&l.archiver.archiveUse, pass)
	}
	check.Equal(t, failures(), 1, "the silence behind the end counts: %d failures")
	<-l.archiver.copying
	l.closeAndAudit()
}

// TestFilesAreOlderThanTheID: what is sealed once the ledger's id was read is left to the next pass, because an epoch
// may have begun between, and its files are not of the ledger with the earlier id.
func TestFilesAreOlderThanTheID(t *testing.T) {
	t.Parallel()
	target := &hookedTarget{Target: archive.Directory(t.TempDir())}
	l := openRetaining(t, t.TempDir(), func(o *Options) { o.Archive = target })
	l.fill(1 << 19)
	l.archiveAll()
	before := l.Stats().Archive.Files
	l.archiver.copying <- struct{}{} // the ledger's own goroutine does nothing meanwhile
	target.opened = func() {
		target.opened = nil
		l.fill(1 << 20)
		mustDo(t, l.flush())
	}
	mustDo(t, l.copyToArchive(t.Context()))
	files, _, _ := l.archiver.opened.Count()
	check.Equal(t, files, before, "the archive has %d files")
	<-l.archiver.copying
	l.closeAndAudit()
}

// hookedTarget calls opened, if it is there, when an object is opened.
type hookedTarget struct {
	archive.Target

	opened func()
}

func (h *hookedTarget) Open(ctx context.Context, name string) (blockfile.File, error) {
	if h.opened != nil {
		h.opened()
	}
	return h.Target.Open(ctx, name)
}
