package backupfile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// made is a backup in memory.
type made struct {
	info Info
	b    []byte
}

// content is what a block file, or the state file, has at a ledger index.
func content(file, index uint64, size int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%d@%d ", file, index), size)
}

// makeBackup backs up a ledger with the block files from first to last, the last of which is not whole.
func makeBackup(t testing.TB, index, first, last uint64, since *made) *made {
	t.Helper()
	info := Info{LedgerID: 7, Index: index, First: first, From: first, Sealed: machine.Hash{byte(last)}}
	if since != nil {
		base := since.info.Base()
		info.Since, info.From = base.Since, base.From(first)
	}
	files := [][]byte{content(0, index, 3)}
	for file := info.From; file <= last; file++ {
		at := uint64(0) // a whole file is the same ever after
		if file == last {
			at = index
		}
		files = append(files, content(file, at, 9_000))
	}
	var sizes []int64
	for _, f := range files {
		sizes = append(sizes, int64(len(f)))
	}
	info.SetSizes(sizes)
	var out bytes.Buffer
	w, err := NewWriter(&out, &info, neverPause)
	for _, f := range files {
		if err == nil {
			_, err = w.Write(f)
		}
	}
	if err == nil {
		_, err = w.Finish()
	}
	must.Do(t, err)
	m := &made{b: out.Bytes()}
	m.info = must.Get(Head(m.file("made")))(t)
	return m
}

func (m *made) file(name string) *File {
	return &File{Name: name, Content: bytes.NewReader(m.b), Size: int64(len(m.b))}
}

// chainOf names backups by their places.
func chainOf(backups ...*made) (chain []File) {
	for i, m := range backups {
		chain = append(chain, *m.file(fmt.Sprint("backup-", i)))
	}
	return chain
}

// readChain returns the files of a chain.
func readChain(chain []File) (info Info, files map[uint64]*bytes.Buffer, err error) {
	files = map[uint64]*bytes.Buffer{}
	info, err = ReadChain(context.Background(), chain, func(file uint64) (io.Writer, error) {
		if files[file] != nil {
			return nil, fmt.Errorf("file %d is opened twice", file)
		}
		files[file] = new(bytes.Buffer)
		return files[file], nil
	}, nil)
	return info, files, err
}

// history is a full backup and what was made since: with no new file, with three more, and with all of the full one's
// dropped.
func history(t testing.TB) []*made {
	full := makeBackup(t, 10, 1, 3, nil)
	same := makeBackup(t, 11, 1, 3, full)
	more := makeBackup(t, 20, 2, 6, same)
	return []*made{full, same, more, makeBackup(t, 30, 5, 7, more)}
}

// Whatever part of a history a chain has, it gives the files of its last backup, each once, and no others.
func TestReadChain(t *testing.T) {
	t.Parallel()
	backups := history(t)
	for n := 1; n <= len(backups); n++ {
		last := backups[n-1]
		info, files, err := readChain(chainOf(backups[:n]...))
		if err != nil || info.Index != last.info.Index || info.Sum != last.info.Sum {
			t.Fatalf("%d backups: %+v, %v", n, info, err)
		}
		want := []uint64{0}
		for file := info.First; file <= info.Last(); file++ {
			want = append(want, file)
		}
		for _, file := range want {
			at := uint64(0)
			size := 9_000
			if file == 0 || file == info.Last() {
				at = info.Index
			}
			if file == 0 {
				size = 3
			}
			if files[file] == nil || !bytes.Equal(files[file].Bytes(), content(file, at, size)) {
				t.Errorf("%d backups: file %d is wrong or missing", n, file)
			}
		}
		check.Equal(t, len(files), len(want), "%d backups give %d files", n)
	}
	if got := []uint64{backups[1].info.From, backups[2].info.From, backups[3].info.From}; !slices.Equal(got,
		[]uint64{3, 3, 6}) {
		t.Errorf("the incremental ones begin with the files %v", got)
	}
}

// The progress of a chain grows to the sum of all of it.
func TestReadChainTellsItsProgress(t *testing.T) {
	t.Parallel()
	backups := history(t)
	last, sum := int64(0), int64(0)
	for _, m := range backups {
		sum += m.info.StateBytes
	}
	_, err := ReadChain(t.Context(), chainOf(backups...), discardFiles, func(done, total int64) {
		if total != sum || done <= last {
			t.Errorf("%d of %d bytes after %d of %d", done, total, last, sum)
		}
		last = done
	})
	if err != nil || last != sum {
		t.Errorf("it ended at %d of %d bytes: %v", last, sum, err)
	}
}

// What is no chain is refused with the reason, and no file is opened for it.
func TestReadChainRefuses(t *testing.T) {
	t.Parallel()
	h := history(t)
	full, same, more := h[0], h[1], h[2]
	other := makeBackup(t, 12, 1, 3, full)
	fewer := makeBackup(t, 10, 2, 3, nil)
	foreign := makeBackup(t, 10, 1, 3, nil)
	foreign.info.LedgerID = 8
	foreign.b = reheaded(&foreign.info, foreign.b)
	liar := *same
	liar.info.Since.Index--
	liar.b = reheaded(&liar.info, liar.b)
	for name, test := range map[string]struct {
		chain []File
		want  string
	}{
		"nothing":             {nil, "there is none"},
		"incremental alone":   {chainOf(same), "one is missing: backup-0 was made since a backup of ledger index 10"},
		"one between":         {chainOf(full, more), "backup-1 was made since a backup of ledger index 11"},
		"not in order":        {chainOf(full, more, same), "not in order: backup-1 was made since backup-2"},
		"the full one last":   {chainOf(same, full), "not in order: backup-0 was made since backup-1"},
		"two of one":          {chainOf(full, same, other), "backup-2 was made since backup-0, which must come"},
		"the same one twice":  {chainOf(full, same, same), "backup-1 and backup-2 are the same backup"},
		"two full ones":       {chainOf(full, makeBackup(t, 40, 1, 9, nil)), "backup-1 is a full backup and needs"},
		"another ledger":      {chainOf(foreign, same), "backup-0 is of ledger 0000000000000008, and backup-1"},
		"another base's mark": {chainOf(full, &liar), "says something else of backup-0"},
		"files of a node that has dropped fewer": {chainOf(fewer, makeBackup(t, 11, 1, 3, fewer)),
			"its ledger begins with block file 1, and in backup-0 with 2"},
	} {
		opened := false
		_, err := ReadChain(t.Context(), test.chain, func(uint64) (io.Writer, error) {
			opened = true
			return io.Discard, nil
		}, nil)
		if err == nil || !strings.Contains(err.Error(), test.want) || opened {
			t.Errorf("%s: %v, want %q; a file was opened: %t", name, err, test.want, opened)
		}
		_, damaged := errors.AsType[*DamageError](err)
		if !damaged && !errors.Is(err, ErrChain) {
			t.Errorf("%s: %v is no ErrChain", name, err)
		}
		check.Equal(t, fmt.Sprint(CheckChain(test.chain)), fmt.Sprint(err), "%s: the check alone says %v", name)
	}
	check.Is(t, check.Err(Read(t.Context(), bytes.NewReader(same.b), discardFiles, nil)), ErrIncremental,
		"an incremental one, read by itself")
}

// reheaded gives a backup another header, whose checksums are right. The hash in its trailer is not.
func reheaded(info *Info, b []byte) []byte {
	return append(info.header(), b[headerBytes+len(info.Sizes)*sizeBytes+4:]...)
}

// Every changed byte and every cut in each backup of a chain is found, and the error names the backup.
func TestDamage_BackupChain(t *testing.T) {
	t.Parallel()
	backups := history(t)
	for i, m := range backups {
		whole := m.b
		head := headerBytes + len(m.info.Sizes)*sizeBytes + 4
		for at := range whole {
			inside := at >= head+64 && at < len(whole)-trailerBytes-64
			if inside && at%4_999 != 0 || testing.Short() && at%7 != 0 {
				continue
			}
			changed := bytes.Clone(whole)
			changed[at] ^= 1 << (at % 8)
			for what, b := range map[string][]byte{"changed": changed, "cut": whole[:at]} {
				chain := chainOf(backups...)
				chain[i] = *(&made{b: b}).file(chain[i].Name)
				_, _, err := readChain(chain)
				damage, damaged := errors.AsType[*DamageError](err)
				if damaged && damage.Backup != chain[i].Name || !damaged && !errors.Is(err, ErrChain) {
					t.Errorf("backup %d %s at byte %d: %v", i, what, at, err)
				}
			}
		}
	}
}

// A header of an incremental backup that none has is refused, although its checksums are right.
func TestIncrementalHeaders(t *testing.T) {
	t.Parallel()
	more := history(t)[2]
	for name, change := range map[string]func(*Info){
		"it begins too early":         func(i *Info) { i.From-- },
		"it begins too late":          func(i *Info) { i.From++ },
		"it is before its base":       func(i *Info) { i.Since.Index = i.Index + 1 },
		"its base is further":         func(i *Info) { i.Since.Last, i.From, i.First, i.Sizes = 9, 9, 9, i.Sizes[:1] },
		"a full one with a base":      func(i *Info) { i.Since.Sum = machine.Hash{}; i.From = i.First },
		"a full one that is not full": func(i *Info) { i.Since = Since{} },
	} {
		info := more.info
		change(&info)
		b := info.header()
		_, err := (&reader{ctx: t.Context(), r: bytes.NewReader(b), hash: sha256.New()}).header()
		if _, damaged := errors.AsType[*DamageError](err); !damaged {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := more.info.header()
	must.Do(t, check.Err((&reader{ctx: t.Context(), r: bytes.NewReader(b), hash: sha256.New()}).header()),
		"the header itself")
	if len(b) != headerBytes+len(more.info.Sizes)*sizeBytes+4 || binary.BigEndian.Uint32(b[len(magic):]) != Version {
		t.Errorf("the header has %d bytes", len(b))
	}
}
