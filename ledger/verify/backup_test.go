package verify_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
)

// backedUp makes a directory and a backup of it.
func backedUp(t *testing.T) (dir string, backup []byte) {
	t.Helper()
	dir = written(t)
	l := open(t, dir)
	var b bytes.Buffer
	must.Get(l.Backup(t.Context(), &b, ledger.BackupOptions{RateBytes: -1}))(t)
	must.Do(t, l.Close())
	return dir, b.Bytes()
}

// TestVerifyOfABackup: a backup has what its directory has, and the check tells the same of both.
func TestVerifyOfABackup(t *testing.T) {
	t.Parallel()
	dir, backup := backedUp(t)
	got, err := verify.Backup(t.Context(), bytes.NewReader(backup), verify.Options{})
	if err != nil || len(got.Problems) != 0 {
		t.Fatalf("%v %+v", err, got)
	}
	want := must.Get(verify.Directory(t.Context(), dir, verify.Options{}))(t)
	if got.AuditSummary != want.AuditSummary || got.LedgerID != want.LedgerID || got.Index != want.Index ||
		got.Digest != want.Digest {
		t.Errorf("of the backup: %+v\nof its directory: %+v", got, want)
	}
}

// TestADamagedBackupIsAFinding: whatever was flipped, cut or added, the report has it, and the check itself does
// not fail, because its caller must be able to tell damage from a disk that does not answer.
func TestADamagedBackupIsAFinding(t *testing.T) {
	t.Parallel()
	_, backup := backedUp(t)
	rapid.Check(t, func(t *rapid.T) {
		damaged := bytes.Clone(backup)
		at := rapid.IntRange(0, len(backup)-1).Draw(t, "at")
		switch rapid.IntRange(0, 3).Draw(t, "damage") {
		case 0:
			damaged[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		case 1:
			damaged = damaged[:at]
		case 2:
			damaged = append(damaged, rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "more")...)
		default: // two places are exchanged
			n := min(rapid.IntRange(1, 4096).Draw(t, "bytes"), at, len(backup)-at)
			copy(damaged[at-n:], backup[at:at+n])
			copy(damaged[at:], backup[at-n:at])
			if bytes.Equal(damaged, backup) {
				return
			}
		}
		report, err := verify.Backup(context.Background(), bytes.NewReader(damaged), verify.Options{})
		if err != nil || len(report.Problems) == 0 {
			t.Fatalf("%v, %+v", err, report)
		}
	})
}

// failing reads some bytes and then fails.
type failing struct {
	r   io.Reader
	err error
}

func (f failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if errors.Is(err, io.EOF) {
		err = f.err
	}
	return n, err
}

// TestABackupThatCannotBeRead is no finding about the backup: the same bytes may be right.
func TestABackupThatCannotBeRead(t *testing.T) {
	t.Parallel()
	_, backup := backedUp(t)
	broken := errors.New("the network is gone")
	for _, length := range []int{0, 10, len(backup) / 2} {
		report, err := verify.Backup(t.Context(), failing{bytes.NewReader(backup[:length]), broken}, verify.Options{})
		if report != nil || !errors.Is(err, broken) {
			t.Errorf("after %d bytes: %+v, %v", length, report, err)
		}
	}
	check.Equal(t, len(must.Get(verify.Backup(t.Context(), failing{bytes.NewReader(nil), io.EOF},
		verify.Options{}))(t).Problems), 1, "an empty file: %+v")
}

// TestVerifyEndsWithItsContext, also in the middle of an audit, and tells nothing then.
func TestVerifyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir, backup := backedUp(t)
	for name, check := range map[string]func(context.Context, verify.Options) (*verify.Report, error){
		"directory": func(ctx context.Context, o verify.Options) (*verify.Report, error) {
			return verify.Directory(ctx, dir, o)
		},
		"backup": func(ctx context.Context, o verify.Options) (*verify.Report, error) {
			return verify.Backup(ctx, bytes.NewReader(backup), o)
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		_, err := check(ctx, verify.Options{Progress: func(machine.AuditSummary) {
			calls++
			cancel()
		}})
		if !errors.Is(err, context.Canceled) || calls == 0 {
			t.Errorf("%s: %v after %d calls", name, err, calls)
		}
		cancel()
	}
}

// copyOf copies the state file and the blocks of a directory, as a restore does before it replays the log
// into them.
func copyOf(t *testing.T, d *datadir.Directory) string {
	t.Helper()
	content := must.Get(os.ReadFile(d.State()))(t)
	to := t.TempDir()
	path := filepath.Join(to, "copy.db")
	must.Do(t, os.WriteFile(path, content, 0o600))
	must.Do(t, os.CopyFS(filepath.Join(to, datadir.BlocksName), os.DirFS(d.Blocks())))
	return path
}

// TestReplayIntoACopy brings the copy to the end of the log, and leaves the directory as it is.
func TestReplayIntoACopy(t *testing.T) {
	t.Parallel()
	dir := written(t)
	want := must.Get(verify.Directory(t.Context(), dir, verify.Options{}))(t)
	d := must.Get(datadir.OpenLedger(dir))(t)
	before := must.Get(os.ReadFile(d.State()))(t)
	path := copyOf(t, d)
	for range 2 { // again over the result: nothing is left to replay
		got := must.Get(verify.ReplayInto(t.Context(), path, d))(t)
		if got.Index != want.Index || got.Digest != want.Digest || got.Transactions != want.Transactions {
			t.Errorf("in the copy: %+v\nin the directory: %+v", got, want)
		}
	}
	after, err := os.ReadFile(d.State())
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the directory's state file has changed (%v)", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check.Is(t, check.Err(verify.ReplayInto(ctx, copyOf(t, d), d)), context.Canceled, "cancelled")
	must.Do(t, d.Close())
}

// TestReplayOfDamage is an error that says so: a restore must not make a ledger of it.
func TestReplayOfDamage(t *testing.T) {
	t.Parallel()
	for needle, name := range map[string]string{
		"needle-123": "blocks/0000000001.blocks", "hay-290": "state.db", "client-3": "state.db",
	} {
		dir := written(t)
		d := must.Get(datadir.OpenLedger(dir))(t)
		file := filepath.Join(dir, name)
		content := must.Get(os.ReadFile(file))(t)
		wrong := []byte(needle)
		wrong[len(wrong)-1] ^= 4
		if !bytes.Contains(content, []byte(needle)) {
			t.Fatalf("%q is not in the file", needle)
		}
		must.Do(t, os.WriteFile(file, bytes.ReplaceAll(content, []byte(needle), wrong), 0o600))
		if report, err := verify.ReplayInto(t.Context(), copyOf(t, d), d); !verify.IsDamage(err) {
			t.Errorf("%q became %q: %+v, %v", needle, wrong, report, err)
		}
		must.Do(t, d.Close())
	}
}

// TestWhatIsDamage: only what shows that stored bytes are not those that were written.
func TestWhatIsDamage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		want bool
	}{
		{machine.ErrCorrupt, true}, {fmt.Errorf("outer: %w", machine.ErrCorrupt), true},
		{nil, false}, {os.ErrPermission, false}, {context.Canceled, false}, {datadir.ErrInUse, false},
		{io.ErrUnexpectedEOF, false}, {&backupfile.DamageError{}, false}, // of a backup, and not of the ledger
	} {
		check.Equal(t, verify.IsDamage(test.err), test.want, "%v is damage: %v", test.err)
	}
}
