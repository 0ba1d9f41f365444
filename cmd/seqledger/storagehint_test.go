package main

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// Each kind of failure has its own advice, and only a failure that lost nothing
// says so.
func TestStorageHint(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err      error
		want     string
		lossless bool
	}{
		{datadir.ErrInUse, "stop it", false},
		{syscall.ENOSPC, "make room", true},
		{syscall.EDQUOT, "make room", true},
		{syscall.EMFILE, "ulimit -n", true},
		{syscall.ENFILE, "LimitNOFILE", true},
		{syscall.EROFS, "mount it for writing", true},
		{syscall.EACCES, "may not access", true},
		{machine.ErrCorrupt, "seqledger verify", false},
		{machine.ErrDiverged, "put the old one back", false},
		{&raftlog.DamageError{Dir: "x", Found: "y"}, "restore the directory from a backup", false},
		{ledger.ErrFailed, "repair the disk", true},
		{syscall.EIO, "cannot be read", false},
		{errors.New("unheard of"), "", false},
	} {
		got := storageHint(fmt.Errorf("somewhere: %w", tt.err), "/data")
		if !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%v: %q, want %q in it", tt.err, got, tt.want)
		}
		if strings.Contains(got, "nothing that was acknowledged is lost") != tt.lossless {
			t.Errorf("%v: %q says whether something is lost: want %t", tt.err, got, tt.lossless)
		}
	}
	// A full disk is a failure of the storage, too, and damage is never lossless. What is not the disk's fault does not
	// send its reader to the disk.
	for cause, want := range map[error]string{
		syscall.ENOSPC: "make room", machine.ErrCorrupt: "verify",
		cluster.ErrRemoved:                                  "empty /data and start it with --join",
		boltstore.ErrVersion:                                "start the seqledger that wrote it",
		&raftlog.ForgottenError{}:                           "put back the directory",
		datadir.ErrOldCopy:                                  "put back the directory",
		&cluster.OtherLedgerError{}:                         "name an empty directory",
		&net.OpError{Op: "accept", Err: syscall.ECONNRESET}: "network",
	} {
		got := storageHint(fmt.Errorf("%w: %w", ledger.ErrFailed, cause), "/data")
		if !strings.Contains(got, want) || strings.Contains(got, "repair the disk") {
			t.Errorf("%v: %q", cause, got)
		}
	}
}
