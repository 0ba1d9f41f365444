package pagesum

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/internal/boltpage"
	"github.com/seqledger/seqledger/ledger/internal/format"
)

var testOptions = Options{Identity: []byte("0123456789abcdef"), NoSync: true}

// small makes a bbolt file of some pages after two transactions, with its sums.
func small(t testing.TB) (pages boltpage.Pages, m boltpage.Meta, sums []byte) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{PageSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		err = errors.Join(err, db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("b"))
			for k := range 300 {
				err = errors.Join(err, b.Put(binary.BigEndian.AppendUint32(nil, uint32(k)),
					bytes.Repeat([]byte{byte(i)}, 40)))
			}
			return err
		}))
	}
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = boltpage.ReadMeta(bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	pages = boltpage.New(content[:int64(m.Pages)*m.PageSize], int(m.PageSize))
	s, err := Open(filepath.Join(dir, "state.sum"), pages, m, testOptions)
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if sums, err = os.ReadFile(filepath.Join(dir, "state.sum")); err != nil {
		t.Fatal(err)
	}
	return pages, m, sums
}

// TestGolden: FORMAT.md says what the bytes are, and later programs read them.
func TestGolden(t *testing.T) {
	t.Parallel()
	pages, m, sums := small(t)
	if len(sums) != 4*slotSize {
		t.Fatalf("%d bytes", len(sums))
	}
	header, pair := sums[slotSize:2*slotSize], sums[3*slotSize:]
	tag := sha256.Sum256(testOptions.Identity)
	if string(header[:16]) != "seqledger sums 1" || !bytes.Equal(header[16:24], tag[:8]) ||
		binary.LittleEndian.Uint64(header[24:]) != m.TxID || binary.LittleEndian.Uint64(header[32:]) != m.Pages ||
		binary.LittleEndian.Uint64(header[40:]) != 4096 || !bytes.Equal(header[56:4092], make([]byte, 4036)) {
		t.Errorf("the header is %x", header[:56])
	}
	if m.TxID != 3 || hex.EncodeToString(header[48:56]) != "f02814e3ed5e531e" {
		t.Errorf("the digest after transaction %d is %x", m.TxID, header[48:56])
	}
	if !bytes.Equal(pair[:24], append(append(make([]byte, 8), tag[:8]...), header[24:32]...)) {
		t.Errorf("the pair begins with %x", pair[:24])
	}
	live, err := pages.Live(m)
	if err != nil {
		t.Fatal(err)
	}
	for id := uint64(0); id < m.Pages; id++ {
		sum := binary.LittleEndian.Uint32(pair[24+4*id:])
		if live[0]>>id&1 == 1 && sum != crc32.ChecksumIEEE(pages.Raw(id)) {
			t.Errorf("page %d has the checksum %08x", id, sum)
		}
	}
}

// reseal gives each slot of a file the checksum that it should have.
func reseal(content []byte) {
	for at := 0; at+slotSize <= len(content); at += slotSize {
		slot := content[at : at+slotSize]
		binary.LittleEndian.PutUint32(slot[slotSize-4:], crc32.Checksum(slot[:slotSize-4], castagnoli))
	}
}

// FuzzOpen: whatever a file says under right checksums of its own, Open refuses it, or ends with a file
// that the next Open takes; and it takes no more memory than the two files have.
func FuzzOpen(f *testing.F) {
	pages, m, sums := small(f)
	f.Add(uint16(0), []byte{}, uint16(4*slotSize-1))
	f.Add(uint16(slotSize+32), bytes.Repeat([]byte{0xff}, 8), uint16(4*slotSize-1))
	f.Add(uint16(slotSize+24), []byte{2}, uint16(4*slotSize-1))
	f.Add(uint16(3*slotSize+16), []byte{9}, uint16(4*slotSize-1))
	f.Add(uint16(slotSize+15), []byte("2"), uint16(4*slotSize-1))
	f.Fuzz(func(t *testing.T, at uint16, change []byte, length uint16) {
		content := bytes.Clone(sums)
		copy(content[min(int(at), len(content)):], change)
		content = content[:min(int(length), len(content))]
		reseal(content)
		path := filepath.Join(t.TempDir(), "state.sum")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			s, err := Open(path, pages, m, testOptions)
			if err != nil {
				if !errors.Is(err, ErrSums) && !errors.Is(err, ErrOther) && !errors.Is(err, ErrForeign) &&
					!errors.Is(err, format.ErrVersion) {
					t.Fatal(err)
				}
				return
			}
			if s.Pages() > m.Pages+m.Pages/4 {
				t.Errorf("%d pages of %d", s.Pages(), m.Pages)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
