package blockfile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// sealedFiles returns a disk with files of which all but the last are sealed, and how many there are.
func sealedFiles(t *testing.T, seed uint64) (disk *MemoryDisk, records []stored, sealed uint64) {
	t.Helper()
	disk, records = NewMemoryDisk(), makeRecords(rand.New(rand.NewPCG(seed, 3)), 20, 80)
	f := mustOpen(t, Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: imageSealBytes}})
	mustAppend(t, f, records)
	must.Get(f.Sync())(t)
	if sealed = f.Mark().Number - 1; sealed < 2 {
		t.Fatalf("only %d files are sealed", sealed)
	}
	return disk, records, sealed
}

func checkSealed(t *testing.T, disk *MemoryDisk, number uint64) (SealedInfo, error) {
	t.Helper()
	file := must.Get(disk.OpenSealed(Name(number)))(t)
	info, err := CheckSealed(file)
	must.Do(t, file.Close())
	return info, err
}

// What a sealed file says of itself makes a chain with the next.
func TestCheckSealed(t *testing.T) {
	t.Parallel()
	disk, records, sealed := sealedFiles(t, 1)
	var before SealedInfo
	for number := uint64(1); number <= sealed; number++ {
		info := must.Get(checkSealed(t, disk, number))(t)
		content := disk.files[Name(number)].data
		if info.ID != testID || info.Number != number || info.Size != int64(len(content)) ||
			info.SHA256 != sha256.Sum256(content) {
			t.Errorf("file %d: %+v", number, info)
		}
		if number > 1 {
			must.Do(t, info.Follows(&before))
		}
		before = info
	}
	if before.Last == 0 || before.Last > records[len(records)-1].last {
		t.Errorf("the last sealed record is %d", before.Last)
	}
	// The file that is still written is not sealed.
	check.Is(t, check.Err(checkSealed(t, disk, sealed+1)), machine.ErrCorrupt)
}

func TestFollows(t *testing.T) {
	t.Parallel()
	disk, _, _ := sealedFiles(t, 2)
	first := must.Get(checkSealed(t, disk, 1))(t)
	second := must.Get(checkSealed(t, disk, 2))(t)
	for name, change := range map[string]func(i *SealedInfo){
		"another ledger":   func(i *SealedInfo) { i.ID[3]++ },
		"a gap":            func(i *SealedInfo) { i.Number++ },
		"other records":    func(i *SealedInfo) { i.After++ },
		"another content":  func(i *SealedInfo) { i.Previous[31] ^= 1 },
		"another position": func(i *SealedInfo) { i.Base++ },
	} {
		changed := second
		change(&changed)
		err := changed.Follows(&first)
		if !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(err.Error(), Name(1)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// CheckSealed reads every byte: none can change, go or come without an error.
func TestDamage_SealedFile(t *testing.T) {
	t.Parallel()
	disk, _, _ := sealedFiles(t, 3)
	whole := bytes.Clone(disk.files[Name(2)].data)
	try := func(what string, at int, content []byte) {
		disk.files[Name(2)].data = content
		if _, err := checkSealed(t, disk, 2); err == nil {
			t.Errorf("%s at byte %d is not noticed", what, at)
		}
	}
	for bit := range 8 * len(whole) {
		content := bytes.Clone(whole)
		content[bit/8] ^= 1 << (bit % 8)
		try("a flipped bit", bit/8, content)
	}
	for length := range whole {
		try("a cut", length, bytes.Clone(whole[:length]))
	}
	try("a byte more", len(whole), append(bytes.Clone(whole), 0))
	t.Logf("%d bits and %d cuts of a sealed file of %d bytes", 8*len(whole), len(whole), len(whole))
	disk.files[Name(2)].data = whole
	must.Get(checkSealed(t, disk, 2))(t)
}

// A footer whose checksums are right, and which is of other records, is noticed too.
func TestFooterOfOtherRecords(t *testing.T) {
	t.Parallel()
	disk, _, _ := sealedFiles(t, 5)
	file := disk.files[Name(2)]
	whole := bytes.Clone(file.data)
	foot, x, err := readFooter(file)
	must.Do(t, err)
	foot.index = x
	for name, change := range map[string]func(f *footer){
		"hash":       func(f *footer) { f.hash[0] ^= 1 },
		"last":       func(f *footer) { f.last++ },
		"index":      func(f *footer) { f.index = index{{f.index[0].last + 1, f.index[0].offset}} },
		"less index": func(f *footer) { f.index = nil },
	} {
		changed := foot
		change(&changed)
		file.data = append(bytes.Clone(whole[:foot.end]), changed.encode()...)
		check.Is(t, check.Err(checkSealed(t, disk, 2)), machine.ErrCorrupt, "%s", name)
	}
}

// The sealed files of an archive are read without the ledger that made them.
func TestOpenAllSealed(t *testing.T) {
	t.Parallel()
	disk, records, sealed := sealedFiles(t, 4)
	for first := uint64(1); first <= sealed; first++ {
		f := must.Get(OpenAllSealed(disk, first, sealed))(t)
		got := must.Get(contents(f))(t)
		from := must.Get(checkSealed(t, disk, first))(t)
		to := must.Get(checkSealed(t, disk, sealed))(t)
		var want []stored
		for _, r := range records {
			if r.last > from.After && r.last <= to.Last {
				want = append(want, r)
			}
		}
		if !same(got, want) {
			t.Errorf("from file %d: %d records, want %d", first, len(got), len(want))
		}
		must.Do(t, f.Close())
	}
	// A gap, and a file that follows another one.
	disk.files[Name(1)], disk.files[Name(2)] = disk.files[Name(2)], disk.files[Name(1)]
	if f, err := OpenAllSealed(disk, 1, sealed); err == nil {
		t.Error("exchanged files were opened", f.Close())
	}
	delete(disk.files, Name(2))
	if f, err := OpenAllSealed(disk, 1, sealed); err == nil {
		t.Error("a missing file was not missed", f.Close())
	}
}
