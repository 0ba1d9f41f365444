package ledger_test

import (
	"syscall"
	"testing"
)

// These tests are those of faultcall_linux_test.go with a process that archives, drops history, and makes a backup.

var dropFaults = faultKind{run: runDropChild, writes: dropWrites, kept: wantDropped, bears: true, costly: true}

func TestFaultDrop_FailedWrite(t *testing.T) {
	t.Parallel()
	dropFaults.failCalls(t, "pwrite64", syscall.EIO, 150)
}

func TestFaultDrop_FailedWriteOfACopy(t *testing.T) { // to the archive and to the backup
	t.Parallel()
	dropFaults.failCalls(t, "write", syscall.EIO, 120)
}

func TestFaultDrop_FullDiskAtACopy(t *testing.T) {
	t.Parallel()
	dropFaults.failCalls(t, "write", syscall.ENOSPC, 120)
}

func TestFaultDrop_FailedSync(t *testing.T) {
	t.Parallel()
	dropFaults.failCalls(t, "fsync", syscall.EIO, 60)
}

func TestFaultDrop_FailedRead(t *testing.T) {
	t.Parallel()
	dropFaults.failCalls(t, "pread64", syscall.EIO, 200)
}

func TestFaultDrop_FailedOpen(t *testing.T) {
	t.Parallel()
	dropFaults.failCalls(t, "openat", syscall.EIO, 150)
}

func TestFaultDrop_NoDescriptors(t *testing.T) {
	t.Parallel()
	dropFaults.failCalls(t, "openat", syscall.EMFILE, 150)
}

func TestFaultDrop_FailedRemoval(t *testing.T) {
	t.Parallel()
	dropFaults.failCalls(t, "unlinkat", syscall.EIO, 15)
}

func TestFaultDrop_FailedRename(t *testing.T) {
	t.Parallel()
	dropFaults.failCalls(t, "renameat", syscall.EIO, 20)
}

func TestFaultDrop_FailedListing(t *testing.T) {
	t.Parallel()
	dropFaults.failCalls(t, "getdents64", syscall.EIO, 15)
}
