package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
	"github.com/seqledger/seqledger/ledger/witness"
)

// retainingLedger is a ledger that keeps ten seconds, with a pass after each command, and a clock that a test
// moves. It looks for files when the horizon moves, and otherwise never.
type retainingLedger struct {
	*Ledger
	testing.TB
	dir  string
	next uint64
}

func openRetaining(t *testing.T, dir string, change func(*Options)) *retainingLedger {
	t.Helper()
	o := Options{
		Dir: dir, CheckpointBytes: 1 << 20, retainInterval: time.Hour, ArchiveInterval: -1,
		Config: machine.Config{EvictionInterval: 1, RetainBytes: 1 << 20},
	}
	if change != nil {
		change(&o)
	}
	l := &retainingLedger{Ledger: openTest(t, o), TB: t, dir: dir}
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		s, _, err := v.Stream(testScope, "filler")
		l.next = s.Last + 1
		return err
	}))
	return l
}

// fill writes until so many bytes have been written.
func (l *retainingLedger) fill(bytes int) (receipts []machine.Receipt) {
	l.Helper()
	const each = 20_000
	for written := 0; written < bytes; written += each {
		w := testWrite("filler", l.next, each)
		out, err := l.Write(l.Context(), w)
		if err != nil || out.Code != machine.Committed {
			l.Fatalf("write %d: %v %v", l.next, out.Code, err)
		}
		receipts = append(receipts, out.Receipt)
		l.next++
	}
	return receipts
}

func (l *retainingLedger) set(sequence uint64, values map[string]string) {
	l.Helper()
	w := testWrite("setter", sequence, 1)
	for key, value := range values {
		w.Operations = append(w.Operations, machine.Operation{
			Kind: machine.OpSetEntity, Key: []byte(key), Value: []byte(value),
		})
	}
	must.Equal(l, must.Get(l.Write(l.Context(), w))(l).Code, machine.Committed, "set: %v")
}

func (l *retainingLedger) wantValues(values map[string]string) {
	l.Helper()
	var refs []machine.EntityRef
	err := l.View(l.Context(), func(v machine.View) error {
		for key, want := range values {
			e, err := v.Entity(testScope, key)
			if err != nil || string(e.Value) != want {
				l.Errorf("%s is %d bytes, %v, want %d", key, len(e.Value), err, len(want))
			}
			ref, err := v.EntityRef(testScope, key)
			if err != nil {
				return err
			}
			refs = append(refs, ref)
		}
		return nil
	})
	for i := range refs {
		if err == nil {
			err = l.Blocks(l.Context(), func(b machine.Blocks) error { return b.ReadValue(&refs[i]) })
		}
		if err == nil && string(refs[i].Value) != values[refs[i].Key] {
			l.Errorf("%s read beside the lock is another value", refs[i].Key)
		}
	}
	if err != nil {
		l.Error(err)
	}
}

// dropHistory has files before the horizon removed that are worth it, and waits for that.
func (l *retainingLedger) dropHistory() error {
	l.remove()
	return l.work()
}

// awaitDrop waits until files have been dropped.
func (l *retainingLedger) awaitDrop() {
	l.Helper()
	l.await("files to be dropped", func() bool { return l.Stats().DroppedFiles > 0 })
}

func (l *retainingLedger) await(what string, done func() bool) {
	l.Helper()
	must.Await(l, func() bool {
		must.Do(l, l.Err())
		return done()
	}, what)
}

func (l *retainingLedger) files() (names []string) {
	l.Helper()
	entries := must.Get(os.ReadDir(filepath.Join(l.dir, "blocks")))(l)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// closeAndAudit closes the ledger, and audits it.
func (l *retainingLedger) closeAndAudit() {
	l.Helper()
	check.Equal(l, len(l.audit()), 0)
	must.Do(l, l.Close())
}

func (l *retainingLedger) audit() (problems []machine.Problem) {
	l.Helper()
	must.Do(l, l.store.View(func(r machine.Reader) error {
		_, err := l.machine.Audit(r, func(p machine.Problem) { problems = append(problems, p) }, nil)
		return err
	}))
	return problems
}

// longValues are values that stay in their blocks, of several lengths.
func longValues(n int) map[string]string {
	values := map[string]string{"short": "x"}
	for i := range n {
		values[fmt.Sprint("long", i)] = strings.Repeat(fmt.Sprint(i%10), 33+i*997)
	}
	return values
}

// History before the horizon is dropped with its files, values that are alive stay, and every answer says so, also
// after a restart.
func TestHistoryIsDropped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := openRetaining(t, dir, nil)
	values := longValues(30)
	l.set(1, values)
	old := l.fill(1 << 20)
	values["long0"] = "changed to a short one"
	l.set(2, map[string]string{"long0": values["long0"]})
	l.jobs.Lock() // so that the horizon moves on while files are to be removed
	recent := l.fill(3 << 19)
	l.jobs.Unlock()
	l.awaitDrop()
	check := func() {
		t.Helper()
		l.wantValues(values)
		var id machine.TxID
		_ = l.View(t.Context(), func(v machine.View) error { id = v.TxIDAt(old[0].Index); return nil })
		for what, read := range map[string]func(b machine.Blocks) error{
			"transaction": func(b machine.Blocks) error { _, err := b.Transaction(id); return err },
			"receipt":     func(b machine.Blocks) error { _, err := b.ReceiptAt(old[0].Index); return err },
		} {
			err := l.Blocks(t.Context(), read)
			if gone, ok := errors.AsType[*machine.GoneError](err); !ok || gone.Horizon <= old[0].Index {
				t.Errorf("%s before the horizon: %v", what, err)
			}
		}
		for _, err := range l.Watch(t.Context(), testScope, 1) {
			gone, ok := errors.AsType[*machine.GoneError](err)
			if !ok || gone.FirstHeight <= old[0].BlockHeight || gone.FirstHeight > recent[len(recent)-1].BlockHeight {
				t.Errorf("watch from below: %v", err)
				break
			}
			for header, err := range l.Watch(t.Context(), testScope, gone.FirstHeight) {
				if err != nil || header.Height != gone.FirstHeight {
					t.Errorf("watch from the first height: %+v, %v", header, err)
				}
				break
			}
			break
		}
		out, err := l.Write(t.Context(), testWrite("filler", 1, 20_000))
		if err != nil || out.Code != machine.AlreadyCommitted {
			t.Errorf("a retry from before the horizon: %v %v", out.Code, err)
		}
		last := recent[len(recent)-1]
		out, err = l.Write(t.Context(), testWrite("filler", last.Sequence, 20_000))
		if err != nil || out.Code != machine.Replayed || out.Receipt.Index != last.Index {
			t.Errorf("a retry from behind the horizon: %+v %v", out, err)
		}
	}
	check()
	l.await("the other files to be dropped", func() bool { return l.Stats().BlockBytes <= 5<<19 })
	if names := l.files(); slices.Contains(names, "0000000001.blocks") {
		t.Errorf("the files are %v", names)
	}
	l.closeAndAudit()
	l = openRetaining(t, dir, nil)
	check()
	l.closeAndAudit()
}

// What a ledger takes stays bounded, however long it is written to.
func TestDiskStaysBounded(t *testing.T) {
	t.Parallel()
	l := openRetaining(t, t.TempDir(), nil)
	largest := int64(0)
	for range 20 {
		l.fill(1 << 20)
		l.await("the files to be dropped", func() bool {
			return len(l.store.Droppable(l.source.Horizon.Load().Index())) == 0 || l.Stats().BlockBytes < 3<<20
		})
		largest = max(largest, l.Stats().BlockBytes)
	}
	if largest > 4<<20 {
		t.Errorf("with 1 MiB to keep the block files took %d bytes", largest)
	}
	l.closeAndAudit()
}

// A crash at any step of dropping leaves a directory that opens, has everything, and goes on: copies of it are
// taken while the steps are gone through, and with each number of the files that are removed last still there.
func TestCrashWhileHistoryIsDropped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := openRetaining(t, dir, func(o *Options) { o.CheckpointBytes = 300 << 10 })
	values := longValues(40) // in several pieces of maxLiveBytes
	l.jobs.Lock()
	l.set(1, values)
	l.fill(5 << 19)
	jobs := map[engine.JobKind]int{}
	l.jobHook = func(next engine.JobKind) {
		if jobs[next]++; jobs[next] <= 3 {
			// What is not synced is not there after a crash of the machine; after one of the process it is.
			mustGoOn(t, copyDirectory(t, dir), fmt.Sprint("before job ", next), values)
		}
	}
	before := copyDirectory(t, dir)
	l.jobs.Unlock()
	if err := l.dropHistory(); err != nil && l.Stats().DroppedFiles == 0 {
		t.Fatal(err)
	}
	l.jobs.Lock() // the ledger's own goroutine may do further jobs
	l.jobHook = nil
	l.jobs.Unlock()
	if jobs[engine.Carry] < 2 || jobs[engine.Flush] == 0 || jobs[engine.Drop] == 0 || jobs[engine.Sweep] == 0 {
		t.Errorf("the jobs are %v", jobs)
	}
	l.wantValues(values)
	crashAmidRemovals(t, l, before, values)
	l.closeAndAudit()
}

func copyDirectory(t *testing.T, dir string) string {
	t.Helper()
	copied := t.TempDir()
	mustDo(t, os.CopyFS(copied, os.DirFS(dir)))
	return copied
}

// crashAmidRemovals puts back the dropped files that a crash after some removals leaves, which begin with the first.
func crashAmidRemovals(t *testing.T, l *retainingLedger, before string, values map[string]string) {
	t.Helper()
	l.jobs.Lock() // a job would remove files while they are copied
	defer l.jobs.Unlock()
	dropped := int(l.Stats().DroppedFiles)
	for left := 1; left <= dropped; left += max(1, dropped/4) {
		copied := copyDirectory(t, l.dir)
		for number := dropped - left + 1; number <= dropped; number++ {
			name := filepath.Join("blocks", fmt.Sprintf("%010d.blocks", number))
			b, err := os.ReadFile(filepath.Join(before, name))
			mustDo(t, errors.Join(err, os.WriteFile(filepath.Join(copied, name), b, 0o600)))
		}
		mustGoOn(t, copied, fmt.Sprintf("%d of %d dropped files are left", left, dropped), values)
	}
}

// mustGoOn opens what a crash has left, and drops more.
func mustGoOn(t *testing.T, dir, what string, values map[string]string) {
	t.Helper()
	l := openRetaining(t, dir, nil)
	l.wantValues(values)
	l.fill(2 << 20)
	l.awaitDrop()
	l.wantValues(values)
	check.Equal(t, len(l.audit()), 0, "%s: %v", what)
	must.Do(t, l.Close(), "%s", what)
}

// While a backup reads the files none is dropped; afterwards they are.
func TestNothingIsDroppedDuringABackup(t *testing.T) {
	t.Parallel()
	l := openRetaining(t, t.TempDir(), nil)
	l.backups <- struct{}{}
	l.fill(3 << 20)
	l.await("the horizon", func() bool { return len(l.store.Droppable(l.source.Horizon.Load().Index())) > 0 })
	if err := l.dropHistory(); err != nil || l.Stats().DroppedFiles != 0 {
		t.Errorf("dropped %d files, %v", l.Stats().DroppedFiles, err)
	}
	<-l.backups
	signal(l.historyDue)
	l.awaitDrop()
	l.closeAndAudit()
}

// Removing files changes no digest: it is the same at every step of it, after a restart, and for a verification.
func TestDigestsWhileHistoryIsDropped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := openRetaining(t, dir, nil)
	l.set(1, longValues(10))
	digests := map[uint64]machine.Hash{} // by index: ticks may come between
	note := func(what string) (known bool) {
		t.Helper()
		mustDo(t, l.View(t.Context(), func(v machine.View) error {
			var before machine.Hash
			before, known = digests[v.Index()]
			if digests[v.Index()] = v.Digest(); known && before != v.Digest() {
				t.Errorf("%s: at index %d the digest is %v, and was %v", what, v.Index(), v.Digest(), before)
			}
			return nil
		}))
		return known
	}
	compared := false
	for round := 0; !compared && round < 10; round++ {
		l.jobs.Lock()
		l.fill(5 << 19)
		note("before")
		files := l.Stats().DroppedFiles
		l.jobs.Unlock()
		mustDo(t, l.dropHistory())
		compared = note("after") && l.Stats().DroppedFiles > files
	}
	if !compared {
		t.Error("no files were dropped between two answers at the same index")
	}
	l.closeAndAudit()
	l = openRetaining(t, dir, nil)
	note("after a restart")
	l.closeAndAudit()
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Dropped == 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	if before, known := digests[report.Index]; known && before != report.Digest {
		t.Errorf("verify says %v at index %d, and the ledger said %v", report.Digest, report.Index, before)
	}
}

// What is not in the tree of receipts yet stays, until it is.
func TestTreeComesBeforeRemoval(t *testing.T) {
	t.Parallel()
	key := must.Get(witness.NewKey(witness.LogKey, "log.example"))(t)
	o := &ReceiptOptions{Keys: []*witness.Key{key}, Origin: "log.example", Interval: time.Hour}
	l := openRetaining(t, t.TempDir(), func(options *Options) { options.Receipts = o })
	l.fill(3 << 20)
	must.Do(t, l.flush())
	if files := l.store.Droppable(l.source.Horizon.Load().Index()); len(files) == 0 {
		t.Fatal("no file lies before the horizon")
	}
	check.Equal(t, len(l.removable()), 0, "%d files may be removed that are not in the tree")
	var b *treeBuilder
	_, err := l.extendTree(&b)
	l.noteReceipts(b, new(gathering), false, err)
	must.Do(t, err)
	if len(l.removable()) == 0 {
		t.Error("what is in the tree may not be removed")
	}
}
