package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// someEntries returns entries of a log, which are the same whenever it is called.
func someEntries(first, last uint64) (entries []raftlog.Entry) {
	for i := first; i <= last; i++ {
		e := raftlog.Entry{Index: i, Term: 1 + i/10, Kind: 1, Data: fmt.Appendf(nil, "entry %d", i)}
		entries = append(entries, e)
	}
	return entries
}

func encodeLog(ledger machine.LedgerID, entries []raftlog.Entry) []byte {
	var w LogWriter
	w.Begin(ledger)
	w.Add(entries)
	return w.content
}

func putLog(t Target, ledger machine.LedgerID, at time.Time, entries []raftlog.Entry) error {
	var w LogWriter
	w.Begin(ledger)
	w.Add(entries)
	return w.Put(context.Background(), t, ledger, at)
}

// visited returns what is visited after an index.
func visited(t *testing.T, target Target, ledger machine.LedgerID, after uint64) (entries []raftlog.Entry, err error) {
	t.Helper()
	err = must.Get(ListLog(t.Context(), target, ledger))(t).Visit(t.Context(), after, func(e *raftlog.Entry) error {
		entries = append(entries, *e)
		return nil
	})
	return entries, err
}

// TestFolderOfADayHasSomethingElse: a file that is none of the log, such as one that a network's file system leaves of
// one that was open, keeps its folder, and nothing from being removed.
func TestFolderOfADayHasSomethingElse(t *testing.T) {
	t.Parallel()
	const ledger = 0xabc
	target, day := Directory(t.TempDir()), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	must.Do(t, putLog(target, ledger, day, someEntries(1, 9)))
	must.Do(t, putLog(target, ledger, day.AddDate(0, 0, 1), someEntries(10, 20)))
	must.Do(t, putLog(target, ledger, day.AddDate(0, 0, 2), someEntries(21, 30)))
	stray := filepath.Join(target.String(), filepath.FromSlash(logFolder(ledger)), "2026-03-01", ".nfs01")
	must.Do(t, os.WriteFile(stray, nil, 0o600))
	must.Do(t, must.Get(ListLog(t.Context(), target, ledger))(t).remove(t.Context(), 20))
	check.Equal(t, len(must.Get(ListLog(t.Context(), target, ledger))(t).objects), 1, "%d objects are left, want %d")
}

// TestLogObjects: objects that overlap are read as one log, past one that is damaged if others have its entries; those
// that lack entries or differ are told; and what states have is removed.
func TestLogObjects(t *testing.T) {
	t.Parallel()
	const ledger = 0xabc
	dir, day := t.TempDir(), time.Date(2026, 3, 1, 23, 0, 0, 0, time.UTC)
	target := Directory(dir)
	put := func(first, last uint64, at time.Time) {
		t.Helper()
		must.Do(t, putLog(target, ledger, at, someEntries(first, last)))
	}
	put(1, 9, day)
	put(5, 12, day)
	put(10, 20, day.Add(2*time.Hour)) // the next day
	put(10, 20, day.Add(2*time.Hour)) // again
	put(26, 30, day.Add(3*time.Hour))
	list := must.Get(ListLog(t.Context(), target, ledger))(t)
	check.Equal(t, list.End(0), 20, "it goes up to entry %d")
	check.Equal(t, list.End(25), 30, "behind the gap it goes up to entry %d")
	check.Equal(t, list.End(22), 22, "within the gap it goes up to entry %d")
	got, err := visited(t, target, ledger, 3)
	check.Is(t, err, machine.ErrCorrupt, "a gap")
	check.Equal(t, fmt.Sprint(got), fmt.Sprint(someEntries(4, 20)), "visited: %v")
	put(18, 27, day.Add(3*time.Hour))
	got, err = visited(t, target, ledger, 0)
	check.Equal(t, fmt.Sprint(got, err), fmt.Sprint(someEntries(1, 30), nil), "visited: %v")

	problems := func() (n int) {
		t.Helper()
		must.Do(t, must.Get(ListLog(t.Context(), target, ledger))(t).verify(t.Context(), func(int64) {},
			func(string, error) { n++ }))
		return n
	}
	check.Equal(t, problems(), 0, "%d problems")
	damaged := must.Get(filepath.Glob(filepath.Join(dir, "*", "log", "*", fmt.Sprintf("%020d-*", 5))))(t)[0]
	must.Do(t, os.WriteFile(damaged, []byte("x"), 0o600))
	_, err = visited(t, target, ledger, 6)
	check.Is(t, err, nil, "what is damaged is in another object")
	check.Equal(t, problems(), 1, "%d problems with a damaged object")
	must.Do(t, os.Remove(damaged))

	other := someEntries(28, 29)
	other[1].Data = []byte("of another history")
	must.Do(t, putLog(target, ledger, day, other))
	check.Equal(t, problems(), 1, "%d problems with two histories")

	must.Do(t, must.Get(ListLog(t.Context(), target, ledger))(t).remove(t.Context(), 20))
	list = must.Get(ListLog(t.Context(), target, ledger))(t)
	check.Equal(t, list.objects[0].first, 18, "the log begins with entry %d")
	check.Equal(t, len(must.Get(target.List(t.Context(), logFolder(ledger)))(t)), 2, "%d days are left")
	check.Equal(t, list.End(17), 30, "it goes up to entry %d")
	_, err = list.Entry(t.Context(), 40)
	check.Is(t, err, nil, "an entry that is not there")
}

// FuzzLogObject: no bytes make the reader panic, and what it accepts is written the same.
func FuzzLogObject(f *testing.F) {
	f.Add(encodeLog(7, someEntries(3, 6)))
	f.Add(encodeLog(7, []raftlog.Entry{{Index: 3}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		ledger, entries, err := decodeLog(b)
		if err != nil {
			if !errors.Is(err, machine.ErrCorrupt) && len(b) > len(logMagic)+3 && b[len(logMagic)+3] == logVersion {
				t.Errorf("%v", err)
			}
			return
		}
		if len(entries) > 0 && !bytes.Equal(encodeLog(ledger, entries), b) {
			t.Errorf("%x is read as %v", b, entries)
		}
	})
}

// TestLogIsRefused: an object that says it is of another version or ledger is told as such.
func TestLogIsRefused(t *testing.T) {
	t.Parallel()
	b := encodeLog(7, someEntries(3, 6))
	b[len(logMagic)+3]++
	_, _, err := decodeLog(b)
	if err == nil || errors.Is(err, machine.ErrCorrupt) {
		t.Errorf("another version: %v", err)
	}
	target := Directory(t.TempDir())
	must.Do(t, putLog(target, 7, time.Unix(0, 0), someEntries(3, 6)))
	must.Do(t, os.Rename(filepath.Join(target.String(), "0000000000000007"), filepath.Join(target.String(),
		"0000000000000008")))
	_, err = visited(t, target, 8, 2)
	check.Is(t, err, machine.ErrCorrupt, "the log of another ledger")
}
