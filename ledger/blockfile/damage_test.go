package blockfile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// image is a small set of files, and where their checkpoint stands.
type image struct {
	files   map[string][]byte
	mark    Mark
	sealed  []SealedFile // as the checkpoint recorded them; nil for a start that reads the ends of all files
	records []stored
	covered int // by the mark
}

// images are one image twice, once with a record of what is sealed.
func images(t testing.TB, seed uint64) map[string]image {
	t.Helper()
	unknown := makeImage(t, seed)
	known := unknown
	unknown.sealed = nil
	return map[string]image{"recorded": known, "not recorded": unknown}
}

const imageSealBytes = 400

func makeImage(t testing.TB, seed uint64) image {
	t.Helper()
	disk := NewMemoryDisk()
	x := image{files: map[string][]byte{}, records: makeRecords(rand.New(rand.NewPCG(seed, 8)), 14, 60), covered: 9}
	f := mustOpen(t, Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: imageSealBytes}})
	mustAppend(t, f, x.records[:x.covered])
	x.mark = f.Mark()
	x.sealed = f.Sealed(x.mark.Number)
	mustAppend(t, f, x.records[x.covered:])
	if len(disk.files) < 3 {
		t.Fatal("the image has too few files")
	}
	for name, file := range disk.files {
		x.files[name] = bytes.Clone(file.data)
	}
	return x
}

// outcome opens damaged files, replays what the checkpoint lacks and reads everything. It
// fails the test on a wrong answer, and returns the error that the damage gave.
func (x *image) outcome(t testing.TB, what string, files map[string][]byte) error {
	t.Helper()
	disk := NewMemoryDisk()
	for name, data := range files {
		disk.files[name] = &diskFile{disk: disk, memoryFile: memoryFile{data: bytes.Clone(data)}}
	}
	f, err := Open(Options{Disk: disk, Mark: x.mark, Sealed: x.sealed})
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for _, r := range x.records[x.covered:] {
		if err := f.Append(r.last, r.data); err != nil {
			return err
		}
	}
	f.Publish()
	if behind, err := f.Finish(); err != nil || behind != 0 {
		return errors.Join(err, machine.ErrCorrupt)
	}
	r := f.Reader()
	defer r.Close()
	var failed error
	for _, want := range x.records {
		got, found, err := r.Find(want.last)
		if err == nil {
			err = got.Check()
		}
		if err != nil {
			failed = err
			continue
		}
		if !found || got.Last != want.last || !bytes.Equal(got.Data, want.data) {
			t.Fatalf("%s: a wrong answer for ledger index %d", what, want.last)
		}
	}
	return failed
}

// Every bit of every file, flipped one at a time: what the checkpoint covers is refused
// where it is read, what lies behind it is made again, and no answer is wrong.
func TestDamage_EveryBit(t *testing.T) {
	t.Parallel()
	for what, x := range images(t, 1) {
		flipEveryBit(t, what, &x)
	}
}

func flipEveryBit(t *testing.T, what string, x *image) {
	t.Helper()
	must.Do(t, x.outcome(t, "nothing", x.files))
	refused, remade := 0, 0
	for name, data := range x.files {
		for bit := range len(data) * 8 {
			data[bit/8] ^= 1 << (bit % 8)
			err := x.outcome(t, name, x.files)
			data[bit/8] ^= 1 << (bit % 8)
			number, _ := ParseName(name)
			covered := number < x.mark.Number || number == x.mark.Number && int64(bit/8) < x.mark.Length
			switch {
			case err != nil && !errors.Is(err, machine.ErrCorrupt):
				t.Fatalf("%s bit %d: %v", name, bit, err)
			case covered && err == nil:
				t.Fatalf("%s bit %d: nothing notices it", name, bit)
			case !covered && err != nil:
				t.Fatalf("%s bit %d is behind the checkpoint and was not made again: %v", name, bit, err)
			case covered:
				refused++
			default:
				remade++
			}
		}
	}
	if refused == 0 || remade == 0 {
		t.Errorf("%d refused, %d made again", refused, remade)
	}
	t.Logf("of %d flipped bits of block files, %s, %d were refused and %d made again",
		refused+remade, what, refused, remade)
}

// scrubAll scrubs in steps of about n bytes and returns how many bytes it compared.
func scrubAll(f *Files, n int) (total int, err error) {
	for from := uint64(0); ; {
		r := f.Reader()
		next, compared, err := r.Scrub(from, n)
		r.Close()
		total += compared
		if err != nil || next == 0 {
			return total, err
		}
		if next <= from {
			return total, fmt.Errorf("the scrub goes from %d to %d", from, next)
		}
		from = next
	}
}

// The scrub compares all that is published: whatever bit is flipped, it finds it.
func TestDamage_ScrubFindsEveryBit(t *testing.T) {
	t.Parallel()
	x := makeImage(t, 4)
	disk := NewMemoryDisk()
	for name, data := range x.files {
		disk.files[name] = &diskFile{disk: disk, memoryFile: memoryFile{data: bytes.Clone(data)}}
	}
	f := mustOpen(t, Options{Disk: disk, Mark: x.mark})
	mustAppend(t, f, x.records[x.covered:])
	f.Publish()
	footers := 0
	for _, n := range []int{1, 100, 1 << 20} {
		total, err := scrubAll(f, n)
		footers = int(f.Bytes()) - total
		if err != nil || footers <= 0 || footers > len(f.current.sealed)*(trailerSize+20*entrySize) {
			t.Fatalf("in steps of %d bytes it compares %d of %d: %v", n, total, f.Bytes(), err)
		}
	}
	bits := 0
	for name, file := range disk.files {
		for bit := range len(file.data) * 8 {
			file.data[bit/8] ^= 1 << (bit % 8)
			_, err := scrubAll(f, 1_000)
			file.data[bit/8] ^= 1 << (bit % 8)
			must.Is(t, err, machine.ErrCorrupt, "%s bit %d", name, bit)
			bits++
		}
	}
	t.Logf("the scrub finds each of %d flipped bits", bits)
}

// Every length of every file, every missing file, and sectors that were lost, exchanged or
// taken from another directory.
func TestDamage_CutsAndSectors(t *testing.T) {
	t.Parallel()
	other := makeImage(t, 2)
	for _, x := range images(t, 1) {
		cutsAndSectors(t, &x, &other)
	}
}

func cutsAndSectors(t *testing.T, x, other *image) {
	t.Helper()
	check := func(what, name string, changed []byte, must bool) {
		files := map[string][]byte{}
		for n, data := range x.files {
			files[n] = data
		}
		if files[name] = changed; changed == nil {
			delete(files, name)
		}
		if err := x.outcome(t, what, files); must && err == nil {
			t.Errorf("%s of %s: nothing notices it", what, name)
		}
	}
	for name, data := range x.files {
		number, _ := ParseName(name)
		covered := int64(len(data))
		if number >= x.mark.Number {
			if covered = x.mark.Length; number > x.mark.Number {
				covered = 0
			}
		}
		check("loss", name, nil, covered > 0)
		check("exchange", name, other.files[name], covered > 0)
		for n := range data {
			check("a cut", name, data[:n:n], int64(n) < covered)
		}
		check("an addition", name, append(bytes.Clone(data), 0), number < x.mark.Number)
		const sector = 64
		for at := 0; at+sector <= len(data); at += sector {
			changed := bytes.Clone(data)
			clear(changed[at : at+sector])
			check("a zeroed sector", name, changed, int64(at+sector) <= covered)
			for to := 0; to+sector <= len(data); to += sector {
				changed := bytes.Clone(data)
				copy(changed[at:], data[to:to+sector])
				copy(changed[to:], data[at:at+sector])
				check("an exchange of sectors", name, changed, to != at && int64(max(at, to)+sector) <= covered)
			}
			if foreign := other.files[name]; at+sector <= len(foreign) {
				changed = bytes.Clone(data)
				copy(changed[at:], foreign[at:at+sector])
				check("a foreign sector", name, changed, int64(at+sector) <= covered && at >= sector)
			}
		}
	}
}

// Any bytes in place of a file are refused or read without a panic, and what is read
// passes its checksum.
func FuzzFile(f *testing.F) {
	x := makeImage(f, 3)
	for _, data := range x.files {
		f.Add(data)
	}
	f.Add(x.files[Name(1)][:headerSize])
	f.Add([]byte(fileMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		for number := range x.mark.Number + 1 {
			disk := NewMemoryDisk()
			for name, b := range x.files {
				disk.files[name] = &diskFile{disk: disk, memoryFile: memoryFile{data: bytes.Clone(b)}}
			}
			disk.files[Name(number+1)] = &diskFile{disk: disk, memoryFile: memoryFile{data: bytes.Clone(data)}}
			files, err := Open(Options{Disk: disk, Mark: x.mark, Sealed: x.sealed[:len(data)%(len(x.sealed)+1)]})
			if err != nil {
				continue
			}
			if got, err := contents(files); err == nil && !same(got, x.records[:x.covered]) {
				t.Errorf("a file that was replaced gives %d records", len(got))
			}
			_, _ = files.Finish()
			_ = files.Close()
		}
	})
}

// A file of another history of the same directory, whose records have the same indexes
// and lengths, fits into no place: the hashes tell.
func TestFilesOfAnotherHistory(t *testing.T) {
	t.Parallel()
	for _, x := range images(t, 1) {
		anotherHistory(t, &x)
	}
}

func anotherHistory(t *testing.T, x *image) {
	t.Helper()
	other := NewMemoryDisk()
	f := mustOpen(t, Options{Disk: other, Mark: Mark{ID: testID, SealBytes: imageSealBytes}})
	for _, r := range x.records {
		data := bytes.Clone(r.data)
		for i := range data {
			data[i] ^= 0xff
		}
		mustAppend(t, f, []stored{{r.last, data}})
	}
	for number := range x.mark.Number {
		name := Name(number + 1)
		must.Equal(t, len(other.files[name].data), len(x.files[name]), "%s has another length: %v", name)
		files := map[string][]byte{}
		for n, data := range x.files {
			files[n] = data
		}
		files[name] = other.files[name].data
		check.Is(t, x.outcome(t, name, files), machine.ErrCorrupt, "%s of another history", name)
	}
	// The first file has no other before it: the mark alone tells.
	var marks [2]Mark
	var disks [2]*MemoryDisk
	for i := range marks {
		disks[i] = NewMemoryDisk()
		f := mustOpen(t, Options{Disk: disks[i], Mark: Mark{ID: testID, SealBytes: DefaultSealBytes}})
		mustAppend(t, f, []stored{{1, []byte{byte(i)}}})
		marks[i] = f.Mark()
	}
	check.Is(t, check.Err(Open(Options{Disk: disks[0], Mark: marks[1]})), machine.ErrCorrupt,
		"the first file of another history")
}
