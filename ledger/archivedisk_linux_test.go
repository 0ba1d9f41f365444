package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/ledger/archive"
)

// TestArchiveOnARealDisk: the faults of a real file system, which is full, or mounted read-only.
func TestArchiveOnARealDisk(t *testing.T) {
	t.Parallel()
	t.Run("full", func(t *testing.T) {
		t.Parallel()
		disk := archiveDisk(t)
		junk := filepath.Join(disk, "junk")
		archiveFault(t, mustMkdir(t, disk), func(t *testing.T, _ string) {
			t.Helper()
			var room syscall.Statfs_t
			mustDo(t, syscall.Statfs(disk, &room))
			const left = 16 << 10 // less than a block file
			mustDo(t, os.WriteFile(junk, make([]byte, int64(room.Bavail)*room.Bsize-left), 0o600))
		}, func(t *testing.T, _ string) {
			t.Helper()
			mustDo(t, os.Remove(junk))
		})
	})
	t.Run("read-only", func(t *testing.T) {
		t.Parallel()
		disk := archiveDisk(t)
		remount := func(flags uintptr) func(t *testing.T, _ string) {
			return func(t *testing.T, _ string) {
				t.Helper()
				mustDo(t, syscall.Mount("seqledger-test", disk, "tmpfs", syscall.MS_REMOUNT|flags, "size=8m"))
			}
		}
		archiveFault(t, mustMkdir(t, disk), remount(syscall.MS_RDONLY), remount(0))
	})
}

// archiveDisk mounts a small file system.
func archiveDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount the small file system of this test's archive: run it with sudo")
	}
	disk := t.TempDir()
	if err := syscall.Mount("seqledger-test", disk, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("no file system can be mounted here for this test's archive: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return disk
}

func mustMkdir(t *testing.T, disk string) string {
	t.Helper()
	dir := filepath.Join(disk, "archive")
	mustDo(t, os.Mkdir(dir, 0o700))
	return dir
}

// TestArchiveThatHangs: a pipe in place of FORMAT never answers, like a file system whose server is gone. Writes
// go on, the status tells, whoever asked the archive, and Close returns; then the archive is as it was.
func TestArchiveThatHangs(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), t.TempDir()
	l := openRetaining(t, dir, func(o *Options) {
		o.Archive, o.archivePatience = archive.Directory(to), time.Millisecond
	})
	l.fill(1 << 19)
	l.archiveAll()
	index := filepath.Join(filepath.Dir(archivedBlocks(t, to)), "FORMAT")
	archived := l.Stats().Archive.Files
	mustDo(t, errors.Join(os.Rename(index, index+".away"), syscall.Mkfifo(index, 0o600)))
	asked := make(chan int, 1)
	go func() { asked <- l.confirmed(l.store.SealedBlocks()[:1]) }() // as retention does
	l.await("the hang to be told", func() bool {
		s := l.Stats().Archive
		return strings.Contains(s.Problem, "does its file system hang") && !s.FailingSince.IsZero()
	})
	l.fill(3 << 20)
	mustDo(t, l.Close())
	if n, dropped := <-asked, l.Stats().DroppedFiles; n != 0 || dropped != 0 {
		t.Errorf("%d files are confirmed, %d were dropped", n, dropped)
	}

	release, err := os.OpenFile(index, os.O_WRONLY, 0) // the file system answers
	mustDo(t, err)
	mustDo(t, release.Close())
	l.archiver.copying <- struct{}{} // the call has ended
	mustDo(t, errors.Join(os.Remove(index), os.Rename(index+".away", index)))
	l = openArchiving(t, dir, to)
	l.archiveAll()
	if s := l.Stats().Archive; s.Files <= archived {
		t.Errorf("the archive has %d files, it had %d", s.Files, archived)
	}
	verifyArchive(t, to)
	l.closeAndAudit()
}
