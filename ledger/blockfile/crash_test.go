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

var errDisk = errors.New("input/output error")

// After any number of crashes a replay from the checkpoint gives the same records,
// and the same bytes as if there had been none.
func TestCrashes(t *testing.T) {
	t.Parallel()
	runs := 400
	if testing.Short() {
		runs = 50
	}
	behind := 0 // lives that found something behind the checkpoint
	for seed := range uint64(runs) {
		random := rand.New(rand.NewPCG(seed, 4))
		records := makeRecords(random, 60, 120)
		sealBytes := int64(200 + random.IntN(800))
		disk := NewMemoryDisk()
		mark, covered := Mark{ID: testID, SealBytes: sealBytes}, 0
		for life := 0; covered < len(records); life++ {
			f := mustOpen(t, Options{Disk: disk, Mark: mark})
			if f.found[mark.Number] > mark.Length || f.found[mark.Number+1] > 0 {
				behind++
			}
			mustHave(t, f, records[:covered])
			// What had been applied before the crash comes again, all of it, before
			// anything new: the log has it.
			at := covered
			for ; at < len(records) && (life > 20 || random.IntN(12) > 0); at++ {
				must.Do(t, f.Append(records[at].last, records[at].data), "seed %d, life %d", seed, life)
				f.Publish()
				if random.IntN(6) == 0 {
					must.Get(f.Sync())(t)
					mark, covered = f.Mark(), at+1
				}
			}
			if at == len(records) {
				if behind, err := f.Finish(); behind != 0 || err != nil {
					t.Fatalf("seed %d: %d %v", seed, behind, err)
				}
				must.Get(f.Sync())(t)
				mustHave(t, f, records)
				break
			}
			disk.Crash(random.IntN)
		}
		whole := NewMemoryDisk()
		mustAppend(t, mustOpen(t, Options{Disk: whole, Mark: Mark{ID: testID, SealBytes: sealBytes}}), records)
		for name, f := range whole.files {
			if !bytes.Equal(f.data, disk.files[name].data) {
				t.Fatalf("seed %d: %s has other bytes than without crashes", seed, name)
			}
		}
		must.Equal(t, len(disk.files), len(whole.files), "seed %d: %d files", seed)
	}
	if behind == 0 {
		t.Error("no crash left anything behind a checkpoint")
	}
}

// A write that fails is final for this life, and the next one repeats it.
func TestFailedWrite(t *testing.T) {
	t.Parallel()
	records := makeRecords(rand.New(rand.NewPCG(5, 5)), 12, 60)
	for left := range 20 {
		disk := NewMemoryDisk()
		disk.FailAfter(left, errDisk)
		f := mustOpen(t, Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: 250}})
		var failed error
		for _, r := range records {
			if failed = f.Append(r.last, r.data); failed != nil {
				break
			}
		}
		if failed != nil && !errors.Is(failed, errDisk) {
			t.Fatal(failed)
		}
		disk.FailAfter(-1, nil)
		again := mustOpen(t, Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: 250}})
		mustAppend(t, again, records)
		if behind, err := again.Finish(); behind != 0 || err != nil {
			t.Fatal(behind, err)
		}
		mustHave(t, again, records)
	}
}

// A log that ends before blocks that are there has lost entries, also where a torn
// record lies between, or the blocks are in the next file. Nothing is cut off then.
func TestLogThatLostItsEnd(t *testing.T) {
	t.Parallel()
	records := makeRecords(rand.New(rand.NewPCG(6, 6)), 10, 60)
	for _, sealBytes := range []int64{200, 1 << 20} {
		for replayed := range len(records) {
			for _, tear := range []bool{false, true} {
				disk := NewMemoryDisk()
				mustAppend(t, mustOpen(t, Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: sealBytes}}), records)
				f := mustOpen(t, Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: sealBytes}})
				mustAppend(t, f, records[:replayed])
				if tear && sealBytes > 1000 {
					file := disk.files[Name(1)]
					file.data[max(f.current.end, int64(headerSize))+20] ^= 1
				}
				want := records[len(records)-1].last
				for range 2 {
					behind, err := f.Finish()
					if err != nil || behind != want && !(tear && replayed == len(records)-1 && sealBytes > 1000) {
						t.Fatalf("%d of %d records, torn %v: Finish says %d (%v), want %d",
							replayed, len(records), tear, behind, err, want)
					}
				}
			}
		}
	}
}

// Client data that looks like a record does not make a start fail, nor slow.
func TestImitatedRecords(t *testing.T) {
	t.Parallel()
	h := recordHeader{size: 5, position: 77, last: 1 << 50, sum: checksum([]byte("hello"))}
	imitation := append(h.append(nil), "hello"...)
	data := bytes.Repeat(append(bytes.Repeat([]byte("SLBK"), 1000), imitation...), 200)
	disk := NewMemoryDisk()
	mustAppend(t, mustOpen(t, Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: DefaultSealBytes}}),
		[]stored{{1, data}})
	file := disk.files[Name(1)]
	file.data[headerSize+recordHeaderSize] ^= 1 // torn
	f := mustOpen(t, Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: DefaultSealBytes}})
	if behind, err := f.Finish(); behind != 0 || err != nil {
		t.Errorf("Finish says %d, %v", behind, err)
	}
}

// The log of another history is refused: its records differ from those that are there.
func TestOtherRecordsAreRefused(t *testing.T) {
	t.Parallel()
	records := makeRecords(rand.New(rand.NewPCG(7, 7)), 12, 60)
	for i := range records {
		for _, change := range []stored{
			{records[i].last, append(bytes.Clone(records[i].data), 1)},
			{records[i].last + 1<<40, records[i].data},
		} {
			disk := NewMemoryDisk()
			o := Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: 300}}
			mustAppend(t, mustOpen(t, o), records)
			f := mustOpen(t, o)
			mustAppend(t, f, records[:i])
			err := f.Append(change.last, change.data)
			must.Is(t, err, machine.ErrCorrupt, "record %d", i)
			if want := fmt.Sprintf("ledger index %d", records[i].last); !bytes.Contains([]byte(err.Error()),
				[]byte(want)) {
				t.Errorf("%q does not name %q", err, want)
			}
		}
	}
	disk := NewMemoryDisk()
	mustAppend(t, mustOpen(t, Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: DefaultSealBytes}}), records)
	f := mustOpen(t, Options{Disk: disk, Mark: Mark{ID: [16]byte{1}, SealBytes: DefaultSealBytes}})
	check.Is(t, f.Append(1, nil), machine.ErrCorrupt, "the file of another directory is taken")
}

// What a crash has torn behind the last record that the log has is cut off, and the files
// behind it are removed, so that no later start takes it for anything.
func TestFinishCutsWhatWasTorn(t *testing.T) {
	t.Parallel()
	records := makeRecords(rand.New(rand.NewPCG(8, 8)), 10, 60)
	disk := NewMemoryDisk()
	o := Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: 250}}
	mustAppend(t, mustOpen(t, o), records)
	f := mustOpen(t, o)
	mustAppend(t, f, records[:3])
	number, end := f.current.header.number, f.current.end
	for name, file := range disk.files {
		switch n, _ := ParseName(name); {
		case n == number:
			clear(file.data[end:])
		case n > number:
			clear(file.data)
		}
	}
	if len(disk.files) <= int(number) || int64(len(disk.files[Name(number)].data)) <= end {
		t.Fatal("there is nothing to cut")
	}
	if behind, err := f.Finish(); behind != 0 || err != nil {
		t.Fatal(behind, err)
	}
	if len(disk.files) != int(number) || int64(len(disk.files[Name(number)].data)) != end {
		t.Errorf("%d files are left, want %d, and %d bytes in the last one, want %d", len(disk.files), number,
			len(disk.files[Name(number)].data), end)
	}
	mustAppend(t, f, records[3:])
	mustHave(t, f, records)
}
