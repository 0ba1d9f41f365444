package ledger_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
)

// smallDisk mounts a file system with room for one log segment and some more.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount the small file system that this test fills: run it with sudo")
	}
	disk := t.TempDir()
	if err := syscall.Mount("seqledger-test", disk, "tmpfs", 0, "size=80m"); err != nil {
		t.Skipf("no file system of its own can be mounted here, which this test fills: %v", err)
	}
	t.Cleanup(func() {
		check.Is(t, syscall.Unmount(disk, syscall.MNT_DETACH), nil)
	})
	return disk
}

// TestFault_FullDisk fills a real file system at several points of a ledger's
// life: writes get short, files cannot grow, names cannot be made. The ledger
// stops and says so; with room again everything acknowledged is there.
func TestFault_FullDisk(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t)
	failed := 0
	for _, leave := range []int{0, 4 << 10, 30 << 10, 90 << 10, 200 << 10} {
		dir := filepath.Join(disk, fmt.Sprint("data-", leave))
		run := runFaultChild(t, dir, nil, fmt.Sprint(faultBallastEnv, "=", leave))
		t.Logf("%d bytes left: exit code %d with %d acknowledged: %s", leave, run.code, len(run.acknowledged), run.said)
		if run.code != 0 {
			failed++
			if !strings.Contains(run.said, syscall.ENOSPC.Error()) || !strings.Contains(run.said, dir) {
				t.Errorf("the process says %q, which names no full disk and no file", run.said)
			}
		}
		// What the operator does.
		must.Do(t, os.Remove(filepath.Join(disk, ballastName)))
		run.wantKept(t, dir)
		must.Do(t, os.RemoveAll(dir))
	}
	if failed == 0 {
		t.Error("the disk was never full: this test tests nothing")
	}
}

// TestFault_FullDiskStopsReads: after a write of the storage has failed, nothing is
// answered any more, and nothing is acknowledged even when there is room again. Only
// a start finds out what the disk has of the entry that was being written.
func TestFault_FullDiskStopsReads(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t)
	dir, ballast := filepath.Join(disk, "data"), filepath.Join(disk, ballastName)
	l := open(t, faultOptions(dir))
	run := faultRun{acknowledged: map[uint64]uint64{}}
	failed := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, ledger.ErrFailed) || !errors.Is(err, syscall.ENOSPC) || verify.IsDamage(err) {
			t.Errorf("%s: %v, want ErrFailed for want of room", what, err)
		}
	}
	read := func() error { return l.View(t.Context(), func(machine.View) error { return nil }) }
	for sequence := uint64(1); sequence <= faultWrites; sequence++ {
		if sequence == 5 {
			must.Do(t, fillDisk(ballast, "0"))
		}
		out, err := l.Write(t.Context(), faultWrite(sequence))
		if err != nil {
			failed("the write", err)
			break
		}
		run.acknowledged[sequence] = out.Receipt.Index
	}
	select {
	case <-l.Failed():
	case <-t.Context().Done():
		t.Fatalf("the ledger goes on with a full disk: %d writes", len(run.acknowledged))
	}
	failed("a read", read())
	must.Do(t, os.Remove(ballast))
	failed("a read with room again", read())
	_, err := l.Write(t.Context(), faultWrite(uint64(len(run.acknowledged))+1))
	failed("a write with room again", err)
	_ = l.Close() // tells the failure once more
	run.wantKept(t, dir)
}

// TestFault_NoRoomForALedger: a disk without room for the log makes no ledger,
// and one with room does.
func TestFault_NoRoomForALedger(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t)
	ballast, dir := filepath.Join(disk, ballastName), filepath.Join(disk, "data")
	must.Do(t, fillDisk(ballast, fmt.Sprint(1<<20)))
	_, err := ledger.Open(t.Context(), faultOptions(dir))
	if err == nil || !strings.Contains(err.Error(), syscall.ENOSPC.Error()) || verify.IsDamage(err) {
		t.Errorf("Open on a full disk: %v", err)
	}
	must.Do(t, os.Remove(ballast))
	faultRun{}.wantKept(t, dir)
}

// TestFault_ReadOnlyFileSystem: a start on a file system that became read-only
// is refused for that reason, which is no damage.
func TestFault_ReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t)
	dir := filepath.Join(disk, "data")
	run := runFaultChild(t, dir, nil)
	must.Do(t, syscall.Mount("", disk, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	_, err := ledger.Open(t.Context(), faultOptions(dir))
	if err == nil || !strings.Contains(err.Error(), syscall.EROFS.Error()) || verify.IsDamage(err) {
		t.Errorf("Open on a read-only file system: %v", err)
	}
	must.Do(t, syscall.Mount("", disk, "", syscall.MS_REMOUNT, ""))
	run.wantKept(t, dir)
}
