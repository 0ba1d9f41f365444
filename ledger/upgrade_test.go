package ledger_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/upgrade"
	"github.com/seqledger/seqledger/ledger/verify"
)

// oldDirectory unpacks a data directory that an older version has written, and
// tells what was in it.
func oldDirectory(t *testing.T, name string) (dir string, writes int, index uint64, digest string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(text), "writes %d\nindex %d\ndigest %s\n", &writes, &index, &digest); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join("testdata", name+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return filepath.Join(dir, "data"), writes, index, digest
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(header.Name))
		if header.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
			continue
		}
		out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = io.Copy(out, archive)
			err = errors.Join(err, out.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// standing is a clock with which ledger time goes on where it was: by today's, the streams of an old directory
// would have expired.
func standing() time.Time { return time.Time{} }

// oldWrite is write i of an old directory.
func oldWrite(i int) *machine.Write {
	w := appendWrite(fmt.Sprintf("client-%02d", i%7), uint64(i/7)+1, fmt.Append(nil, "payload ", i))
	w.Key = machine.Key{UUID: [16]byte{byte(i), byte(i >> 8), 1}, Present: true}
	w.Operations = append(w.Operations,
		machine.Operation{Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "account/%d", i%11),
			Value: fmt.Appendf(nil, "%0100d", i)},
		machine.Operation{Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "lease/%d", i), Value: []byte("x"),
			ExpiresAt: 1},
		machine.Operation{Kind: machine.OpCreateRelationship, Key: []byte("doc"), Relation: []byte("owner"),
			Subject: fmt.Appendf(nil, "u%d", i%5)})
	return w
}

// oldDirectories are those in testdata: of format level 1 with a state file of version 2, and of
// level 2 with one of version 3. Each was left after a clean stop, killed before the first
// checkpoint, and killed with blocks ahead of a checkpoint.
var oldDirectories = []string{
	"level1/clean", "level1/killed", "level1/ahead", "format3/clean", "format3/killed", "format3/ahead",
}

// A data directory of an older format is upgraded, verified and opened, however it was
// left. Every write that it has is answered as before, and it goes on at the level of this
// program.
func TestOldDirectories(t *testing.T) {
	t.Parallel()
	for _, name := range oldDirectories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, writes, index, digest := oldDirectory(t, name)
			if _, err := ledger.Open(t.Context(), ledger.Options{Dir: dir}); err == nil ||
				!strings.Contains(err.Error(), "seqledger upgrade --data") {
				t.Errorf("a start before the upgrade says %v", err)
			}
			// What an upgrade leaves that was killed.
			must(t, errors.Join(os.Mkdir(filepath.Join(dir, "blocks"), 0o700),
				os.WriteFile(filepath.Join(dir, "blocks", "0000000001.blocks"), []byte("half a file"), 0o600),
				os.WriteFile(filepath.Join(dir, "state.db.new-1"), []byte("half a state"), 0o600)))
			for _, upgraded := range []bool{true, false} { // the second time there is nothing to do
				info, err := upgrade.Directory(t.Context(), dir, upgrade.Options{})
				if err != nil || info.Upgraded != upgraded || info.Index != index || info.Digest.String() != digest {
					t.Fatalf("upgrade: %+v, %v", info, err)
				}
			}
			verify := func() *verify.Report {
				t.Helper()
				report, err := verify.Directory(t.Context(), dir, verify.Options{})
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range report.Problems {
					t.Errorf("%s: %s", p.Where, p.What)
				}
				return report
			}
			if r := verify(); r.Index != index || r.Digest.String() != digest {
				t.Errorf("it verifies at index %d with digest %s, want %d with %s", r.Index, r.Digest, index, digest)
			}
			for restart := range 2 {
				l := open(t, ledger.Options{Dir: dir, Clock: standing})
				const window, clients = 8, 7
				for i := range writes {
					want := machine.Replayed
					if i < writes-window*clients+restart*clients {
						want = machine.AlreadyCommitted
					}
					mustWrite(t, l, oldWrite(i), want)
				}
				for i := writes; i < writes+clients; i++ {
					want := machine.Committed
					if restart > 0 {
						want = machine.Replayed
					}
					mustWrite(t, l, oldWrite(i), want)
				}
				err := l.View(t.Context(), func(v machine.View) error {
					if v.Level() != machine.Level {
						t.Errorf("the ledger is at level %d", v.Level())
					}
					e, err := v.Entity(scope, fmt.Sprint("account/", (writes-1)%11))
					if err == nil && string(e.Value) != fmt.Sprintf("%0100d", writes-1) {
						t.Errorf("account %d is %s", (writes-1)%11, e.Value)
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
				closeLedger(t, l)
			}
			verify()
			if got := listing(t, dir); strings.Contains(got, "new-") {
				t.Errorf("the upgrade leaves %s", got)
			}
		})
	}
}

// copyTree copies a directory as a kill of the process would leave it.
func copyTree(t *testing.T, from string) (to string) {
	t.Helper()
	to = filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// An upgrade that is killed, wherever it is, is begun again and gives the same. What it leaves is
// the older directory until the very last step.
func TestUpgradeThatIsKilled(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"level1/ahead", "format3/ahead", "format3/clean"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, _, index, digest := oldDirectory(t, name)
			pristine := copyTree(t, dir)
			var killed []string // directories
			copied, checked := 0, 0
			keep := func(n *int, every int) {
				if *n++; *n%every == 1 {
					killed = append(killed, copyTree(t, dir))
				}
			}
			every := 50
			if testing.Short() {
				every = 400
			}
			_, err := upgrade.Directory(t.Context(), dir, upgrade.Options{
				Progress: func(int64) { keep(&copied, every) },
				Verified: func(machine.AuditSummary) { keep(&checked, every) },
			})
			if err != nil || copied < 200 || checked < 200 {
				t.Fatalf("%v: %d records were copied, %d blocks checked", err, copied, checked)
			}
			for i, at := range killed {
				for _, name := range []string{"state.db", "LEDGER"} {
					want, wantErr := os.ReadFile(filepath.Join(pristine, name))
					got, gotErr := os.ReadFile(filepath.Join(at, name))
					if must(t, errors.Join(wantErr, gotErr)); !bytes.Equal(got, want) {
						t.Errorf("killed at %d of %d: %s has changed", i, len(killed), name)
					}
				}
			}
			// The last step: the checksums of the pages go, and then the new state file comes.
			withoutSums := copyTree(t, pristine)
			must(t, os.RemoveAll(filepath.Join(withoutSums, "state.sum")))
			for i, at := range append(killed, withoutSums, dir) {
				info, err := upgrade.Directory(t.Context(), at, upgrade.Options{})
				if err != nil || info.Upgraded != (at != dir) || info.Index != index || info.Digest.String() != digest {
					t.Fatalf("killed at %d of %d, and again: %+v, %v", i, len(killed), info, err)
				}
				if got, want := listing(t, at), listing(t, dir); got != want {
					t.Errorf("killed at %d of %d: it leaves %s\nwant %s", i, len(killed), got, want)
				}
			}
		})
	}
}

// An upgrade finds damage in what it reads, and leaves the directory as it was.
func TestUpgradeRefusesDamage(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"level1/clean", "format3/clean"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, _, _, _ := oldDirectory(t, name)
			state := filepath.Join(dir, "state.db")
			content, err := os.ReadFile(state)
			must(t, err)
			at := bytes.Index(content, []byte("payload 17"))
			if at < 0 {
				t.Fatal("the state file does not have the write")
			}
			content[at] ^= 1
			must(t, os.WriteFile(state, content, 0o600))
			_, err = upgrade.Directory(t.Context(), dir, upgrade.Options{})
			if !errors.Is(err, machine.ErrCorrupt) {
				t.Fatal(err)
			}
			after, err := os.ReadFile(state)
			if must(t, err); !bytes.Equal(after, content) {
				t.Error("the state file has changed")
			}
		})
	}
}

// An upgrade that cannot make its temporary files says so, and not that the directory is damaged.
func TestUpgradeWithoutTemporaryDirectory(t *testing.T) {
	dir, _, _, _ := oldDirectory(t, "level1/clean")
	absent := filepath.Join(t.TempDir(), "absent")
	t.Setenv("TMPDIR", absent)
	_, err := upgrade.Directory(t.Context(), dir, upgrade.Options{})
	if err == nil || verify.IsDamage(err) || !strings.Contains(err.Error(), absent) {
		t.Errorf("it says: %v", err)
	}
}

// startedBefore returns a directory of format 1, whose state has the format of this program: its log
// is still to be converted.
func startedBefore(t *testing.T, name string) (dir string, writes int) {
	t.Helper()
	dir, writes, _, _ = oldDirectory(t, name)
	if _, err := upgrade.Directory(t.Context(), dir, upgrade.Options{}); err != nil {
		t.Fatal(err)
	}
	return dir, writes
}

// The first start converts a log of before, also behind a conversion that was interrupted at any of
// the moments that can be told apart. A start in a program of before is refused from then on.
func TestOldLogIsConverted(t *testing.T) {
	t.Parallel()
	for name, interrupted := range map[string]func(dir string) error{
		"never": func(string) error { return nil },
		"in the middle": func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "log", "segments.tmp"), 0o700),
				os.WriteFile(filepath.Join(dir, "log", "segments.tmp", "0000000000000001.log"), []byte("x"), 0o600))
		},
		"before the marker": func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "log", "segments"), 0o700),
				os.WriteFile(filepath.Join(dir, "log", "segments", "0000000000000001.log"), []byte("x"), 0o600))
		},
		"behind the marker": func(dir string) error {
			left := filepath.Join(dir, "left")
			if err := os.CopyFS(left, os.DirFS(filepath.Join(dir, "log"))); err != nil {
				return err
			}
			l, err := ledger.Open(t.Context(), ledger.Options{Dir: dir, Clock: standing})
			if err == nil {
				err = l.Close()
			}
			return errors.Join(err, os.Rename(filepath.Join(left, "wal"), filepath.Join(dir, "log", "wal")),
				os.RemoveAll(left))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, writes := startedBefore(t, "format3/killed")
			must(t, interrupted(dir))
			for range 2 {
				l := open(t, ledger.Options{Dir: dir, Clock: standing})
				const window, clients = 8, 7
				for i := range writes {
					want := machine.Replayed
					if i < writes-window*clients {
						want = machine.AlreadyCommitted
					}
					mustWrite(t, l, oldWrite(i), want)
				}
				closeLedger(t, l)
			}
			marker, err := os.ReadFile(filepath.Join(dir, "LEDGER"))
			if err != nil || !strings.HasPrefix(string(marker), `{"format":2,`) {
				t.Errorf("the marker is %q, %v", marker, err)
			}
			for _, gone := range []string{"wal", "snapshots", "segments.tmp", "wal.copy"} {
				if _, err := os.Stat(filepath.Join(dir, "log", gone)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is still there: %v", gone, err)
				}
			}
			report, err := verify.Directory(t.Context(), dir, verify.Options{})
			if err != nil || len(report.Problems) > 0 {
				t.Errorf("verify: %+v, %v", report, err)
			}
		})
	}
}

// A damaged log of before is refused, again and again, and stays as it is.
func TestDamagedOldLogIsRefused(t *testing.T) {
	t.Parallel()
	dir, _ := startedBefore(t, "format3/killed")
	path := filepath.Join(dir, matching(t, dir, "log/wal/*.wal"))
	content, err := os.ReadFile(path)
	must(t, err)
	content[len(trimZeros(content))/2] ^= 1
	must(t, os.WriteFile(path, content, 0o600))
	for range 2 {
		l, err := ledger.Open(t.Context(), ledger.Options{Dir: dir, Clock: standing})
		if err == nil {
			t.Fatalf("a damaged log was opened: %v", l.Close())
		}
		if !verify.IsDamage(err) || !strings.Contains(err.Error(), "backup") {
			t.Errorf("the start says %v", err)
		}
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, content) {
		t.Errorf("the damaged log was changed: %v", err)
	}
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) == 0 {
		t.Errorf("verify: %+v, %v", report, err)
	}
}
