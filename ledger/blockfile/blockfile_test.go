package blockfile

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

var testID = [16]byte([]byte("sixteen bytes id"))

// stored is a record as a test wrote it.
type stored struct {
	last uint64
	data []byte
}

// makeRecords returns n records of up to size bytes, whose indexes have gaps.
func makeRecords(random *rand.Rand, n, size int) []stored {
	records := make([]stored, n)
	last := uint64(0)
	for i := range records {
		last += 1 + uint64(random.IntN(3))
		data := make([]byte, random.IntN(size+1))
		for j := range data {
			data[j] = byte(random.Uint32())
		}
		records[i] = stored{last, data}
	}
	return records
}

func mustOpen(t testing.TB, o Options) *Files {
	t.Helper()
	f := must.Get(Open(o))(t)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func mustAppend(t testing.TB, f *Files, records []stored) {
	t.Helper()
	for _, r := range records {
		must.Do(t, f.Append(r.last, r.data))
	}
	f.Publish()
}

// contents returns what a reader finds, and the first error.
func contents(f *Files) (records []stored, err error) {
	r := f.Reader()
	defer r.Close()
	err = r.Ascend(0, func(x Record) bool {
		if err = x.Check(); err == nil {
			records = append(records, stored{x.Last, bytes.Clone(x.Data)})
		}
		return err == nil
	})
	return records, err
}

func same(a, b []stored) bool {
	return slices.EqualFunc(a, b, func(a, b stored) bool { return a.last == b.last && bytes.Equal(a.data, b.data) })
}

func mustHave(t testing.TB, f *Files, want []stored) {
	t.Helper()
	got, err := contents(f)
	if err != nil || !same(got, want) {
		t.Fatalf("%d records (%v), want %d", len(got), err, len(want))
	}
	r := f.Reader()
	defer r.Close()
	end := uint64(0)
	for i, w := range want {
		for index := end + 1; index <= w.last; index++ {
			x, found, err := r.Find(index)
			if err != nil || !found || x.Last != w.last || !bytes.Equal(x.Data, w.data) {
				t.Fatalf("index %d: %v %d (%v), want record %d with index %d", index, found, x.Last, err, i, w.last)
			}
		}
		end = w.last
	}
	if _, found, err := r.Find(end + 1); found || err != nil {
		t.Fatalf("something is found behind the last record (%v)", err)
	}
}

func TestRecordsAreFound(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 0))
		o := Options{
			Disk: Directory{Path: filepath.Join(t.TempDir(), "blocks"), NoSync: true},
			Mark: Mark{ID: testID, SealBytes: []int64{100, 3000, 70_000}[seed%3]},
		}
		f := mustOpen(t, o)
		check.Equal(t, f.Mark(), o.Mark, "an empty directory stands at %+v")
		records := makeRecords(random, 300, []int{40, 3000}[seed%2])
		for part := range slices.Chunk(records, 75) {
			mustAppend(t, f, part)
		}
		mustHave(t, f, records)
		for range 3 { // and after every start, which appends no more
			must.Get(f.Sync())(t)
			o.Mark = f.Mark()
			f = mustOpen(t, o)
			if behind, err := f.Finish(); behind != 0 || err != nil {
				t.Fatal(behind, err)
			}
			mustHave(t, f, records)
			more := []stored{{records[len(records)-1].last + 2, []byte("more")}}
			mustAppend(t, f, more)
			records = append(records, more...)
			mustHave(t, f, records)
		}
		if n := len(f.published.Load().sealed); seed%3 == 0 && n < 10 {
			t.Errorf("only %d files were sealed", n)
		}
	}
}

// The bytes of a file do not change; FORMAT.md describes them.
func TestBytesOfAFile(t *testing.T) {
	t.Parallel()
	dir := Directory{Path: filepath.Join(t.TempDir(), "blocks"), NoSync: true}
	f := mustOpen(t, Options{Disk: dir, Mark: Mark{ID: testID, SealBytes: 1}})
	mustAppend(t, f, []stored{{3, []byte("three")}, {9, []byte("nine")}})
	var got strings.Builder
	for number := range uint64(2) {
		b := must.Get(os.ReadFile(filepath.Join(dir.Path, Name(number+1))))(t)
		fmt.Fprintf(&got, "%s\n%s", Name(number+1), hex.Dump(b))
	}
	golden := filepath.Join("testdata", "files.txt")
	want, err := os.ReadFile(golden)
	if os.Getenv("SEQLEDGER_WRITE_GOLDEN") != "" {
		err = errors.Join(os.MkdirAll("testdata", 0o700), os.WriteFile(golden, []byte(got.String()), 0o600))
		want = []byte(got.String())
	}
	if err != nil || got.String() != string(want) {
		t.Errorf("%v\n%s", err, got.String())
	}
	if DefaultSealBytes != 64<<20 || stride != 16<<10 {
		t.Error("a constant has changed that decides where records lie in files of version 1")
	}
}

// A reader sees what was published when it was made, and the appending goroutine all.
func TestPublish(t *testing.T) {
	t.Parallel()
	f := mustOpen(t, Options{Disk: NewMemoryDisk(), Mark: Mark{ID: testID, SealBytes: 100}})
	records := makeRecords(rand.New(rand.NewPCG(1, 1)), 20, 50)
	mustAppend(t, f, records[:10])
	early := f.Reader()
	defer early.Close()
	for _, r := range records[10:] {
		must.Do(t, f.Append(r.last, r.data))
	}
	mustHave(t, f, records[:10])
	own := f.OwnReader()
	if x, found, err := own.Find(records[19].last); !found || err != nil || !bytes.Equal(x.Data, records[19].data) {
		t.Errorf("the appending goroutine does not find its record: %v", err)
	}
	own.Close()
	f.Publish()
	mustHave(t, f, records)
	if _, found, _ := early.Find(records[10].last); found {
		t.Error("an earlier reader sees a later record")
	}
}

// Readers go on beside the one that appends and the one that syncs.
func TestReadersBesideTheAppender(t *testing.T) {
	t.Parallel()
	dir := Directory{Path: filepath.Join(t.TempDir(), "blocks"), NoSync: true}
	f := mustOpen(t, Options{Disk: dir, Mark: Mark{ID: testID, SealBytes: 2000}})
	records := makeRecords(rand.New(rand.NewPCG(2, 2)), 2000, 200)
	var group sync.WaitGroup
	done := make(chan struct{})
	for range 3 {
		group.Go(func() {
			for over := false; !over; {
				select {
				case <-done:
					over = true
				default:
				}
				got, err := contents(f)
				if err != nil || !same(got, records[:len(got)]) {
					t.Errorf("%d records: %v", len(got), err)
					return
				}
			}
		})
	}
	group.Go(func() {
		for over := false; !over; {
			select {
			case <-done:
				over = true
			default:
			}
			check.Is(t, check.Err(f.Sync()), nil)
		}
	})
	for part := range slices.Chunk(records, 10) {
		mustAppend(t, f, part)
	}
	close(done)
	group.Wait()
	mustHave(t, f, records)
	if n := len(f.handles.open); n > maxHandles+1 {
		t.Errorf("%d files are open, at most %d may be", n, maxHandles+1)
	}
}

// A replay that only verifies changes no file, compares, and reads what it made.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	dir := Directory{Path: filepath.Join(t.TempDir(), "blocks"), NoSync: true}
	o := Options{Disk: dir, Mark: Mark{ID: testID, SealBytes: 300}}
	records := makeRecords(rand.New(rand.NewPCG(3, 3)), 40, 100)
	f := mustOpen(t, o)
	mustAppend(t, f, records[:15])
	o.Mark = f.Mark()
	mustAppend(t, f, records[15:30]) // behind the mark
	before := readAll(t, dir.Path)
	o.ReadOnly = true
	again := mustOpen(t, o)
	mustHave(t, again, records[:15])
	mustAppend(t, again, records[15:])
	mustHave(t, again, records)
	if behind, err := again.Finish(); behind != 0 || err != nil {
		t.Error(behind, err)
	}
	must.Get(again.Sync())(t)
	other := mustOpen(t, o)
	changed := stored{records[15].last, append(bytes.Clone(records[15].data), 1)}
	check.Is(t, other.Append(changed.last, changed.data), machine.ErrCorrupt,
		"another record than the one that is there")
	if after := readAll(t, dir.Path); !mapsEqual(before, after) {
		t.Error("a read-only replay has changed a file")
	}
}

func mapsEqual(a, b map[string][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for name := range a {
		if !bytes.Equal(a[name], b[name]) {
			return false
		}
	}
	return true
}

func readAll(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	names := must.Get(Directory{Path: dir}.List())(t)
	for _, name := range names {
		files[name] = must.Get(os.ReadFile(filepath.Join(dir, name)))(t)
	}
	return files
}

func TestAppendInOrder(t *testing.T) {
	t.Parallel()
	f := mustOpen(t, Options{Disk: NewMemoryDisk(), Mark: Mark{ID: testID, SealBytes: DefaultSealBytes}})
	mustAppend(t, f, []stored{{5, nil}})
	for _, last := range []uint64{0, 4, 5} {
		if err := f.Append(last, nil); err == nil {
			t.Errorf("index %d is taken behind index 5", last)
		}
	}
}

func TestMarkRoundTrip(t *testing.T) {
	t.Parallel()
	for _, m := range []Mark{
		{ID: testID, SealBytes: 1}, {testID, 5, 1, 200, 1, [32]byte{1, 31: 2}},
		{testID, 1 << 30, 1 << 40, 1 << 41, 1 << 57, [32]byte{}},
	} {
		got, err := DecodeMark(m.Append(nil))
		if err != nil || got != m {
			t.Errorf("%+v became %+v (%v)", m, got, err)
		}
	}
	for _, m := range []Mark{
		{}, {SealBytes: 1, Number: 1}, {SealBytes: 1, Length: 1}, {SealBytes: 1, Last: 1},
		{SealBytes: 1, Number: 1, Length: 5, Last: 1}, {Number: 1, Length: 500, Last: 1},
	} {
		check.Is(t, check.Err(DecodeMark(m.Append(nil))), machine.ErrCorrupt, "%+v is taken", m)
	}
	check.Is(t, check.Err(DecodeMark(nil)), machine.ErrCorrupt, "nothing is taken for a mark")
}

// Find returns the first record at or after a ledger index.
func (r *Reader) Find(ledgerIndex uint64) (record Record, found bool, err error) {
	err = r.Ascend(ledgerIndex, func(x Record) bool {
		record, found = x, true
		return false
	})
	return record, found, err
}
