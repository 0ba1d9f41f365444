package ledger_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/restore"
	"github.com/seqledger/seqledger/ledger/verify"
)

// Keyed records and keyed writes are in a full backup, in one since it, and in a copy of the directory: each is
// verified and restored, and answers as the ledger did. That holds with dropped history, too.
func TestKeyedRecordsAreRestored(t *testing.T) {
	t.Parallel()
	for _, retains := range []bool{false, true} {
		t.Run(map[bool]string{false: "all", true: "retained"}[retains], func(t *testing.T) {
			t.Parallel()
			if testing.Short() && !retains {
				t.Skip("it takes seconds, and the other case does the same and more")
			}
			dir := filepath.Join(t.TempDir(), "data")
			o := keptOptions(dir)
			if retains {
				o.Config.RetainBlocks = int64(time.Second)
			}
			l := open(t, o)
			never := func(int, machine.Receipt) error { return nil }
			must.Do(t, fillKept(l, 0, 50, never)) // not all keys
			full := backUpSince(t, l, "full", nil)
			must.Do(t, fillKept(l, 50, keptWrites-50, never))
			if retains {
				awaitDropped(t, l)
			}
			must.Do(t, fillKept(l, keptWrites-50, keptWrites, never))
			chain := []backupfile.File{*full, *backUpSince(t, l, "since", full)}
			again := []backupfile.File{*backUpSince(t, l, "again", nil)}
			closeLedger(t, l)
			for what, from := range map[string][]backupfile.File{"chain": chain, "one": again, "directory": nil} {
				to := filepath.Join(t.TempDir(), "restored")
				keptIsRestored(t, what, dir, from, to)
				keptIsThere(t, to, keptWrites, retains)
			}
		})
	}
}

func awaitDropped(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	must.Await(t, func() bool { return l.Stats().DroppedFiles > 0 }, "a file to be dropped")
}

// keptIsRestored restores backups, or the directory where there are none, and verifies what it takes and what it makes.
func keptIsRestored(t *testing.T, what, dir string, from []backupfile.File, to string) {
	t.Helper()
	var report *verify.Report
	var err error
	if from == nil {
		_, err = restore.Directory(t.Context(), dir, restoreTo(to))
	} else {
		if report, err = verify.Chain(t.Context(), from, verify.Options{}); err != nil || len(report.Problems) != 0 {
			t.Fatalf("%s: %+v, %v", what, report, err)
		}
		_, err = restore.Chain(t.Context(), from, restoreTo(to))
	}
	must.Do(t, err, "%s", what)
	if report, err = verify.Directory(t.Context(), to, verify.Options{}); err != nil || len(report.Problems) != 0 {
		t.Fatalf("%s is restored: %+v, %v", what, report, err)
	}
}
