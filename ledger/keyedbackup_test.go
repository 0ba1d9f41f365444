package ledger_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
)

// Keyed records and keyed writes are in a backup, in an archive, and in a copy of the directory: each is
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
			must.Do(t, fillKept(l, 50, keptWrites-50, never))
			if retains {
				awaitDropped(t, l)
			}
			must.Do(t, fillKept(l, keptWrites-50, keptWrites, never))
			backup, info := backUp(t, l)
			closeLedger(t, l)
			archived := t.TempDir()
			o.Archive = archive.Directory(archived)
			l = open(t, o)
			awaitState(t, l, info.Index)
			closeLedger(t, l)
			path := filepath.Join(t.TempDir(), "backup")
			must.Do(t, os.WriteFile(path, backup, 0o600))
			for _, from := range []string{path, archived, dir} {
				to := filepath.Join(t.TempDir(), "restored")
				must.Do(t, restoreFrom(t, from, to), "%s", from)
				report, err := verify.Directory(t.Context(), to, verify.Options{})
				if err != nil || len(report.Problems) != 0 {
					t.Fatalf("%s is restored: %+v, %v", from, report, err)
				}
				keptIsThere(t, to, keptWrites, retains)
			}
		})
	}
}

func awaitDropped(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	must.Await(t, func() bool { return l.Stats().DroppedFiles > 0 }, "a file to be dropped")
}
