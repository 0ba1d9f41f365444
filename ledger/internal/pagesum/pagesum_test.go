package pagesum

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/must"
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
	must.Do(t, err)
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
	must.Do(t, err)
	if m, err = boltpage.ReadMeta(bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	pages = boltpage.New(content[:int64(m.Pages)*m.PageSize], int(m.PageSize))
	s, err := Open(filepath.Join(dir, "state.sum"), pages, m, testOptions)
	if err == nil {
		err = s.Close()
	}
	must.Do(t, err)
	sums = must.Get(os.ReadFile(filepath.Join(dir, "state.sum")))(t)
	return pages, m, sums
}

// After a failed fsync the last record may be in the system's cache and not on the disk. A start writes it again, with
// the same bytes, before another one follows it.
func TestLastRecordIsWrittenAgain(t *testing.T) {
	t.Parallel()
	pages, m, sums := small(t)
	path, past := filepath.Join(t.TempDir(), "state.sum"), time.Unix(1, 0)
	must.Do(t, errors.Join(os.WriteFile(path, sums, 0o600), os.Chtimes(path, past, past)))
	s := must.Get(Open(path, pages, m, testOptions))(t)
	must.Do(t, s.Close())
	if at := must.Get(os.Stat(path))(t).ModTime(); at.Equal(past) {
		t.Error("it was not written")
	}
	if !bytes.Equal(must.Get(os.ReadFile(path))(t), sums) || s.last == 0 || s.last >= s.end {
		t.Errorf("bytes %d to %d were written, and it has others", s.last, s.end)
	}
}

// TestGolden: FORMAT.md says what the bytes are, and later programs read them.
func TestGolden(t *testing.T) {
	t.Parallel()
	pages, m, sums := small(t)
	tag := sha256.Sum256(testOptions.Identity)
	want := append([]byte("seqledger sums 1"), tag[:8]...)
	want = binary.LittleEndian.AppendUint32(want, crc32.Checksum(want, castagnoli))
	begin := len(want)
	live := must.Get(pages.Live(m))(t)
	want = binary.LittleEndian.AppendUint64(want, 3)
	want = binary.LittleEndian.AppendUint32(want, uint32(bits.OnesCount64(live[0])))
	for id := range m.Pages {
		if live[0]>>id&1 == 1 {
			want = binary.LittleEndian.AppendUint64(want, id)
			want = binary.LittleEndian.AppendUint32(want, crc32.ChecksumIEEE(pages.Raw(id)))
		}
	}
	sum := crc32.Update(binary.LittleEndian.Uint32(want[24:]), castagnoli, want[begin:])
	if want = binary.LittleEndian.AppendUint32(want, sum); !bytes.Equal(sums, want) {
		t.Errorf("got %x\nwant %x", sums, want)
	}
}

// recordsOf returns where each record of a file begins, and where the last one ends.
func recordsOf(content []byte) (at []int) {
	for next := headerSize; ; next += recordSize + entrySize*int(binary.LittleEndian.Uint32(content[next+8:])) {
		if at = append(at, next); next+recordSize > len(content) {
			return at
		}
	}
}

// reseal gives a header and its records the checksums that they should have.
func reseal(content []byte) {
	if len(content) < headerSize {
		return
	}
	sum := crc32.Checksum(content[:headerSize-4], castagnoli)
	binary.LittleEndian.PutUint32(content[headerSize-4:], sum)
	for rest := content[headerSize:]; len(rest) >= recordSize; {
		end := 12 + entrySize*int(binary.LittleEndian.Uint32(rest[8:]))
		if end > len(rest)-4 {
			return
		}
		sum = crc32.Update(sum, castagnoli, rest[:end])
		binary.LittleEndian.PutUint32(rest[end:], sum)
		rest = rest[end+4:]
	}
}

// TestDamageIsNamed: a bit that is flipped, or a cut, is refused, unless it is in the last record: that is what a crash
// may leave, and the record is made again.
func TestDamageIsNamed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		d := begin(rt, t.TempDir())
		defer d.close()
		for range rapid.IntRange(2, 4).Draw(rt, "transactions") {
			d.transact(rt)
			pages, m := d.read(rt)
			must.Do(rt, d.sums.Update(pages, m))
		}
		d.keep(rt)
		for range 20 {
			d.damage(rt)
		}
	})
}

// damage opens a copy of the file with damage.
func (d *disk) damage(t *rapid.T) {
	records := recordsOf(d.before)
	at, content := rapid.IntRange(0, len(d.before)-1).Draw(t, "byte"), bytes.Clone(d.before)
	missing := false
	if rapid.Bool().Draw(t, "cut") {
		content, missing = content[:at], at > headerSize && slices.Contains(records, at)
	} else {
		content[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
	}
	path := filepath.Join(d.dir, "damaged.sum")
	must.Do(t, os.WriteFile(path, content, 0o600))
	pages, m := d.read(t)
	s, err := Open(path, pages, m, testOptions)
	switch {
	case at >= records[len(records)-2]:
		must.Do(t, err, "the last record is damaged")
		if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, d.before) {
			t.Fatalf("the file is not what it was: %v", err)
		}
		_ = s.Close()
	case missing:
		must.Is(t, err, ErrOther, "a file without its last records")
	case !errors.Is(err, ErrSums):
		t.Fatalf("byte %d is damaged, and records begin at %v: %v", at, records, err)
	}
}

// FuzzOpen: whatever a file says under right checksums of its own, Open refuses it, or ends with a file
// that the next Open takes; and it takes no more memory than the two files have.
func FuzzOpen(f *testing.F) {
	pages, m, sums := small(f)
	length := uint16(len(sums))
	f.Add(uint16(0), []byte{}, length)
	f.Add(uint16(15), []byte("2"), length)
	f.Add(uint16(16), []byte{9}, length)
	f.Add(uint16(28), []byte{2}, length)
	f.Add(uint16(28), []byte{4}, length)
	f.Add(uint16(36), bytes.Repeat([]byte{0xff}, 4), length)
	f.Add(uint16(40), bytes.Repeat([]byte{0xff}, 8), length)
	f.Fuzz(func(t *testing.T, at uint16, change []byte, length uint16) {
		content := bytes.Clone(sums)
		copy(content[min(int(at), len(content)):], change)
		content = content[:min(int(length), len(content))]
		reseal(content)
		path := filepath.Join(t.TempDir(), "state.sum")
		must.Do(t, os.WriteFile(path, content, 0o600))
		for range 2 {
			s, err := Open(path, pages, m, testOptions)
			if err != nil {
				if !errors.Is(err, ErrSums) && !errors.Is(err, ErrOther) && !errors.Is(err, ErrForeign) &&
					!errors.Is(err, format.ErrVersion) {
					t.Fatal(err)
				}
				return
			}
			if s.Pages() != m.Pages {
				t.Errorf("%d pages of %d", s.Pages(), m.Pages)
			}
			must.Do(t, s.Close())
		}
	})
}
