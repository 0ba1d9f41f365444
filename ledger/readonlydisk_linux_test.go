package ledger_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/recovery"
	"github.com/seqledger/seqledger/ledger/restore"
	"github.com/seqledger/seqledger/ledger/verify"
)

// TestRestoreTellsHowLongItsReplayTook: from the moment that it opened the log.
func TestRestoreTellsHowLongItsReplayTook(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, ledger.Options{Dir: dir})
	mustWrite(t, l, appendWrite("c", 1, []byte("x")), machine.Committed)
	closeLedger(t, l)
	var logged bytes.Buffer
	_, err := restore.Directory(t.Context(), dir, restore.Options{
		Dir: filepath.Join(t.TempDir(), "restored"), Logger: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	if text := logged.String(); err != nil || !strings.Contains(text, "took=") ||
		strings.Contains(text, "took=2562047h") {
		t.Errorf("%v: %s", err, text)
	}
}

// TestFault_ReadOnlyMount: what only reads a data directory works on a file system that is mounted read-only, also on a
// copy that was made without the lock file.
func TestFault_ReadOnlyMount(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t)
	dir := filepath.Join(disk, "data")
	l := open(t, ledger.Options{Dir: dir})
	mustWrite(t, l, appendWrite("c", 1, []byte("x")), machine.Committed)
	closeLedger(t, l)
	copied := filepath.Join(disk, "copy")
	must.Do(t, os.CopyFS(copied, os.DirFS(dir)))
	must.Do(t, os.Remove(filepath.Join(copied, "LOCK")))
	must.Do(t, syscall.Mount("", disk, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	for what, read := range map[string]func(dir string) error{
		"verify": func(dir string) error {
			report, err := verify.Directory(t.Context(), dir, verify.Options{})
			if err == nil && (len(report.Problems) > 0 || report.Transactions != 1) {
				t.Errorf("verify of %s: %+v", dir, report)
			}
			return err
		},
		"restore": func(dir string) error {
			_, err := restore.Directory(t.Context(), dir, restore.Options{
				Dir: filepath.Join(t.TempDir(), "restored"), Logger: slog.New(slog.DiscardHandler),
			})
			return err
		},
		"recover": func(dir string) error {
			_, err := recovery.Inspect(dir)
			return err
		},
	} {
		for _, dir := range []string{dir, copied} {
			must.Do(t, read(dir), "%s of %s", what, dir)
		}
	}
	if _, err := datadir.Open(copied, datadir.Created); err == nil {
		t.Error("a directory without a lock was opened for writing")
	}
}
