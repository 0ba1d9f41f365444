package ledger_test

import (
	"syscall"
	"testing"
)

var dropFaults = faultKind{run: runDropChild, writes: dropWrites, kept: wantDropped, bears: true, costly: true}

// TestFaultDrop is like the tests of faultcall_linux_test.go, with a process that archives, drops history, and makes a
// backup.
func TestFaultDrop(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		call  string
		errno syscall.Errno
		last  int
	}{
		"FailedWrite":        {"pwrite64", syscall.EIO, 150},
		"FailedWriteOfACopy": {"write", syscall.EIO, 120}, // to the archive and to the backup
		"FullDiskAtACopy":    {"write", syscall.ENOSPC, 120},
		"FailedSync":         {"fsync", syscall.EIO, 60},
		"FailedRead":         {"pread64", syscall.EIO, 200},
		"FailedOpen":         {"openat", syscall.EIO, 150},
		"NoDescriptors":      {"openat", syscall.EMFILE, 150},
		"FailedRemoval":      {"unlinkat", syscall.EIO, 15},
		"FailedRename":       {"renameat", syscall.EIO, 20},
		"FailedListing":      {"getdents64", syscall.EIO, 15},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dropFaults.failCalls(t, test.call, test.errno, test.last)
		})
	}
}
