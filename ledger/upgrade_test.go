package ledger_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
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

// A data directory of format level 1 is verified and opened, however it was
// left: after a clean stop, killed before the first checkpoint, and killed with
// blocks ahead of a checkpoint. Every write that it has is answered as before,
// and it goes on at the level of this program.
func TestDirectoriesOfLevel1(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"level1/clean", "level1/killed", "level1/ahead"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, writes, index, digest := oldDirectory(t, name)
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
				l := open(t, ledger.Options{Dir: dir})
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
		})
	}
}
