package backupfile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"slices"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// resealed gives a backup another header and a trailer whose hash is right for it.
func resealed(info *Info, b []byte) []byte {
	b = reheaded(info, b)
	sum := sha256.Sum256(b[:len(b)-sha256.Size])
	copy(b[len(b)-sha256.Size:], sum[:])
	return b
}

// fuzzPool is what chains are made of: a history, another backup since its first one, and the first two of a ledger
// that differs in nothing but its id.
func fuzzPool(t testing.TB) (pool []*made, base []int) {
	t.Helper()
	pool = history(t)
	pool = append(pool, makeBackup(t, 12, 1, 3, pool[0]))
	foreign := *pool[0]
	foreign.info.LedgerID = 8
	foreign.b = resealed(&foreign.info, foreign.b)
	head := must.Get(Head(foreign.file("foreign")))(t)
	foreign.info = head
	next := *makeBackup(t, 11, 1, 3, &foreign)
	next.info.LedgerID = 8
	next.b = resealed(&next.info, next.b)
	next.info = must.Get(Head(next.file("next")))(t)
	return append(pool, &foreign, &next), []int{-1, 0, 1, 2, 0, -1, 5}
}

// FuzzChain puts backups together in any order and changes a byte of one. They are taken if each was made since the one
// before, the first is a full one and no byte has changed; then their files are those of the last. Else no file is
// opened for what is no chain, and damage is told of the backup that has it.
func FuzzChain(f *testing.F) {
	pool, base := fuzzPool(f)
	f.Add([]byte{0, 1, 2, 3}, uint16(0), uint32(0), byte(0))
	f.Add([]byte{0, 4}, uint16(1), uint32(80), byte(1))
	f.Add([]byte{5, 6}, uint16(0), uint32(1<<20), byte(128))
	f.Add([]byte{0, 6}, uint16(0), uint32(0), byte(0))
	f.Add([]byte{0, 2}, uint16(0), uint32(0), byte(0))
	f.Add([]byte{1, 0}, uint16(0), uint32(0), byte(0))
	f.Add([]byte{}, uint16(0), uint32(0), byte(0))
	f.Fuzz(func(t *testing.T, order []byte, which uint16, at uint32, flip byte) {
		order = order[:min(len(order), 8)]
		var backups []*made
		right := len(order) > 0
		for i := range order {
			order[i] %= byte(len(pool))
			backups = append(backups, pool[order[i]])
			if before := base[order[i]]; i == 0 && before >= 0 || i > 0 && before != int(order[i-1]) {
				right = false
			}
		}
		chain := chainOf(backups...)
		damaged := -1
		if len(chain) > 0 && flip != 0 {
			damaged = int(which) % len(chain)
			b := bytes.Clone(backups[damaged].b)
			b[int(at)%len(b)] ^= flip
			chain[damaged] = *(&made{b: b}).file(chain[damaged].Name)
		}
		info, files, err := readChain(chain)
		switch damage, found := errors.AsType[*DamageError](err); {
		case right && damaged < 0:
			must.Do(t, err, "%v", order)
			mustHaveFiles(t, &info, files)
		case found && (damaged < 0 || damage.Backup != chain[damaged].Name):
			t.Fatalf("%v with byte %d of %d changed: %v", order, at, damaged, err)
		case !found && !errors.Is(err, ErrChain):
			t.Fatalf("%v with byte %d of %d changed: %v", order, at, damaged, err)
		case len(files) > 0 && (!right || !found):
			t.Fatalf("%v: files were opened for what is no chain", order)
		}
	})
}

// mustHaveFiles expects the state file and every block file of a backup, each as the last one that has it wrote it.
func mustHaveFiles(t *testing.T, info *Info, files map[uint64]*bytes.Buffer) {
	t.Helper()
	must.Equal(t, len(files), 1+int(info.Last()+1-info.First), "%d files")
	for file := info.First; file <= info.Last(); file++ {
		at := uint64(0)
		if file == info.Last() {
			at = info.Index
		}
		if files[file] == nil || !bytes.Equal(files[file].Bytes(), content(file, at, 9_000)) {
			t.Fatalf("block file %d is wrong or missing", file)
		}
	}
	if !bytes.Equal(files[0].Bytes(), content(0, info.Index, 3)) {
		t.Fatal("the state file is wrong")
	}
}

// FuzzChainHeaders gives the backups of a chain headers whose checksums are right and whose numbers are not. What is
// taken has each file from the first one to the last, once.
func FuzzChainHeaders(f *testing.F) {
	full := makeBackup(f, 10, 3, 5, nil) // of a ledger that has dropped files before
	next := makeBackup(f, 20, 4, 7, full)
	more := makeBackup(f, 30, 4, 8, next)
	pool := []*made{full, next, more, makeBackup(f, 40, 5, 9, more)}
	f.Add(byte(1), uint64(0), uint64(0), uint64(0), uint64(0), uint64(0), byte(0))
	f.Add(byte(2), uint64(1), uint64(0), uint64(0), uint64(0), uint64(0), byte(0))
	f.Add(byte(0), uint64(0), uint64(1), uint64(1), uint64(0), uint64(0), byte(0))
	f.Add(byte(3), uint64(0), ^uint64(3), uint64(0), uint64(0), uint64(0), byte(0)) // it begins before the full one
	f.Add(byte(3), uint64(0), uint64(0), uint64(0), uint64(1), uint64(1), byte(3))
	f.Fuzz(func(t *testing.T, length byte, index, first, from, sinceIndex, sinceLast uint64, drop byte) {
		n := 1 + int(length)%len(pool)
		backups := slices.Clone(pool[:n])
		last := *backups[n-1]
		last.info.Index += index
		last.info.First += first
		last.info.From += from
		last.info.Since.Index += sinceIndex
		last.info.Since.Last += sinceLast
		if drop%4 == 3 {
			last.info.Since = Since{}
		}
		if drop%4 == 2 {
			last.info.Since.Sum = machine.Hash{1}
		}
		last.b = resealed(&last.info, last.b)
		backups[n-1] = &last
		chain := chainOf(backups...)
		_, files, err := readChain(chain)
		if _, found := errors.AsType[*DamageError](err); err != nil && !found && !errors.Is(err, ErrChain) {
			t.Fatal(err)
		}
		if err != nil {
			if len(files) > 0 {
				t.Fatalf("files were opened before it was refused: %v", err)
			}
			return
		}
		if want := 1 + last.info.Last() + 1 - last.info.First; uint64(len(files)) != want {
			t.Fatalf("%d files of %d are there", len(files), want)
		}
		for file := last.info.First; file <= last.info.Last(); file++ {
			if files[file] == nil {
				t.Fatalf("block file %d is missing", file)
			}
		}
	})
}

// FuzzHead: what is taken for the head of a backup is what the writer makes of it.
func FuzzHead(f *testing.F) {
	for _, m := range history(f) {
		f.Add(m.b)
		f.Add(m.b[:headerBytes+len(m.info.Sizes)*sizeBytes+4])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		info, err := Head((&made{b: b}).file("it"))
		if err != nil {
			if _, damaged := errors.AsType[*DamageError](err); !damaged {
				t.Fatal(err)
			}
			return
		}
		if !bytes.HasPrefix(b, info.header()) {
			t.Fatalf("%d bytes are taken for a backup and are none: %+v", len(b), info)
		}
		if info.First > info.From || info.Since.Index > info.Index || info.Bytes != int64(len(b)) {
			t.Fatalf("numbers that no ledger makes: %+v", info)
		}
		_ = CheckChain([]File{*(&made{b: b}).file("it")}) // does not panic
	})
}
