package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// The test of kills runs this test binary as a process of its own that makes an incremental backup of a ledger and
// kills itself at a given step of it. A write is acknowledged before each step, so that the ledger moves on meanwhile.

const (
	backupChildEnv = "SEQLEDGER_BACKUP_TEST_DIR"
	// backupBaseEnv is the file of the backup that it is made since. The new one is made beside it.
	backupBaseEnv = "SEQLEDGER_BACKUP_TEST_BASE"
	backupStepEnv = "SEQLEDGER_BACKUP_TEST_STEP"
)

// backupClient is the stream of the writes that are made during the backup.
const backupClient = "meanwhile"

// backupSteps counts the steps of a backup, writes to the ledger at each, and kills the process at one.
type backupSteps struct {
	*suicide
	ledger *ledger.Ledger
	acked  *os.File // gets a byte for each acknowledged write
	to     io.Writer
	next   uint64 // sequence
}

func (s *backupSteps) meanwhile() error {
	out, err := s.ledger.Write(context.Background(), appendWrite(backupClient, s.next, make([]byte, 30_000)))
	if err != nil || out.Code != machine.Committed {
		return errors.Join(fmt.Errorf("write %d: %s", s.next, out.Code), err)
	}
	s.next++
	_, err = s.acked.Write([]byte{1})
	s.step()
	return err
}

// Write implements io.Writer. Half of what it gets has arrived when the process is killed.
func (s *backupSteps) Write(b []byte) (int, error) {
	half := len(b) / 2
	n, err := s.to.Write(b[:half])
	if err == nil {
		err = s.meanwhile()
	}
	if err != nil {
		return n, err
	}
	n, err = s.to.Write(b[half:])
	return half + n, err
}

func backupChild(dir string) (err error) {
	step, err := strconv.Atoi(os.Getenv(backupStepEnv))
	if err != nil {
		return err
	}
	base := os.Getenv(backupBaseEnv)
	chain, err := openChain([]string{base})
	if err != nil {
		return err
	}
	head, err := backupfile.Head(&chain[0])
	if err != nil {
		return err
	}
	s := &backupSteps{suicide: &suicide{left: step}, next: 1}
	if s.acked, err = os.Create(base + ".acked"); err != nil {
		return err
	}
	to, err := os.Create(base + ".since")
	if err != nil {
		return err
	}
	s.to = to
	s.ledger, err = ledger.Open(context.Background(), ledger.Options{
		Dir: dir, Logger: slog.New(slog.DiscardHandler), CheckpointBytes: 64 << 10,
	})
	if err != nil {
		return err
	}
	since, o := head.Base(), unlimited
	o.Since, o.Begin = &since, func(backupfile.Info) error { return s.meanwhile() }
	if err := s.meanwhile(); err != nil {
		return err
	}
	if _, err := s.ledger.Backup(context.Background(), s, o); err != nil {
		return err
	}
	if err := s.meanwhile(); err != nil {
		return err
	}
	return s.ledger.Close()
}

// killBackup makes a backup in a process that kills itself at a step, and tells whether it did.
func killBackup(t *testing.T, dir, base string, step int) bool {
	t.Helper()
	executable := must.Get(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), executable)
	cmd.Env = append(os.Environ(), backupChildEnv+"="+dir, backupBaseEnv+"="+base, backupStepEnv+"="+strconv.Itoa(step))
	output, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	if cmd.ProcessState.ExitCode() != -1 { // it ended by itself
		t.Fatalf("step %d: %v\n%s", step, err, output)
	}
	return true
}

// TestBackupSinceSurvivesKills kills the process of the ledger at every step of an incremental backup. The ledger has
// every write that was acknowledged meanwhile; what has arrived is no backup unless all of it has; and the next backup
// is made since the same one as if nothing had been.
func TestBackupSinceSurvivesKills(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	l := open(t, ledger.Options{Dir: source})
	next := fill(t, l, 1, 3)
	full := backUpSince(t, l, filepath.Join(t.TempDir(), "full"), nil)
	fill(t, l, next, 4)
	closeLedger(t, l)
	broken, whole := 0, 0
	for step := 0; ; step++ {
		dir := t.TempDir()
		data, base := filepath.Join(dir, "data"), filepath.Join(dir, "full")
		must.Do(t, os.CopyFS(data, os.DirFS(source)))
		f := *full
		f.Name = base
		must.Do(t, writeBackup(&f))
		if !killBackup(t, data, base, step) {
			break
		}
		if killedBackup(t, data, &f, step) {
			whole++
		} else {
			broken++
		}
	}
	if broken < 4 || whole != 1 {
		t.Errorf("%d kills left a part of a backup and %d a whole one: the test tested too little", broken, whole)
	}
	t.Logf("%d kills left a part of a backup, %d a whole one", broken, whole)
}

// killedBackup looks at what a kill has left, and tells whether the backup is whole.
func killedBackup(t *testing.T, data string, full *backupfile.File, step int) (whole bool) {
	t.Helper()
	acked := must.Get(os.ReadFile(full.Name + ".acked"))(t)
	l := open(t, ledger.Options{Dir: data})
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		s, _, err := v.Stream(scope, backupClient)
		if s.Last != uint64(len(acked)) {
			t.Errorf("step %d: the stream is at %d, and %d writes were acknowledged", step, s.Last, len(acked))
		}
		return err
	}))
	arrived := must.Get(openChain([]string{full.Name, full.Name + ".since"}))(t)
	switch _, err := backupfile.Head(&arrived[1]); {
	case err == nil:
		whole = true
		mustHaveWrites(t, arrived, 1) // the one that was acknowledged before it began
	default:
		if _, damaged := errors.AsType[*backupfile.DamageError](err); !damaged {
			t.Errorf("step %d: what has arrived: %v", step, err)
		}
		if backupfile.CheckChain(arrived) == nil {
			t.Errorf("step %d: a part of a backup is taken for one", step)
		}
	}
	for _, f := range arrived {
		_ = f.Content.(*os.File).Close() // it was only read
	}
	again := backUpSince(t, l, "again", full)
	closeLedger(t, l)
	mustHaveWrites(t, []backupfile.File{*full, *again}, uint64(len(acked)))
	return whole
}

// mustHaveWrites restores a chain, and expects as many of the writes that were made during a backup.
func mustHaveWrites(t *testing.T, chain []backupfile.File, want uint64) {
	t.Helper()
	var files []*backupfile.File
	for i := range chain {
		files = append(files, &chain[i])
	}
	dir, _ := restoreChain(t, files...)
	l := open(t, ledger.Options{Dir: dir})
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		s, _, err := v.Stream(scope, backupClient)
		check.Equal(t, s.Last, want, "what was restored has %d writes")
		return err
	}))
	closeLedger(t, l)
}
