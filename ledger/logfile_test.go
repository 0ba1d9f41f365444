package ledger_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
)

// TestLogFilesFollowLogBytes: a log that is to be short has short files, because it is truncated by
// whole ones.
func TestLogFilesFollowLogBytes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	closeLedger(t, open(t, ledger.Options{Dir: dir, LogBytes: 64 << 10}))
	files, err := filepath.Glob(filepath.Join(dir, "log", "*", "*.log"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d log files, %v", len(files), err)
	}
	for _, file := range files {
		info := must.Get(os.Stat(file))(t)
		check.Equal(t, info.Size(), 1<<20, "%s has %d bytes, want 1 MiB", file)
	}
	for logBytes, want := range map[int64]int{1: 1 << 20, 8 << 20: 4 << 20, 128 << 20: 64 << 20, 1 << 40: 64 << 20} {
		check.Equal(t, ledger.LogFileBytes(logBytes, 64<<20), want, "LogBytes %d: files of %d bytes", logBytes)
	}
}
