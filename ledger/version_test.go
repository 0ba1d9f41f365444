package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/verify"
)

// TestOtherVersionIsNoDamage: what has another version under a right checksum is refused with both versions and no
// advice of damage. Without the right checksum it is damage.
func TestOtherVersionIsNoDamage(t *testing.T) {
	t.Parallel()
	root := versionFiles(t)
	for _, test := range []struct {
		name, file string
		change     func(b []byte, sealed bool) []byte
	}{
		{"log", "data/log/segments/*.log", versionAt(7, 2, 4092, binary.LittleEndian.PutUint32)},
		{"block file", "data/blocks/*.blocks", versionAt(19, 2, 92, binary.BigEndian.PutUint32)},
		{"page checksums", "data/state.sum", versionAt(15, '2', 24, binary.LittleEndian.PutUint32)},
		{"format of the state", "data/state.db", recordVersion(t, "seqledger", "format", 16, 255)},
		{"head of the state", "data/state.db", recordVersion(t, "\x00", "head", 0, 0)},
		{"archive", "archive/*/FORMAT", lineVersion},
		{"state in the archive", "archive/*/state/*.state", lineVersion},
		{"block file in the archive", "archive/*/blocks/*", versionAt(19, 2, 92, binary.BigEndian.PutUint32)},
		{"backup", "backup", func(b []byte, sealed bool) []byte {
			rest := int(binary.BigEndian.Uint32(b[140:])) + 8*int(binary.BigEndian.Uint32(b[144:]))
			b = versionAt(19, 2, 148, binary.BigEndian.PutUint32)(b, sealed)
			return versionAt(19, 2, 152+rest, binary.BigEndian.PutUint32)(b, sealed)
		}},
	} {
		for _, sealed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, sealed %t", test.name, sealed), func(t *testing.T) {
				t.Parallel()
				root := copyDirectory(t, root)
				paths, err := filepath.Glob(filepath.Join(root, test.file))
				if err != nil || len(paths) == 0 {
					t.Fatal(test.file, err)
				}
				for _, path := range paths {
					b, err := os.ReadFile(path)
					mustDo(t, err)
					mustDo(t, os.WriteFile(path, test.change(b, sealed), 0o600))
				}
				part, _, _ := strings.Cut(test.file, "/")
				problems, err := verifyPart(t, root, part)
				if !sealed {
					if err != nil || len(problems) == 0 {
						t.Errorf("a version under a wrong checksum: %v, %v", problems, err)
					}
					return
				}
				wantVersion(t, err)
			})
		}
	}
	entry := machine.AppendEntry(nil, 1, machine.AppendTick(nil))
	entry[0] = 2
	_, _, err := machine.DecodeEntry(entry)
	wantVersion(t, err)
	wantVersion(t, machine.CheckKey(make([]byte, 8), []byte{2}))
	_, _, err = raftlog.DecodeMembers(append([]byte{3}, make([]byte, 32)...))
	wantVersion(t, err)
}

func wantVersion(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, boltstore.ErrVersion) || verify.IsDamage(err) {
		t.Fatalf("want another version, and no damage: %v", err)
	}
	text := err.Error()
	if !strings.Contains(text, "has format version ") || !strings.HasSuffix(text, "; use the program that wrote it") ||
		strings.Contains(text, "damage") || strings.Contains(text, "restore") {
		t.Errorf("another version is told as %q", text)
	}
}

// versionFiles makes a directory with a data directory, its archive and a backup.
func versionFiles(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	mustDo(t, os.Mkdir(filepath.Join(root, "archive"), 0o700))
	l, _ := openWithStates(t, filepath.Join(root, "data"), filepath.Join(root, "archive"), 0)
	l.fill(2 << 20)
	check.Equal(t, l.copyStateNow(), "", "problem: %q")
	l.archiveAll()
	backup, err := os.Create(filepath.Join(root, "backup"))
	mustDo(t, err)
	_, err = l.Backup(t.Context(), backup, BackupOptions{RateBytes: -1})
	mustDo(t, errors.Join(err, backup.Close()))
	l.closeAndAudit()
	return root
}

func verifyPart(t *testing.T, root, part string) ([]machine.Problem, error) {
	t.Helper()
	if part == "archive" {
		target := archive.Directory(filepath.Join(root, part))
		report, err := archive.Verify(t.Context(), target, must.Get(archive.Ledgers(t.Context(), target))(t)[0], nil)
		return report.Problems, err
	}
	var report *verify.Report
	var err error
	if part == "data" {
		report, err = verify.Directory(t.Context(), filepath.Join(root, part), verify.Options{})
	} else {
		b, failed := os.ReadFile(filepath.Join(root, part))
		mustDo(t, failed)
		report, err = verify.Backup(t.Context(), bytes.NewReader(b), verify.Options{})
	}
	if err != nil {
		return nil, err
	}
	return report.Problems, nil
}

// versionAt changes a byte, and the CRC-32C of all before a place, which is there.
func versionAt(at int, version byte, sum int, put func([]byte, uint32)) func([]byte, bool) []byte {
	return func(b []byte, sealed bool) []byte {
		b[at] = version
		if sealed {
			put(b[sum:], crc32.Checksum(b[:sum], crc32.MakeTable(crc32.Castagnoli)))
		}
		return b
	}
}

// lineVersion changes the version of an archive, and the hash of the line that has it.
func lineVersion(b []byte, sealed bool) []byte {
	content := string(b[:len(b)-2*sha256.Size-1])
	changed := strings.Replace(strings.Replace(content, "archive 1", "archive 2", 1), "state 1", "state 2", 1)
	if sealed {
		return fmt.Appendf([]byte(changed), "%x\n", sha256.Sum256([]byte(changed)))
	}
	return append([]byte(changed), b[len(content):]...)
}

// recordVersion changes a byte of a record of a state file, and the checksum of the record.
func recordVersion(t *testing.T, bucket, key string, at int, table uint32) func([]byte, bool) []byte {
	return func(b []byte, sealed bool) []byte {
		path := filepath.Join(t.TempDir(), "state.db")
		mustDo(t, os.WriteFile(path, b, 0o600))
		file, err := bbolt.Open(path, 0o600, nil)
		mustDo(t, err)
		mustDo(t, file.Update(func(tx *bbolt.Tx) error {
			records := tx.Bucket([]byte(bucket))
			value := bytes.Clone(records.Get([]byte(key)))
			value[at] = 2
			if end := len(value) - 4; sealed {
				begin := crc32.Update(table<<16|uint32(len(key)), crc32.MakeTable(crc32.Castagnoli), []byte(key))
				binary.LittleEndian.PutUint32(value[end:],
					crc32.Update(begin, crc32.MakeTable(crc32.Castagnoli), value[:end]))
			}
			return records.Put([]byte(key), value)
		}))
		mustDo(t, file.Close())
		b, err = os.ReadFile(path)
		mustDo(t, err)
		return b
	}
}
