package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/internal/boltpage"
	"github.com/seqledger/seqledger/ledger/machine"
)

const testPageSize = 4096

// metaOf returns the current meta page; the tests below place damage by it.
func metaOf(t *testing.T, path string) boltpage.Meta {
	t.Helper()
	meta := must.Get(checkFile(path))(t)
	return meta
}

func TestOpenRefusesTruncatedFile(t *testing.T) {
	t.Parallel()
	path := filled(t, 5000)
	meta := metaOf(t, path)
	used := int64(meta.Pages) * meta.PageSize
	for _, size := range []int64{used - 1, used / 2, 3 * meta.PageSize, 2 * meta.PageSize} {
		must.Do(t, os.Truncate(path, size))
		refused(t, path, testIdentity, machine.ErrCorrupt, "truncated")
	}
}

// Free space behind the last used page is not part of the state.
func TestOpenAcceptsExactSize(t *testing.T) {
	t.Parallel()
	path := filled(t, 5000)
	meta := metaOf(t, path)
	must.Do(t, os.Truncate(path, int64(meta.Pages)*meta.PageSize))
	s := reopen(t, path)
	check.Equal(t, get(t, s, streams, string(recordKey(4999))), string(recordValue(4999)), "record 4999 is %q")
}

func TestOpenRefusesBadMetaPages(t *testing.T) {
	t.Parallel()
	pageSize := metaOf(t, filled(t, 1)).PageSize
	flip := func(b []byte) { b[16+40] ^= 1 } // the high-water mark
	wipe := func(b []byte) { clear(b[:pageSize]) }

	path := filled(t, 10)
	edit(t, path, func(b []byte) []byte { flip(b); flip(b[pageSize:]); return b })
	refused(t, path, testIdentity, machine.ErrCorrupt, "both meta pages")

	path = filled(t, 10)
	edit(t, path, func(b []byte) []byte { wipe(b); wipe(b[pageSize:]); return b })
	refused(t, path, testIdentity, ErrForeign, "restore")

	// One bad page is what a crash in the middle of a commit leaves: the other
	// one counts, and the state is that of the commit before.
	path = filled(t, 10)
	current := metaOf(t, path).Offset
	edit(t, path, func(b []byte) []byte { flip(b[current:]); return b })
	s := reopen(t, path)
	check.Equal(t, s.Applied(), Position{}, "with the last commit's meta page torn the state is at %v")
}

// A damaged list of free pages would make bbolt overwrite live ones.
func TestOpenRefusesBadFreelistPage(t *testing.T) {
	t.Parallel()
	path := filled(t, 10)
	meta := metaOf(t, path)
	edit(t, path, func(b []byte) []byte {
		for p := 2 * meta.PageSize; p+meta.PageSize <= int64(len(b)); p += meta.PageSize {
			if b[p+8] == 0x10 { // the freelist flag
				b[p+8] = 0
			}
		}
		return b
	})
	_, err := Open(path, Options{Identity: testIdentity, NoSync: true})
	if !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(err.Error(), path) {
		t.Errorf("Open = %v, want ErrCorrupt", err)
	}
	// The failed Open must not have kept the lock.
	if _, err := Open(path, Options{Identity: testIdentity, NoSync: true}); errors.Is(err, ErrLocked) {
		t.Error("the file is still locked")
	}
}

// A flipped bit in a value or a key must be seen by Get of that key and by
// Ascend, named by table and key, and stop the store.
func TestFlippedBitIsSeen(t *testing.T) {
	t.Parallel()
	for name, text := range map[string][]byte{"value": recordValue(321), "key": recordKey(321)} {
		path := filled(t, 1000)
		edit(t, path, func(b []byte) []byte {
			damaged := bytes.Clone(text)
			damaged[len(damaged)-1] ^= 0x40
			return bytes.ReplaceAll(b, text, damaged)
		})
		for call, read := range map[string]func(r machine.Reader) error{
			"Get": func(r machine.Reader) error { _, err := r.Get(streams, recordKey(321)); return err },
			"Ascend": func(r machine.Reader) error {
				return r.Ascend(streams, nil, func(_, _ []byte) bool { return true })
			},
			"Get, error dropped": func(r machine.Reader) error { _, _ = r.Get(streams, recordKey(321)); return nil },
		} {
			s := reopen(t, path)
			err := s.View(read)
			if !errors.Is(err, machine.ErrCorrupt) || !errors.Is(s.Err(), machine.ErrCorrupt) {
				t.Errorf("%s damaged: %s = %v, Err = %v; want ErrCorrupt", name, call, err, s.Err())
			} else if want := fmt.Sprintf("table %d key %x", streams,
				recordKey(321)[:len(recordKey(321))-1]); !strings.Contains(err.Error(), want) {
				t.Errorf("%s damaged: %s = %q does not name %s", name, call, err, want)
			}
			must.Do(t, s.Close())
		}
	}
}

// An offline check goes on after damage.
func TestDamageDoesNotStopReadOnlyStore(t *testing.T) {
	t.Parallel()
	path := filled(t, 1000)
	edit(t, path, func(b []byte) []byte {
		return bytes.ReplaceAll(b, []byte("value-000321"), []byte("value-000322"))
	})
	s, err := OpenReadOnly(path, testIdentity)
	must.Do(t, err)
	defer func() { _ = s.Close() }()
	err = s.View(func(r machine.Reader) error { _, err := r.Get(streams, recordKey(321)); return err })
	check.Is(t, err, machine.ErrCorrupt, "damaged record =")
	check.Equal(t, get(t, s, streams, string(recordKey(322))), string(recordValue(322)), "sound record = %q")
}

// The file is cut while it is open: a read beyond the end is a memory fault,
// which must become an error and not kill the process.
func TestFileCutWhileOpen(t *testing.T) {
	t.Parallel()
	path := filled(t, 20000)
	s := reopen(t, path)
	must.Do(t, os.Truncate(path, 8*testPageSize))
	err := s.View(func(r machine.Reader) error {
		return r.Ascend(streams, nil, func(_, _ []byte) bool { return true })
	})
	if !errors.Is(err, machine.ErrCorrupt) {
		t.Errorf("Ascend over a cut file = %v, want ErrCorrupt", err)
	}
	check.Is(t, s.Flush(), machine.ErrCorrupt, "Flush afterwards =")
}

// The same, but the bytes vanish while the caller holds a value.
func TestFileCutUnderAValue(t *testing.T) {
	t.Parallel()
	path := filled(t, 20000)
	s := reopen(t, path)
	err := s.View(func(r machine.Reader) error {
		value, err := r.Get(streams, recordKey(15000))
		if err != nil {
			return err
		}
		if err := os.Truncate(path, 2*testPageSize); err != nil {
			return err
		}
		t.Errorf("read %q from a file that is gone", bytes.ToUpper(value))
		return nil
	})
	if !errors.Is(err, machine.ErrCorrupt) {
		t.Errorf("View = %v, want ErrCorrupt", err)
	}
}

// A flush onto a cut file must fail, and Close must return after it.
func TestFlushOntoCutFile(t *testing.T) {
	t.Parallel()
	path := filled(t, 20000)
	s := reopen(t, path)
	put(t, s, streams, string(recordKey(10000)), "new")
	must.Do(t, os.Truncate(path, 8*testPageSize))
	if err := s.Flush(); !errors.Is(err, machine.ErrCorrupt) {
		t.Errorf("Flush = %v, want ErrCorrupt", err)
	}
	if s.Checkpoint().Index != 7 {
		t.Errorf("checkpoint %v", s.Checkpoint())
	}
}

// Damage anywhere: whatever is opened and read, no value may be wrong, and
// nothing may crash.
func TestRandomDamageNeverYieldsWrongValues(t *testing.T) {
	t.Parallel()
	const records = 2000
	whole := must.Get(os.ReadFile(filled(t, records)))(t)
	path := filepath.Join(t.TempDir(), "state.db")
	seeds := uint64(60)
	if testing.Short() {
		seeds = 15
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 1))
		b := bytes.Clone(whole)
		for range 1 + random.IntN(200) {
			b[random.IntN(len(b))] ^= 1 << random.IntN(8)
		}
		must.Do(t, os.WriteFile(path, b, 0o600))
		s, err := OpenReadOnly(path, testIdentity)
		if err != nil {
			continue
		}
		for i := range records {
			err := s.View(func(r machine.Reader) error {
				value, err := r.Get(streams, recordKey(i))
				if err == nil && value != nil && !bytes.Equal(value, recordValue(i)) {
					t.Errorf("seed %d: record %d is %q", seed, i, value)
				}
				return err
			})
			if err != nil && !errors.Is(err, machine.ErrCorrupt) {
				t.Errorf("seed %d: record %d: %v", seed, i, err)
			}
		}
		err = s.View(func(r machine.Reader) error {
			return r.Ascend(streams, nil, func(key, value []byte) bool {
				var i int
				if _, err := fmt.Sscanf(string(key), "stream-%d", &i); err != nil ||
					!bytes.Equal(value, recordValue(i)) {
					t.Errorf("seed %d: Ascend shows %q = %q", seed, key, value)
				}
				return true
			})
		})
		if err != nil && !errors.Is(err, machine.ErrCorrupt) {
			t.Errorf("seed %d: Ascend: %v", seed, err)
		}
		must.Do(t, s.Close(), "seed %d: close", seed)
	}
}

// Table and key are part of the checksum, so that a sound record in the wrong
// place is damage as well.
func TestChecksumBindsTableAndKey(t *testing.T) {
	t.Parallel()
	record := sealed(streams, []byte("key"), []byte("value"))
	must.Equal(t, string(must.Get(unseal(streams, []byte("key"), record))(t)), "value", "unseal = %q")
	for name, f := range map[string]func() ([]byte, error){
		"other table":  func() ([]byte, error) { return unseal(machine.TableExpiry, []byte("key"), record) },
		"other key":    func() ([]byte, error) { return unseal(streams, []byte("kez"), record) },
		"other border": func() ([]byte, error) { return unseal(streams, []byte("keyv"), record[1:]) },
		"cut off":      func() ([]byte, error) { return unseal(streams, []byte("key"), record[:3]) },
		"absent":       func() ([]byte, error) { return unseal(streams, []byte("key"), nil) },
	} {
		if value, err := f(); !errors.Is(err, machine.ErrCorrupt) {
			t.Errorf("%s: %q, %v; want ErrCorrupt", name, value, err)
		}
	}
}
