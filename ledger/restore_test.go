package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/restore"
	"github.com/seqledger/seqledger/ledger/verify"
)

// The restore test runs this test binary as a process of its own that restores
// a backup and kills itself at a given step: after so many reads of the backup,
// or at so many lines of the log, which are spread over all that comes behind.

const (
	restoreChildEnv  = "SEQLEDGER_RESTORE_TEST_DIR"
	restoreBackupEnv = "SEQLEDGER_RESTORE_TEST_BACKUP" // a file, several in a list like PATH, or a data directory
	restoreStepEnv   = "SEQLEDGER_RESTORE_TEST_STEP"
)

// suicide kills the process at a step.
type suicide struct {
	slog.Handler
	backup io.Reader
	left   int
}

func (s *suicide) step() {
	if s.left--; s.left < 0 {
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
			select {} // nothing happens after a kill
		}
	}
}

func (s *suicide) Read(b []byte) (int, error) {
	s.step()
	return s.backup.Read(b[:min(len(b), 64<<10)])
}

func (s *suicide) Enabled(context.Context, slog.Level) bool { return true }

func (s *suicide) Handle(context.Context, slog.Record) error {
	s.step()
	return nil
}

func (s *suicide) WithAttrs([]slog.Attr) slog.Handler { return s }

func restoreChild(dir string) error {
	source := os.Getenv(restoreBackupEnv)
	step, err := strconv.Atoi(os.Getenv(restoreStepEnv))
	if err != nil {
		return err
	}
	s := &suicide{Handler: slog.DiscardHandler, left: step}
	o := restore.Options{Dir: dir, Logger: slog.New(s)}
	if info, err := os.Stat(source); err == nil && info.IsDir() {
		o.Progress = func(done, total int64) { // each chunk is like the next one
			if done == total || done <= 512<<10 {
				s.step()
			}
		}
		return restoreDirectory(context.Background(), source, o)
	}
	backup, err := os.Open(source)
	if err != nil {
		return err
	}
	s.backup = backup
	_, err = restore.Backup(context.Background(), s, o)
	return err
}

// restoreDirectory restores a data directory, or the archive in a directory.
func restoreDirectory(ctx context.Context, source string, o restore.Options) error {
	target := archive.Directory(source)
	if ids, err := archive.Ledgers(ctx, target); err == nil && len(ids) == 1 {
		return restoreArchive(ctx, target, ids[0], o)
	}
	_, err := restore.Directory(ctx, source, o)
	return err
}

// restoreArchive restores all that an archive has.
func restoreArchive(ctx context.Context, target archive.Target, id machine.LedgerID, o restore.Options) error {
	from, err := verify.FromArchive(ctx, target, id, verify.Until{})
	if err == nil {
		_, err = restore.State(ctx, from, o)
	}
	return err
}

// killRestore restores in a process that kills itself at a step, and tells
// whether it did.
func killRestore(t *testing.T, backup, dir string, step int) bool {
	t.Helper()
	return killed(t, restoreChildEnv+"="+dir, restoreBackupEnv+"="+backup, restoreStepEnv+"="+strconv.Itoa(step))
}

// killed runs a child in a process that may kill itself, and tells whether it did.
func killed(t *testing.T, environment ...string) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), must.Get(os.Executable())(t))
	cmd.Env = append(os.Environ(), environment...)
	output, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	if cmd.ProcessState.ExitCode() != -1 { // it ended by itself
		t.Fatalf("%v: %v\n%s", environment, err, output)
	}
	return true
}

// TestRestoreSurvivesKills kills a restore at every step of it, one of a backup, one of an archive
// and one of a data directory. Whatever it leaves is either half made, and says
// so, or the whole ledger.
func TestRestoreSurvivesKills(t *testing.T) {
	t.Parallel()
	source, archived := written(t), t.TempDir()
	l := open(t, ledger.Options{Dir: source})
	fill(t, l, 1, 8)
	backup, info := backUp(t, l)
	closeLedger(t, l)
	l = open(t, ledger.Options{Dir: source, Archive: archive.Directory(archived)})
	awaitState(t, l, info.Index)
	closeLedger(t, l)
	path := filepath.Join(t.TempDir(), "backup")
	must.Do(t, os.WriteFile(path, backup, 0o600))
	for name, from := range map[string]string{"backup": path, "directory": source, "archive": archived} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killEachStep(t, from, info)
		})
	}
}

// killEachStep kills a restore at each step.
func killEachStep(t *testing.T, from string, info backupfile.Info) {
	halfMade, whole := 0, 0
	for step := 0; ; step++ {
		dir := filepath.Join(t.TempDir(), "restored")
		if !killRestore(t, from, dir, step) {
			break
		}
		if killedRestore(t, from, dir, step, info) {
			whole++
		} else {
			halfMade++
		}
	}
	if halfMade < 8 || whole < 1 {
		t.Errorf("%d kills left half a directory and %d a whole one: the test tested too little", halfMade, whole)
	}
	t.Logf("%d kills left half a directory, %d a whole one", halfMade, whole)
}

// killedRestore looks at what a restore has left that was killed at a step, and tells
// whether it is a whole ledger.
func killedRestore(t *testing.T, from, dir string, step int, info backupfile.Info) (whole bool) {
	t.Helper()
	look := func() (*ledger.Ledger, error) {
		return ledger.Open(t.Context(), ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	}
	l, err := look()
	if errors.Is(err, datadir.ErrRestoring) && step%2 == 0 {
		// Killed once more while it begins again. It may get further this time, even
		// to its end: how many lines the log of Raft has is a matter of timing.
		killRestore(t, from, dir, step)
		l, err = look()
	}
	switch {
	case errors.Is(err, datadir.ErrRestoring):
		if _, err := verify.Directory(t.Context(), dir, verify.Options{}); err == nil {
			t.Errorf("step %d: verify takes half a restore for a ledger", step)
		}
		must.Do(t, restoreFrom(t, from, dir), "step %d: restored again", step)
		l = open(t, ledger.Options{Dir: dir})
	case err != nil:
		t.Fatalf("step %d: %v", step, err)
	default:
		whole = true
	}
	mustBeRestored(t, l, info)
	closeLedger(t, l)
	return whole
}

// restoreFrom restores a backup or a data directory.
func restoreFrom(t *testing.T, from, dir string) error {
	t.Helper()
	if info, err := os.Stat(from); err == nil && info.IsDir() {
		return restoreDirectory(t.Context(), from, restoreTo(dir))
	}
	backup, err := os.Open(from)
	if err != nil {
		return err
	}
	defer backup.Close()
	_, err = restore.Backup(t.Context(), backup, restoreTo(dir))
	return err
}

// mustBeRestored expects the history of the backup, and an epoch behind it.
func mustBeRestored(t *testing.T, l *ledger.Ledger, backup backupfile.Info) {
	t.Helper()
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		if v.LedgerID() == backup.LedgerID || v.Index() < 1<<32 {
			t.Errorf("the ledger is %s at index %d: no epoch has begun", v.LedgerID(), v.Index())
		}
		s, _, err := v.Stream(scope, "client-1")
		check.Equal(t, s.Last, 60, "the stream is at %d")
		return err
	}))
}

// A directory with anything in it is left as it is.
func TestRestoreRefusesFullDirectory(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	mustWrite(t, l, appendWrite("c", 1, []byte("a")), machine.Committed)
	backup, _ := backUp(t, l)
	aLedger, other := written(t), t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(other, "letter.txt"), []byte("dear"), 0o600))
	inUse := t.TempDir()
	open(t, ledger.Options{Dir: inUse})
	for dir, want := range map[string]string{aLedger: "holds a ledger already", other: "letter.txt",
		inUse: "holds a ledger already"} {
		before := listing(t, dir)
		_, err := restore.Backup(t.Context(), bytes.NewReader(backup), restoreTo(dir))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
		if after := listing(t, dir); after != before {
			t.Errorf("%s was changed from %s to %s", dir, before, after)
		}
	}
	report, err := verify.Directory(t.Context(), aLedger, verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Transactions != 300 {
		t.Errorf("the ledger that was there: %v %+v", err, report)
	}
}

// listing names what is in a directory, without the lock.
func listing(t *testing.T, dir string) string {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	var names []string
	for _, e := range entries {
		if e.Name() != "LOCK" {
			names = append(names, e.Name())
		}
	}
	return fmt.Sprint(names)
}

// A damaged backup makes no ledger, and nothing of it stays.
func TestRestoreRefusesDamage(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	mustWrite(t, l, appendWrite("c", 1, []byte("a")), machine.Committed)
	backup, _ := backUp(t, l)
	for name, b := range map[string][]byte{
		"cut": backup[:len(backup)-1], "longer": append(bytes.Clone(backup), 1), "empty": nil,
		"changed": append(bytes.Clone(backup[:len(backup)-1]), backup[len(backup)-1]^1),
	} {
		dir := filepath.Join(t.TempDir(), "restored")
		_, err := restore.Backup(t.Context(), bytes.NewReader(b), restoreTo(dir))
		if _, ok := errors.AsType[*backupfile.DamageError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
		check.Equal(t, listing(t, dir), "[CREATING]", "%s: it leaves %s", name)
		if _, err := ledger.Open(t.Context(), ledger.Options{Dir: dir}); !errors.Is(err, datadir.ErrRestoring) {
			t.Errorf("%s: a start says %v", name, err)
		}
		must.Do(t, check.Err(restore.Backup(t.Context(), bytes.NewReader(backup), restoreTo(dir))),
			"%s: the good one afterwards", name)
	}
}
