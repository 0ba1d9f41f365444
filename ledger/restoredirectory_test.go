package ledger_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/restore"
	"github.com/seqledger/seqledger/ledger/verify"
)

// contents sums up every file below a directory.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	must.Do(t, fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		fmt.Fprintf(&b, "%s %x\n", name, sha256.Sum256(content))
		return err
	}))
	return b.String()
}

// A ledger goes on after its directory was copied. Restored, the copy gives out
// nothing of what the ledger has given out since, and it has everything from
// before, also what only the log has.
func TestRestoreDirectoryGivesOutNothingTwice(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{true, false} {
		live, copied := t.TempDir(), t.TempDir()
		l := open(t, ledger.Options{Dir: live})
		session := openSession(t, l, "writer-0", 0, 0).Session
		var receipts []machine.Receipt
		var clients []string
		write := func(l *ledger.Ledger, sequence uint64) machine.Receipt {
			w := appendWrite("writer-0", sequence, fmt.Append(nil, sequence))
			w.Session = session
			return mustWrite(t, l, w, machine.Committed).Receipt
		}
		for sequence := uint64(1); sequence <= 20; sequence++ {
			receipts, clients = append(receipts, write(l, sequence)), append(clients, "writer-0")
		}
		if stopped {
			closeLedger(t, l)
		}
		copySparse(t, copied, live)
		if stopped {
			l = open(t, ledger.Options{Dir: live})
		}
		newest := write(l, 21)
		newer := openSession(t, l, "writer-1", 1, 0).Session

		before := contents(t, copied)
		dir := filepath.Join(t.TempDir(), "restored")
		info, err := restore.Directory(t.Context(), copied, restoreTo(dir))
		if err != nil {
			t.Fatalf("stopped %v: %v", stopped, err)
		}
		if after := contents(t, copied); after != before {
			t.Errorf("stopped %v: the copy was changed from\n%sto\n%s", stopped, before, after)
		}
		restored := open(t, ledger.Options{Dir: dir})
		mustHoldReceipts(t, restored, receipts, clients)
		again := mustWrite(t, restored, appendWrite("other", 1, []byte("x")), machine.Committed).Receipt
		if again.LedgerID == newest.LedgerID || again.Index <= newest.Index {
			t.Errorf("stopped %v: one name for two transactions: %+v and %+v", stopped, newest, again)
		}
		if out := openSession(t, restored, "writer-1", 2, 0); out.Session <= newer {
			t.Errorf("stopped %v: session %d was given out before as %d", stopped, out.Session, newer)
		}
		mustBeginAnew(t, restored, info, max(newest.Index, newer))
		closeLedger(t, restored)
		report, err := verify.Directory(t.Context(), dir, verify.Options{})
		if err != nil || len(report.Problems) != 0 {
			t.Errorf("stopped %v: verify: %v %+v", stopped, err, report)
		}
		closeLedger(t, l)
	}
}

// Blocks behind the checkpoint are in the copy, too.
func TestRestoreDirectoryWithUncoveredBlocks(t *testing.T) {
	t.Parallel()
	crashed := crashedBehindACheckpoint(t)
	dir := filepath.Join(t.TempDir(), "restored")
	must.Get(restore.Directory(t.Context(), crashed, restoreTo(dir)))(t)
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Transactions != uncoveredWrites {
		t.Errorf("verify: %v %+v", err, report)
	}
}

// A source that is none leaves no directory behind, and no lock in itself.
func TestRestoreDirectoryRefusesItsSource(t *testing.T) {
	t.Parallel()
	foreign, inUse, half := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "half")
	must.Do(t, os.WriteFile(filepath.Join(foreign, "letter.txt"), []byte("dear"), 0o600))
	open(t, ledger.Options{Dir: inUse})
	if _, err := restore.Backup(t.Context(), strings.NewReader("no backup"), restoreTo(half)); err == nil {
		t.Fatal("a letter was restored")
	}
	for source, want := range map[string]string{
		foreign: "not a seqledger data directory", half: "not a seqledger data directory", inUse: "in use",
		filepath.Join(foreign, "absent"): "no such file", filepath.Join(foreign, "letter.txt"): "letter.txt",
	} {
		dir := filepath.Join(t.TempDir(), "restored")
		if _, err := restore.Directory(t.Context(), source, restoreTo(dir)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", source, err, want)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: a directory was made", source)
		}
	}
	check.Equal(t, len(must.Get(os.ReadDir(foreign))(t)), 1, "the foreign directory has %v")
}

// A damaged copy makes no ledger, and the damage is known as such.
func TestRestoreDirectoryRefusesDamage(t *testing.T) {
	t.Parallel()
	source := written(t)
	flip := func(name, needle string) func(dir string) error {
		return func(dir string) error {
			content, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			changed := bytes.ReplaceAll(content, []byte(needle), []byte(strings.ToUpper(needle)))
			if bytes.Equal(changed, content) {
				return errors.New("nothing was changed")
			}
			return os.WriteFile(filepath.Join(dir, name), changed, 0o600)
		}
	}
	for name, damage := range map[string]func(dir string) error{
		"payload":    flip("blocks/0000000001.blocks", "needle-123"),
		"entity":     flip("state.db", "hay-290"),
		"cut state":  func(dir string) error { return os.Truncate(filepath.Join(dir, "state.db"), 20_000) },
		"lost state": func(dir string) error { return os.Remove(filepath.Join(dir, "state.db")) },
		"lost log":   func(dir string) error { return os.RemoveAll(filepath.Join(dir, "log")) },
	} {
		copied, dir := t.TempDir(), filepath.Join(t.TempDir(), "restored")
		copySparse(t, copied, source)
		must.Do(t, damage(copied), "%v", name)
		_, err := restore.Directory(t.Context(), copied, restoreTo(dir))
		if err == nil || name != "lost state" && !verify.IsDamage(err) {
			t.Errorf("%s: %v", name, err)
		}
		check.Equal(t, listing(t, dir), "[CREATING]", "%s: it leaves %s", name)
		if _, err := ledger.Open(t.Context(), ledger.Options{Dir: dir}); !errors.Is(err, datadir.ErrRestoring) {
			t.Errorf("%s: a start says %v", name, err)
		}
		must.Do(t, check.Err(restore.Directory(t.Context(), source, restoreTo(dir))), "%s: the good one afterwards",
			name)
	}
}
