package archive_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/memorytarget"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// stateContent is what the state file has at a ledger index.
func stateContent(index uint64) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "state at %d ", index), 100)
}

// putState puts a state of an index, with the ledger time of as many hours, all of whose block files are in the archive
// but the last, which has one byte.
func (l *ledgerFiles) putState(t archive.Target, index uint64) (err error) {
	l.Helper()
	last := l.sealed[len(l.sealed)-1]
	info := backupfile.Info{
		LedgerID: ledger, Index: index, Time: int64(index) * int64(time.Hour), First: 1, From: last.Number + 1,
		Sealed: last.Hash,
	}
	content := stateContent(index)
	info.SetSizes([]int64{int64(len(content)), 1})
	w, err := archive.NewState(context.Background(), t, &info, 500, rand.Reader)
	if err != nil {
		return err
	}
	out, err := backupfile.NewWriter(w, &info, func(int) error { return nil })
	if err == nil {
		_, err = out.Write(append(content, 'b'))
	}
	if err == nil {
		_, err = out.Finish()
	}
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = w.Finish()
	}
	if err != nil {
		_ = w.Abort(context.Background()) // the target may fail yet
	}
	return err
}

// readState returns the files of the newest state.
func readState(t archive.Target) (files map[uint64][]byte, index uint64, err error) {
	states, err := archive.States(context.Background(), t, ledger)
	if err != nil || len(states) == 0 {
		return nil, 0, err
	}
	contents := map[uint64]*bytes.Buffer{}
	done, all := int64(0), int64(0)
	open := func(file uint64) (io.Writer, error) {
		contents[file] = new(bytes.Buffer)
		return contents[file], nil
	}
	info, err := archive.ReadState(context.Background(), t, states[len(states)-1], open,
		func(now, total int64) { done, all = now, total })
	files = map[uint64][]byte{}
	for file, b := range contents {
		files[file] = b.Bytes()
	}
	if err == nil && (done != all || info.Index != states[len(states)-1].Index) {
		err = fmt.Errorf("%d of %d bytes are read of index %d", done, all, info.Index)
	}
	return files, info.Index, err
}

// mustHaveState expects the newest state to be that of an index, with its block files.
func (l *ledgerFiles) mustHaveState(t archive.Target, index uint64) {
	l.Helper()
	files, at, err := readState(t)
	if err != nil || at != index || !bytes.Equal(files[0], stateContent(index)) || len(files) != len(l.sealed)+2 {
		l.Errorf("the state of %d is read as that of %d with %d files: %v", index, at, len(files), err)
	}
	for _, f := range l.sealed {
		want, err := os.ReadFile(filepath.Join(l.dir, blockfile.Name(f.Number)))
		if err != nil || !bytes.Equal(files[f.Number], want) {
			l.Errorf("block file %d: %v", f.Number, err)
		}
	}
}

// A state is read with its block files as it was put, and the newest one counts. Several at once do not meet.
func TestState(t *testing.T) {
	t.Parallel()
	dir, l := full(t)
	target := archive.Directory(dir)
	if files, _, err := readState(target); err != nil || files != nil {
		t.Errorf("without a state: %v", err)
	}
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() { must.Do(t, l.putState(target, 7)) })
	}
	group.Wait()
	l.mustHaveState(target, 7)
	must.Do(t, l.putState(target, 9))
	l.mustHaveState(target, 9)
	report, err := archive.Verify(t.Context(), target, ledger, nil)
	if err != nil || len(report.Problems)+len(report.Unlisted) > 0 || len(report.States) != 4 ||
		report.States[3].Index != 9 || !report.States[3].Time.Equal(time.Unix(9*3600, 0)) {
		t.Errorf("verify: %+v, %v", report, err)
	}
}

// TestDamage_State changes, cuts and removes each object that a state needs: the reading and the check name it.
func TestDamage_State(t *testing.T) {
	t.Parallel()
	seed := must.Seed(t)
	random := mathrand.New(mathrand.NewPCG(seed, 5))
	dir, l := full(t)
	target := archive.Directory(dir)
	must.Do(t, l.putState(target, 7))
	objects := append(paths(t, dir), must.Get(filepath.Glob(filepath.Join(dir, "*", "state", "*.state")))(t)...)
	objects = append(objects, must.Get(filepath.Glob(filepath.Join(dir, "*", "state", "*", "*")))(t)...)
	if len(objects) < len(l.sealed)+4 {
		t.Fatalf("there are only %v", objects)
	}
	expect := func(path, what string) {
		t.Helper()
		name := filepath.Base(path)
		if number, _, is := strings.Cut(name, "-"); is && strings.HasSuffix(name, ".blocks") {
			name = number // of one that is missing the rest is not known
		}
		_, _, err := readState(target)
		if !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s %s: %v", name, what, err)
		}
		report, err := archive.Verify(t.Context(), target, ledger, nil)
		if err != nil || len(report.Problems) == 0 || !strings.Contains(fmt.Sprint(report.Problems), name) {
			t.Errorf("%s %s: %+v, %v", name, what, report, err)
		}
	}
	for _, path := range objects {
		whole := must.Get(os.ReadFile(path))(t)
		isList := strings.HasSuffix(path, ".state")
		for range 10 {
			changed := bytes.Clone(whole)
			changed[random.IntN(len(whole))] ^= byte(1 + random.IntN(255))
			must.Do(t, os.WriteFile(path, changed, 0o600))
			expect(path, "changed")
			must.Do(t, os.WriteFile(path, whole[:random.IntN(len(whole))], 0o600))
			expect(path, "cut")
		}
		must.Do(t, os.WriteFile(path, append(bytes.Clone(whole), 0), 0o600))
		expect(path, "with a byte more")
		if !isList { // without it there is no state
			must.Do(t, os.Remove(path))
			expect(path, "missing")
		}
		must.Do(t, os.WriteFile(path, whole, 0o600))
	}
	l.mustHaveState(target, 7)
}

// States older than the window go, but for the newest of them; parts without a list once they are a day older than the
// newest state.
func TestRemoveStates(t *testing.T) {
	t.Parallel()
	for window, want := range map[time.Duration][]uint64{
		0: {1, 2, 30, 60, 61}, time.Hour: {60, 61}, 2 * time.Hour: {30, 60, 61}, 59 * time.Hour: {2, 30, 60, 61},
		1000 * time.Hour: {1, 2, 30, 60, 61}, time.Nanosecond: {60, 61},
	} {
		dir, l := full(t)
		target := archive.Directory(dir)
		for _, index := range []uint64{1, 2, 30, 60, 61, 36, 38} { // the last two are without a list
			must.Do(t, l.putState(target, index))
		}
		lists := must.Get(filepath.Glob(filepath.Join(dir, "*", "state", "*.state")))(t)
		must.Do(t, errors.Join(os.Remove(lists[3]), os.Remove(lists[4])))
		must.Do(t, archive.RemoveStates(t.Context(), target, ledger, window))
		must.Do(t, archive.RemoveStates(t.Context(), target, ledger, window), "again")
		var left []uint64
		for _, s := range must.Get(archive.States(t.Context(), target, ledger))(t) {
			left = append(left, s.Index)
		}
		folders := must.Get(filepath.Glob(filepath.Join(dir, "*", "state", "*", "00001")))(t)
		if !slices.Equal(left, want) || len(folders) != len(want)+1 {
			t.Errorf("window %v: there are %v, want %v; with %v", window, left, want, folders)
		}
		l.mustHaveState(target, 61)
		must.Do(t, l.putState(target, 62))
		must.Do(t, archive.RemoveStates(t.Context(), target, ledger, window))
		report := must.Get(archive.Verify(t.Context(), target, ledger, nil))(t)
		if len(report.Problems)+len(report.Unlisted) > 0 {
			t.Errorf("window %v: %+v", window, report)
		}
	}
}

// TestEveryOperationOfAStateMayFail: whatever fails while a state is put and an older one removed, there is a whole one
// and none that lacks something, also after a loss of power, and the next one is put.
func TestEveryOperationOfAStateMayFail(t *testing.T) {
	t.Parallel()
	l, ctx := newLedgerFiles(t, 20), t.Context()
	failed := map[string]bool{}
	for i := 2; ; i++ {
		fail, power := i/2, i%2 == 1
		d := &brokenDisk{Disk: memorytarget.New()}
		target := archive.OnDisk(d)
		l.addAll(open(t, target))
		must.Do(t, l.putState(target, 7))
		d.count, d.fail = 0, fail
		err := l.putState(target, 8)
		if err == nil {
			err = archive.RemoveStates(ctx, target, ledger, time.Nanosecond)
		}
		if err == nil {
			err = l.putState(target, 9)
		}
		if err == nil {
			err = archive.RemoveStates(ctx, target, ledger, time.Nanosecond)
		}
		if d.failed == "" {
			must.Do(t, err, "nothing has failed")
			break
		}
		failed[d.failed] = true
		if err != nil && !errors.Is(err, errDisk) {
			t.Errorf("%s: %v", d.failed, err)
		}
		if power {
			d.Crash(mathrand.New(mathrand.NewPCG(uint64(i), 1)).IntN)
		}
		report := must.Get(archive.Verify(ctx, target, ledger, nil))(t)
		check.Equal(t, len(report.Problems), 0, "%s: %+v", d.failed, report)
		states := must.Get(archive.States(ctx, target, ledger))(t)
		must.Equal(t, len(states) > 0, true, "%s: there are states", d.failed)
		l.mustHaveState(target, states[len(states)-1].Index)
		must.Do(t, l.putState(target, 40))
		must.Do(t, archive.RemoveStates(ctx, target, ledger, time.Nanosecond))
		l.mustHaveState(target, 40)
		report = must.Get(archive.Verify(ctx, target, ledger, nil))(t)
		if len(report.Problems) > 0 || len(report.States) != 2 {
			t.Errorf("%s: %+v", d.failed, report)
		}
	}
	for _, want := range []string{"create", "write", "sync file", "close", "open", "publish", "sync", "list",
		"remove"} {
		check.Equal(t, failed[want], true, "%s has failed", want)
	}
}
