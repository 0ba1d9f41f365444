package backupfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// testFirst is the number of the first block file in a test's backup.
const testFirst = 40

// encoded makes a backup of some bytes in place of a state file.
func encoded(t testing.TB, state []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	info := Info{
		LedgerID: 7, Index: 9, Time: 11, At: raftlog.Position{Index: 5, Term: 2}, Members: []byte("members"),
		First: testFirst, From: testFirst,
	}
	// As three files, where there is enough for them.
	if n := int64(len(state)); n < 5 {
		info.SetSizes([]int64{n})
	} else {
		info.SetSizes([]int64{n - 4, 1, 3})
	}
	w := must.Get(NewWriter(&out, &info, func(int) error { return nil }))(t)
	must.Get(w.Write(state))(t)
	info.SHA256 = must.Get(w.Finish())(t)
	if info.Bytes != int64(out.Len()) {
		t.Errorf("a backup of %d bytes was announced with %d bytes and has %d", len(state), info.Bytes, out.Len())
	}
	return out.Bytes()
}

// decoded reads a backup and returns the files in it, one behind the other.
func decoded(b []byte) (info Info, state []byte, err error) {
	var files []*bytes.Buffer
	info, err = Read(context.Background(), bytes.NewReader(b), nil, func(file uint64) (io.Writer, error) {
		if want := uint64(len(files)); want == 0 && file != 0 || want > 0 && file != testFirst+want-1 {
			return nil, fmt.Errorf("file %d is opened behind %d files", file, len(files))
		}
		files = append(files, new(bytes.Buffer))
		return files[len(files)-1], nil
	}, nil)
	for i, f := range files {
		if err == nil && int64(f.Len()) != info.Sizes[i] {
			err = fmt.Errorf("file %d has %d bytes, want %d", i, f.Len(), info.Sizes[i])
		}
		state = append(state, f.Bytes()...)
	}
	return info, state, err
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, chunkBytes - 1, chunkBytes, chunkBytes + 1, 3 * chunkBytes} {
		state := make([]byte, size)
		for i := range state {
			state[i] = byte(i * 7)
		}
		b := encoded(t, state)
		info, got, err := decoded(b)
		if err != nil || !bytes.Equal(got, state) || info.LedgerID != 7 || info.Index != 9 ||
			info.Time != 11 || info.At != (raftlog.Position{Index: 5, Term: 2}) || string(info.Members) != "members" ||
			info.Bytes != int64(len(b)) {
			t.Errorf("%d bytes: %+v %v", size, info, err)
		}
	}
}

// wantDamage expects an error that names a place at or before the damage.
func wantDamage(t *testing.T, what string, at int, b []byte) {
	t.Helper()
	_, _, err := decoded(b)
	damage, ok := errors.AsType[*DamageError](err)
	if !ok {
		t.Errorf("%s: got %v, want damage", what, err)
	} else if damage.Offset > int64(at) {
		t.Errorf("%s: the error names byte %d, which is behind it", what, damage.Offset)
	}
}

// Every flipped bit, changed byte and cut of a small backup is found, and some of one with several chunks.
func TestDamage_Backup(t *testing.T) {
	t.Parallel()
	seed := must.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	small := encoded(t, []byte("the state file of a very small ledger"))
	large := encoded(t, bytes.Repeat([]byte("0123456789abcdef"), chunkBytes/7))
	check := func(b []byte, at int) {
		changed := bytes.Clone(b)
		changed[at] ^= byte(1 + random.IntN(255))
		wantDamage(t, fmt.Sprintf("byte %d of %d changed", at, len(b)), at, changed)
		wantDamage(t, fmt.Sprintf("%d of %d bytes", at, len(b)), at, b[:at])
	}
	for at := range small {
		check(small, at)
		for bit := range 8 {
			changed := bytes.Clone(small)
			changed[at] ^= 1 << bit
			wantDamage(t, fmt.Sprintf("bit %d of byte %d flipped", bit, at), at, changed)
		}
	}
	t.Logf("damaged backup: %d flipped bits, all found", 8*len(small))
	for range 100 {
		check(large, random.IntN(len(large)))
	}
	wantDamage(t, "a byte too many", len(small), append(bytes.Clone(small), 0))
	// Two whole chunks that change places bear the right sums of their bytes.
	first, size := headerBytes+len("members")+3*sizeBytes+4, chunkBytes+chunkOverhead
	other := encoded(t, append(bytes.Repeat([]byte{1}, chunkBytes), bytes.Repeat([]byte{2}, chunkBytes)...))
	swapped := append(bytes.Clone(other[:first]), other[first+size:first+2*size]...)
	swapped = append(append(swapped, other[first:first+size]...), other[first+2*size:]...)
	wantDamage(t, "two chunks change places", first, swapped)
}

// FuzzRead: what is read without an error is, byte for byte, what the
// writer makes of the same state.
func FuzzRead(f *testing.F) {
	whole := encoded(f, []byte("state"))
	f.Add(whole)
	f.Add(whole[:headerBytes])
	f.Add(encoded(f, bytes.Repeat([]byte{0}, 5000)))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		info, state, err := decoded(b)
		if err != nil || b[len(magic)+3] != Version {
			return
		}
		var again bytes.Buffer
		w := must.Get(NewWriter(&again, &info, func(int) error { return nil }))(t)
		must.Get(w.Write(state))(t)
		if sum, err := w.Finish(); err != nil || sum != info.SHA256 || !bytes.Equal(again.Bytes(), b) {
			t.Fatalf("%d bytes were read as a backup and are none", len(b))
		}
	})
}
