package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
)

// TestBackupRestoreProcesses goes the whole way with real processes: a backup
// while an import runs, a restore, a server on the restored directory, and what
// the import and its operator find there.
func TestBackupRestoreProcesses(t *testing.T) {
	t.Parallel()
	// On a busy machine the import may be over before the backup is.
	for lines := 10_000; !backupDuringImport(t, lines); lines *= 4 {
		t.Logf("the import of %d lines was over too soon", lines)
	}
}

// backupDuringImport returns false if the import ended before the backup did.
func backupDuringImport(t *testing.T, lines int) bool {
	t.Helper()
	s := serve(t)
	first := numberedLines(t, 50)
	s.do(t, "import", "--scope", "acme/main", "--client-id", "first", first).expect(t, exitDone)
	written := s.do(t, "write", "--scope", "acme/main", "--client-id", "till",
		"--json", "--set", "a=1").expect(t, exitDone)
	tx := written.field(t, "txId").(string)

	input := numberedLines(t, lines)
	importing := start(t, "import", "--server", s.address, "--scope", "acme/load",
		"--client-id", "loader", "--json", input)
	awaitBlock(t, s, "acme/load")
	dir := t.TempDir()
	backup := filepath.Join(dir, "ledger.seqledger")
	made := s.do(t, "backup", backup, "--json").expect(t, exitDone)
	if made.field(t, "ledgerId") != s.ledgerID {
		t.Errorf("the backup is of ledger %v, want %s", made.field(t, "ledgerId"), s.ledgerID)
	}
	importing.kill()
	s.kill()
	if importing.cmd.ProcessState.Exited() { // by itself
		return false
	}
	if left, _ := filepath.Glob(backup + ".partial-*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	seqledger(t, "verify", "--backup", backup).expect(t, exitDone, "problems       0")

	data := filepath.Join(dir, "restored")
	restored := seqledger(t, "restore", backup, "--data", data, "--json").expect(t, exitDone)
	if restored.field(t, "backupLedgerId") != s.ledgerID ||
		restored.field(t, "backupIndex") != made.field(t, "index") ||
		restored.field(t, "backupDigest") != made.field(t, "digest") {
		t.Errorf("restored %v from %v", restored, made)
	}
	seqledger(t, "verify", "--data", data).expect(t, exitDone, "problems       0")

	r := serveOn(t, data, s.address)
	if r.ledgerID != restored.field(t, "ledgerId") || r.ledgerID == s.ledgerID {
		t.Errorf("it serves ledger %s, want %v", r.ledgerID, restored.field(t, "ledgerId"))
	}
	// An old receipt, a new one, and the stream between them.
	r.do(t, "tx", tx).expect(t, exitDone, tx)
	again := r.do(t, "write", "--scope", "acme/main", "--client-id", "till", "--json", "--set", "a=2").expect(t,
		exitDone)
	if again.field(t, "sequence") != "2" || again.field(t, "txId") == tx {
		t.Errorf("after the restore: %v", again)
	}
	r.do(t, "import", "--scope", "acme/main", "--client-id", "first", first).expect(t, exitDone, "already imported")
	importAfterRestore(t, r, input, lines)
	return true
}

// importAfterRestore: the import refuses to go on by itself, and the advice
// that it gives leads to every line being there once.
func importAfterRestore(t *testing.T, r *testServer, input string, lines int) {
	t.Helper()
	args := []string{"import", "--scope", "acme/load", "--client-id", "loader", input}
	refused := r.do(t, args...).expect(t, exitRefused, "restored from a backup", "is the last line that is committed",
		"another --client-id")
	if strings.Contains(refused.stdout, "imported") {
		t.Errorf("it wrote something: %v", refused)
	}
	state := r.do(t, "state", "--scope", "acme/load", "--client-id", "loader", "--json").expect(t, exitDone)
	var committed int
	if _, err := fmt.Sscan(state.field(t, "lastCommittedSequence").(string), &committed); err != nil || committed < 1 ||
		committed > lines {
		t.Fatalf("%d lines were committed before the backup (%v)", committed, err)
	}
	content := must.Get(os.ReadFile(input))(t)
	rest := strings.Join(strings.SplitAfter(string(content), "\n")[committed:], "")
	if rest != "" {
		file := writeFile(t, "rest.ndjson", rest)
		r.do(t, "import", "--scope", "acme/load", "--client-id", "loader", file).expect(t, exitRefused,
			fmt.Sprintf("has %d writes", committed), "another --client-id")
		r.do(t, "import", "--scope", "acme/load", "--client-id", "loader-2", file).expect(t, exitDone)
	}
	audit(t, r, "acme/load", uint64(lines))
	t.Logf("%d of %d lines were in the backup", committed, lines)
}

// TestRestoreFromDirectory: a copy of a stopped server's directory, put back
// after the original has gone on, gives out no name a second time.
func TestRestoreFromDirectory(t *testing.T) {
	t.Parallel()
	s := serve(t)
	write := func(s *testServer, text string) string {
		t.Helper()
		r := s.do(t, "write", "--scope", "acme/main", "--client-id", "c", "--json", "--append", text).expect(t,
			exitDone)
		return r.field(t, "txId").(string)
	}
	open := func(s *testServer) string {
		t.Helper()
		r := s.do(t, "session", "open", "--scope", "acme/main", "--client-id", "d", "--json").expect(t, exitDone)
		return r.field(t, "state").(map[string]any)["session"].(string)
	}
	first := write(s, "one")
	seqledger(t, "restore", "--from-directory", s.data, "--data", filepath.Join(t.TempDir(), "r")).
		expect(t, exitFailed, s.data, "in use", "stop the process")
	must.Do(t, s.cmd.Process.Signal(os.Interrupt))
	s.wait(t)
	copied := filepath.Join(t.TempDir(), "copy")
	must.Do(t, os.CopyFS(copied, os.DirFS(s.data)))
	s = serveOn(t, s.data, s.address)
	second, session := write(s, "two"), open(s)
	s.kill() // and its disk is lost

	data := filepath.Join(t.TempDir(), "restored")
	restored := seqledger(t, "restore", "--from-directory", copied, "--data", data, "--json").expect(t, exitDone)
	if restored.field(t, "backupLedgerId") != s.ledgerID {
		t.Errorf("restored %v, want ledger %s", restored, s.ledgerID)
	}
	r := serveOn(t, data, "127.0.0.1:0")
	r.do(t, "tx", first).expect(t, exitDone, "one")
	if again := write(r, "another two"); again == second {
		t.Errorf("the transaction id %s was given out twice", again)
	}
	if again := open(r); again == session {
		t.Errorf("the session %s was given out twice", again)
	}
	r.do(t, "write", "--scope", "acme/main", "--client-id", "d", "--session", session,
		"--sequence", "1", "--append", "late").
		expect(t, exitRefused, "SESSION_")
}

// TestClockAhead: serve refuses a clock that is far ahead of the ledger unless it is
// told that it is right, and restore sets a ledger's time back.
func TestClockAhead(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "old")
	run := func(at time.Time) {
		t.Helper()
		l := must.Get(ledger.Open(t.Context(), ledger.Options{
			Dir: dir, AcceptClock: true, Clock: func() time.Time { return at }, Logger: slog.New(slog.DiscardHandler),
		}))(t)
		must.Do(t, l.Close())
	}
	long := time.Now().Add(-40 * 24 * time.Hour)
	run(long)
	seqledger(t, "serve", "--data", dir, "--listen", "127.0.0.1:0").
		expect(t, exitFailed, "40 days after the last command",
			long.UTC().Format(time.DateOnly), "--accept-clock", "--ledger-time")
	s := serveOn(t, dir, "127.0.0.1:0", "--accept-clock")
	s.kill()

	run(time.Now().AddDate(80, 0, 0))
	data := filepath.Join(t.TempDir(), "restored")
	restore := func(time string) result {
		t.Helper()
		return seqledger(t, "restore", "--from-directory", dir, "--data", data, "--ledger-time", time)
	}
	restore("yesterday").expect(t, exitUsage, "--ledger-time", "yesterday")
	restore("2150-01-01T00:00:00Z").expect(t, exitUsage, "--ledger-time", "future")
	restore("now").expect(t, exitDone)
	s = serveOn(t, data, "127.0.0.1:0")
	r := s.do(t, "write", "--scope", "acme", "--client-id", "c", "--append", "x", "--json").expect(t, exitDone)
	at, err := time.Parse(time.RFC3339, r.field(t, "committedAt").(string))
	if err != nil || time.Since(at).Abs() > time.Hour {
		t.Errorf("a write is committed at %s, %v", at, err)
	}
}

func TestBackupRefusals(t *testing.T) {
	t.Parallel()
	s := serve(t)
	there := writeFile(t, "there", "a letter")
	s.do(t, "backup", there).expect(t, exitUsage, "exists already")
	check.Equal(t, string(must.Get(os.ReadFile(there))(t)), "a letter", "the file that was there: %q")
	s.do(t, "backup", filepath.Join(t.TempDir(), "no", "such", "place")).expect(t, exitUsage)
	missing := filepath.Join(t.TempDir(), "missing")
	seqledger(t, "backup", missing, "--server", "127.0.0.1:1").expect(t, exitFailed, "127.0.0.1:1")
	if left, _ := filepath.Glob(missing + "*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	whole := s.do(t, "backup", "-").expect(t, exitDone)
	damaged := writeFile(t, "damaged", whole.stdout[:len(whole.stdout)-1])
	data := filepath.Join(t.TempDir(), "restored")
	seqledger(t, "restore", damaged, "--data", data).expect(t, exitFailed, "damaged at byte", "older one")
	seqledger(t, "serve", "--listen", "127.0.0.1:0", "--data", data).expect(t, exitFailed,
		"interrupted", "seqledger restore FILE")
	seqledger(t, "verify", "--backup", damaged, "--json").expect(t, exitFailed, "byte")
	seqledger(t, "restore", there, "--data", data).expect(t, exitFailed, "does not begin like a backup")
	seqledger(t, "restore", missing, "--data", data).expect(t, exitUsage)
	seqledger(t, "restore", writeFile(t, "whole", whole.stdout), "--data",
		s.data).expect(t, exitFailed, "holds a ledger already")
	restored := seqledgerInput(t, whole.stdout, "restore", "-", "--data", data, "--json").expect(t, exitDone)
	var got restoreResult
	if err := json.Unmarshal([]byte(restored.stdout), &got); err != nil || got.Index == 0 {
		t.Errorf("restored %v: %v", restored, err)
	}
}
