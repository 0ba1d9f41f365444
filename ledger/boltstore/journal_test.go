package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// steps is a checkpoint in steps, of which tests do one after the other.
type steps struct {
	t      *testing.T
	store  *Store
	frozen *frozenState
	left   *changes
}

// openSteps opens the store at path with steps of so many pages.
func openSteps(t *testing.T, path string, pages int64) *Store {
	t.Helper()
	s := must.Get(Open(path, Options{
		Identity: testIdentity, SealBytes: testSealBytes, NoSync: true, StepBytes: pages * testPageSize,
	}))(t)
	t.Cleanup(func() { _ = s.Close() }) // some tests leave it damaged
	return s
}

// scatter changes and removes records all over a store that has n, and adds some.
func scatter(t *testing.T, s *Store, n int, random *rand.Rand) {
	t.Helper()
	must.Do(t, s.Update(next(s), func(tx machine.Tx) (err error) {
		for range n / 4 {
			value := fmt.Appendf(nil, "%x", random.Uint64())
			err = errors.Join(err, tx.Put(streams, recordKey(random.IntN(n+n/10)), value),
				tx.Delete(streams, recordKey(random.IntN(n))),
				tx.Put(machine.TableExpiry, recordKey(random.IntN(n)), nil))
		}
		return err
	}))
}

// begin does the first step, which makes the checkpoint durable.
func begin(t *testing.T, s *Store) *steps {
	t.Helper()
	frozen := must.Get(s.freeze())(t)
	c := &steps{t, s, frozen, frozen.overlay.changes()}
	must.Do(t, s.commitJournal(frozen, c.left, s.pacer()))
	return c
}

// next does another step, and reports whether it was the last.
func (c *steps) next() (pages int64, last bool) {
	c.t.Helper()
	pages = must.Get(c.store.mergeSome(c.left, c.store.pacer()))(c.t)
	return pages, c.left.len() == 0
}

// all returns what a store has in the tables that scatter changes.
func all(t *testing.T, s *Store) (content string) {
	t.Helper()
	must.Do(t, s.View(func(r machine.Reader) error {
		a, err := list(r, streams, "")
		b, err2 := list(r, machine.TableExpiry, "")
		content = a + b
		return errors.Join(err, err2)
	}))
	return content
}

// hasJournal reports whether a file that is not open has a journal.
func hasJournal(t *testing.T, path string) (found bool) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	must.Do(t, err)
	err = db.View(func(tx *bbolt.Tx) error {
		found = tx.Bucket(journalBucket) != nil
		return nil
	})
	must.Do(t, errors.Join(err, db.Close()))
	return found
}

// copyOf is a copy of the files of a store as a crash leaves them now.
func copyOf(t *testing.T, s *Store) string {
	t.Helper()
	dir := t.TempDir()
	must.Do(t, os.CopyFS(dir, os.DirFS(filepath.Dir(s.path))))
	return filepath.Join(dir, filepath.Base(s.path))
}

// A crash after any step of a checkpoint, or of the one that ends it after a crash, loses nothing of it.
func TestCrashBetweenSteps(t *testing.T) {
	t.Parallel()
	const n, pages = 2_000, 10
	random := rand.New(rand.NewPCG(1, 2))
	s := openSteps(t, filled(t, n), pages)
	scatter(t, s, n, random)
	want, at := all(t, s), s.Applied()
	check := func(path string, journal bool) {
		t.Helper()
		check.Equal(t, hasJournal(t, path), journal, "the file has a journal: %v")
		for _, open := range []func() (*Store, error){
			func() (*Store, error) { return OpenReadOnly(path, testIdentity) },
			func() (*Store, error) { return Open(path, Options{Identity: testIdentity, NoSync: true}) },
		} {
			again := must.Get(open())(t)
			if got := all(t, again); got != want || again.Applied() != at || again.Checkpoint() != at {
				t.Errorf("after a crash other content, or %v, checkpoint %v; want %v", again.Applied(),
					again.Checkpoint(), at)
			}
			if !again.readOnly {
				flush(t, again)
			}
			check.Equal(t, all(t, again), want, "other content after a flush: got %v")
			must.Do(t, again.Close())
		}
		if hasJournal(t, path) {
			t.Error("a flush has left the journal")
		}
		check.Equal(t, all(t, openSteps(t, path, pages)), want, "other content once the journal is removed: got %v")
	}
	c := begin(t, s)
	halfway := ""
	for count := 1; ; count++ {
		path := copyOf(t, s)
		check(path, true)
		if count == 4 {
			halfway = copyOf(t, s)
		}
		if got := all(t, s); got != want {
			t.Fatalf("before step %d other content", count)
		}
		if _, last := c.next(); last {
			if count < 8 {
				t.Errorf("%d steps", count)
			}
			break
		}
	}
	check(copyOf(t, s), false)
	s.thaw(c.frozen)
	if got := all(t, s); got != want {
		t.Error("other content at the end")
	}

	// The crash came in the middle, and the next ones come while what it left is put into its tables.
	s = openSteps(t, halfway, pages)
	c = &steps{t: t, store: s, left: s.frozen.changes()}
	for last := false; !last; {
		check(copyOf(t, s), true)
		_, last = c.next()
	}
	check(copyOf(t, s), false)
}

// What is written after a crash in the middle of a checkpoint goes on top of it, and so do the next crash and
// checkpoint.
func TestWritesOnTopOfAJournal(t *testing.T) {
	t.Parallel()
	const n = 500
	random := rand.New(rand.NewPCG(3, 4))
	s := openSteps(t, filled(t, n), 4)
	for range 3 {
		scatter(t, s, n, random)
		c := begin(t, s)
		c.next()
		s = openSteps(t, copyOf(t, s), 4)
		if !s.unmerged || s.PendingBytes() == 0 {
			t.Errorf("nothing of the journal is pending: %d bytes", s.PendingBytes())
		}
		remove(t, s, machine.TableExpiry, string(recordKey(1)))
		put(t, s, streams, string(recordKey(n/2)), "later")
		want := all(t, s)
		flush(t, s)
		if got := all(t, s); got != want || s.unmerged || s.PendingBytes() != 0 || s.Tombstones() != 0 {
			t.Errorf("after a flush other content, or %d bytes and %d deletions are pending", s.PendingBytes(),
				s.Tombstones())
		}
		check.Equal(t, get(t, s, streams, string(recordKey(n/2))), "later", "what was written last is %q")
	}
}

// Reads see the same before, between and after the steps, also of a checkpoint that a process before has begun.
func TestReadsBetweenSteps(t *testing.T) {
	t.Parallel()
	const n, pages, least = 500, 4, 5
	s := openSteps(t, filled(t, n), pages)
	scatter(t, s, n, rand.New(rand.NewPCG(11, 12)))
	want := all(t, s)
	count := 0
	look := func(time.Duration) {
		if count++; all(t, s) != want {
			t.Errorf("other content at rest %d", count)
		}
	}
	s.yield = look
	if flush(t, s); count < least {
		t.Errorf("%d rests", count)
	}
	scatter(t, s, n, rand.New(rand.NewPCG(13, 14)))
	want = all(t, s)
	s.yield = nil
	begin(t, s)
	s = openSteps(t, copyOf(t, s), pages)
	s.yield, count = look, 0
	if flush(t, s); count < least {
		t.Errorf("%d rests", count)
	}
}

// Deletions that a crash has left in the journal hold up reads in order until a flush, so they count.
func TestTombstonesOfAJournal(t *testing.T) {
	t.Parallel()
	s := openSteps(t, filled(t, 10), 1)
	for i := range 5 {
		remove(t, s, machine.TableExpiry, string(recordKey(i)))
	}
	begin(t, s)
	s = openSteps(t, copyOf(t, s), 1)
	check.Equal(t, s.Tombstones(), 5, "%d deletions")
	if flush(t, s); s.Tombstones() != 0 {
		t.Errorf("%d deletions after a flush", s.Tombstones())
	}
}

// A snapshot never has a journal: it waits for a flush that is under way, and ends one that a crash has interrupted.
func TestSnapshotHasNoJournal(t *testing.T) {
	t.Parallel()
	const n = 500
	s := openSteps(t, filled(t, n), 4)
	look := func(sn *Snapshot, err error, want string) {
		t.Helper()
		must.Do(t, err)
		if sn.tx.Bucket(journalBucket) != nil {
			t.Error("a snapshot has a journal")
		}
		var content string
		err = sn.View(func(r machine.Reader) error {
			a, err := list(r, streams, "")
			b, err2 := list(r, machine.TableExpiry, "")
			content = a + b
			return errors.Join(err, err2)
		})
		if err := errors.Join(err, sn.Close()); err != nil || content != want {
			t.Errorf("the snapshot has other content, %v", err)
		}
	}
	type answer struct {
		sn  *Snapshot
		err error
	}
	answers, asked := make(chan answer), false
	s.yield = func(time.Duration) {
		if asked {
			return
		}
		asked = true
		go func() { // ends with its answer, which is received below
			sn, err := s.Snapshot()
			answers <- answer{sn, err}
		}()
	}
	random := rand.New(rand.NewPCG(5, 6))
	scatter(t, s, n, random)
	want := all(t, s)
	flush(t, s)
	got := <-answers
	look(got.sn, got.err, want)

	scatter(t, s, n, random)
	want = all(t, s)
	begin(t, s).next()
	path := copyOf(t, s)
	only := must.Get(OpenReadOnly(path, testIdentity))(t)
	check.Is(t, check.Err(only.Snapshot()), ErrReadOnly, "a snapshot of a file that is only read, with a journal")
	must.Do(t, only.Close())
	s = openSteps(t, path, 4)
	sn, err := s.Snapshot()
	look(sn, err, want)
}

// The state file of another directory may have a journal, which a node that takes it over puts into its tables.
func TestAdoptedJournal(t *testing.T) {
	t.Parallel()
	s := openSteps(t, filled(t, 500), 4)
	scatter(t, s, 500, rand.New(rand.NewPCG(15, 16)))
	want, at := all(t, s), s.Applied()
	begin(t, s).next()
	path, other := copyOf(t, s), []byte("another identity")
	must.Equal(t, must.Get(AdoptAt(path, other))(t), at, "AdoptAt = %v")
	for range 2 {
		s := must.Get(Open(path, Options{Identity: other, NoSync: true}))(t)
		check.Equal(t, all(t, s), want, "the copy has other content: %v")
		flush(t, s)
		check.Equal(t, all(t, s), want, "the copy has other content after a flush: %v")
		must.Do(t, s.Close())
	}
	if hasJournal(t, path) {
		t.Error("the journal is still there")
	}
}

// A step changes as many pages as its budget has, whatever records they are, and splits make twice as many of them at
// most; and what it frees is used by the next one, so that the file grows by the journal and a few steps.
func TestPagesOfAStep(t *testing.T) {
	t.Parallel()
	const n, pages = 20_000, 200
	long := strings.Repeat("x", 3_300)
	longKey := func(i int) []byte { return fmt.Appendf([]byte(long), "%06d", i) }
	short := openSteps(t, filled(t, n), pages)
	deep := openSteps(t, filled(t, 1), pages) // two keys in a page: the way to a leaf has many pages of its own
	fill := func(s *Store, count, every int, fn func(tx machine.Tx, i int) error) {
		t.Helper()
		must.Do(t, s.Update(next(s), func(tx machine.Tx) (err error) {
			for i := range count {
				err = errors.Join(err, fn(tx, i*every))
			}
			return err
		}))
	}
	longPut := func(tx machine.Tx, i int) error { return tx.Put(streams, longKey(i), bytes.Repeat([]byte("v"), 20)) }
	fill(deep, n/4, 1, longPut)
	flush(t, deep)
	for _, c := range []struct {
		name         string
		store        *Store
		count, every int
		fn           func(tx machine.Tx, i int) error
		grows        bool
	}{
		{"scattered", short, n / 8, 8, func(tx machine.Tx, i int) error {
			return tx.Put(streams, recordKey(i), []byte("new"))
		}, false},
		{"removed", short, n / 8, 8, func(tx machine.Tx, i int) error {
			return tx.Delete(streams, recordKey(i+1))
		}, false},
		{"emptied", short, n / 8, 1, func(tx machine.Tx, i int) error {
			return tx.Delete(streams, recordKey(i))
		}, false},
		{"long values", short, n / 8, 8, func(tx machine.Tx, i int) error {
			return tx.Put(streams, recordKey(i+2), []byte(long))
		}, true},
		{"long keys among short ones", short, n / 8, 8, func(tx machine.Tx, i int) error {
			return tx.Put(streams, fmt.Appendf(nil, "stream-%06d-%s", i, long), nil)
		}, true},
		{"long keys changed", deep, 100, 50, longPut, false},
		{"long keys removed", deep, 100, 50, func(tx machine.Tx, i int) error {
			return tx.Delete(streams, longKey(i+1))
		}, false},
		{"long keys added", deep, 100, 50, func(tx machine.Tx, i int) error { return longPut(tx, i+n) }, true},
	} {
		before := fileSize(t, c.store.path)
		fill(c.store, c.count, c.every, c.fn)
		st, most, sum, count := begin(t, c.store), int64(0), int64(0), 0
		for last := false; !last; count++ {
			var took int64
			took, last = st.next()
			most, sum = max(most, took), sum+took
		}
		c.store.thaw(st.frozen)
		t.Logf("%s: %d pages in a step at most, %d in %d steps", c.name, most/testPageSize, sum/testPageSize, count)
		if most > (2*pages+50)*testPageSize { // and the list of free pages, and what the last record adds
			t.Errorf("%s: a step takes %d pages", c.name, most/testPageSize)
		}
		if sum > 2*pages*testPageSize && most < pages/2*testPageSize {
			t.Errorf("%s: no step takes more than %d pages", c.name, most/testPageSize)
		}
		if grown := fileSize(t, c.store.path) - before; !c.grows && grown > 1<<20+sum/2 {
			t.Errorf("%s: the file has grown by %d bytes, and its pages were %d", c.name, grown, sum)
		}
	}
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info := must.Get(os.Stat(path))(t)
	return info.Size()
}

// A small file and a small checkpoint have no journal.
func TestJournalIsForLargeOnes(t *testing.T) {
	t.Parallel()
	path := filled(t, 2_000)
	for _, c := range []struct {
		name  string
		from  int64
		count int
		large bool
	}{
		{"a large one", 0, 101, true},
		{"a small file", 1 << 30, 101, false},
		{"few changes", 0, 5, false},
		{"few changes that take many pages", 0, 100, true},
	} {
		s := openSteps(t, path, 100)
		s.journalFrom = c.from
		for i := range c.count {
			put(t, s, streams, string(recordKey(i*19)), strings.Repeat("v", 2_000))
		}
		want := all(t, s)
		frozen := must.Get(s.freeze())(t)
		pages, err := s.commitAtOnce(frozen, *frozen.overlay.changes(), s.pacer())
		if large := errors.Is(err, errLarge); large != c.large || !large && (err != nil || pages == 0) {
			t.Errorf("%s: %d bytes of pages, %v", c.name, pages, err)
		}
		if err == nil {
			s.thaw(frozen)
		} else if err := s.write(frozen); err != nil {
			t.Fatal(err)
		}
		check.Equal(t, all(t, s), want, "%s: other content: %v", c.name)
		must.Do(t, s.Close())
		if hasJournal(t, path) {
			t.Errorf("%s: a journal is left", c.name)
		}
	}
	if s := reopen(t, path); s.stepBytes != defaultStepBytes || s.journalFrom != defaultJournalFrom ||
		s.journalRun != defaultJournalRun {
		t.Errorf("by default %d, %d and %d", s.stepBytes, s.journalFrom, s.journalRun)
	}
}

// After an error nothing is written any more, not by a snapshot either.
func TestNoSnapshotAfterAnError(t *testing.T) {
	t.Parallel()
	path := withJournal(t)
	s := openSteps(t, path, 20)
	cause := s.fail(errors.New("a failed sync"))
	if _, err := s.Snapshot(); err == nil || err.Error() != cause.Error() {
		t.Errorf("Snapshot = %v, want %v", err, cause)
	}
	must.Do(t, s.Close())
	if !hasJournal(t, path) {
		t.Error("a snapshot has ended the checkpoint after an error")
	}
}

// withJournal returns a file that a crash has left with a journal of several records.
func withJournal(t *testing.T) string {
	t.Helper()
	s := openSteps(t, filled(t, 5_000), 20)
	scatter(t, s, 5_000, rand.New(rand.NewPCG(7, 8)))
	begin(t, s).next()
	path := copyOf(t, s)
	must.Do(t, os.Remove(SumsPath(path))) // what is below the page checksums is tested
	return path
}

// A journal that is not what was written is refused, because its changes are nowhere else.
func TestDamagedJournalIsRefused(t *testing.T) {
	t.Parallel()
	whole := withJournal(t)
	put := func(b *bbolt.Bucket, number uint32, run []byte) error {
		key := journalKey(number)
		return b.Put(key, sealed(journalTable, key, run))
	}
	change := func(table machine.Table, key string) []byte {
		return append(appendBytes([]byte{byte(table)}, []byte(key)), 0)
	}
	type journal struct {
		tx *bbolt.Tx
		*bbolt.Bucket
		last uint32
	}
	first := func(run []byte) func(j journal) error { return func(j journal) error { return put(j.Bucket, 0, run) } }
	for name, damage := range map[string]func(j journal) error{
		"missing":             func(j journal) error { return j.tx.DeleteBucket(journalBucket) },
		"without its record":  func(j journal) error { return j.tx.Bucket(controlBucket).Delete(keyJournal) },
		"record says none":    func(j journal) error { return putControl(j.tx, keyJournal, []byte{0}) },
		"without end":         func(j journal) error { return j.Delete(journalKey(j.last)) },
		"with a gap":          func(j journal) error { return j.Delete(journalKey(1)) },
		"without start":       func(j journal) error { return j.Delete(journalKey(0)) },
		"empty in the middle": func(j journal) error { return put(j.Bucket, 1, nil) },
		"behind its end":      func(j journal) error { return put(j.Bucket, j.last+1, change(streams, "a")) },
		"another key":         func(j journal) error { return put(j.Bucket, 1<<31, nil) },
		"not sealed":          func(j journal) error { return j.Put(journalKey(0), []byte("x")) },
		"another table":       first(change(machine.TableBlocks, "a")),
		"no table":            first(change(machine.TableCount, "a")),
		"an empty key":        first(change(streams, "")),
		"half a change":       first(change(streams, "a")[:2]),
		"a bucket":            func(j journal) error { _, err := j.CreateBucket([]byte("zzzz")); return err },
	} {
		path := filepath.Join(t.TempDir(), "state.db")
		must.Do(t, os.CopyFS(filepath.Dir(path), os.DirFS(filepath.Dir(whole))))
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true})
		must.Do(t, err)
		err = db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket(journalBucket)
			last, _ := b.Cursor().Last()
			return damage(journal{tx, b, binary.BigEndian.Uint32(last)})
		})
		must.Do(t, errors.Join(err, db.Close()), "%s", name)
		t.Run(name, func(t *testing.T) { refused(t, path, testIdentity, machine.ErrCorrupt, "restore") })
	}
	if s := reopen(t, whole); !s.unmerged {
		t.Error("the whole one is not opened")
	}
}

// To remove the journal, bbolt frees as many pages as its leaves say that they have. A header that is damaged while the
// file is open stops the flush before that.
func TestJournalDamagedBeforeItIsRemoved(t *testing.T) {
	t.Parallel()
	path := withJournal(t)
	s := openSteps(t, path, 20)
	var leaf uint64
	err := s.bolt.View(func(tx *bbolt.Tx) error {
		b, _, err := s.rawPages(tx).Buckets(uint64(tx.Cursor().Bucket().Root())).Bucket(journalBucket)
		for id := uint64(2); err == nil && id < uint64(tx.Size())/testPageSize && leaf == 0; id++ {
			if page := s.rawPages(tx).Raw(id); b.Has(id) && binary.NativeEndian.Uint16(page[8:]) == 2 &&
				binary.NativeEndian.Uint64(page) == id {
				leaf = id
			}
		}
		return err
	})
	if err != nil || leaf == 0 {
		t.Fatalf("no leaf of the journal: %v", err)
	}
	more := make([]byte, 4)
	at := int64(leaf)*testPageSize + 12
	must.Get(s.file.ReadAt(more, at))(t)
	more[0]++
	must.Get(s.file.WriteAt(more, at))(t)
	err = s.Flush()
	if !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(err.Error(), "finish the checkpoint") {
		t.Errorf("Flush = %v", err)
	}
	must.Do(t, s.Close())
	if !hasJournal(t, path) {
		t.Error("the damaged journal was removed")
	}
}

// TestPowerLossBetweenSteps: a loss of power within a step leaves its checkpoint, or, within the first, that before.
func TestPowerLossBetweenSteps(t *testing.T) {
	t.Parallel()
	const n = 1_000
	s := openSteps(t, filled(t, n), 25)
	changeSome(t, s, n, 2, "first") // in steps, so that there are older pages of a journal
	copies := []files{readFiles(t, s.path)}
	want := []string{all(t, s)}
	scatter(t, s, n, rand.New(rand.NewPCG(9, 10)))
	want = append(want, all(t, s))
	c := begin(t, s)
	for last := false; ; _, last = c.next() {
		copies = append(copies, readFiles(t, s.path))
		if last {
			break
		}
	}
	path, random, led := copyOf(t, s), powerRandom(t), [2]int{}
	losses := 12
	if testing.Short() {
		losses = 3
	}
	for step, after := range copies[1:] {
		for i := range losses {
			stage := powerLoss(i % 3)
			stage.files(random, copies[step], after).write(t, path)
			s, err := Open(path, Options{Identity: testIdentity, NoSync: true})
			must.Do(t, err, "step %d, a loss of power %s", step, stage)
			got := all(t, s)
			flush(t, s)
			if again := all(t, s); again != got || got != want[1] && (step > 0 || got != want[0]) {
				t.Fatalf("step %d, a loss of power %s: other content", step, stage)
			}
			if led[0]++; got == want[1] {
				led[0], led[1] = led[0]-1, led[1]+1
			}
			must.Do(t, s.Close())
		}
	}
	t.Logf("%d steps: %d losses of power led to the checkpoint before, %d to the new one", len(copies)-1, led[0],
		led[1])
	if led[0] == 0 || led[1] == 0 || len(copies) < 6 {
		t.Error("the losses led to one checkpoint alone, or it had few steps")
	}
}

// What a journal has is on disks: see FORMAT.md.
func TestJournalBytes(t *testing.T) {
	t.Parallel()
	o := new(overlay)
	o.remove(machine.TableExpiry, []byte("k2"))
	o.put(machine.TableExpiry, []byte("k1"), nil)
	o.put(streams, []byte("key"), bytes.Repeat([]byte("v"), 200))
	want := "\x01\x03key\x01\xc8\x01" + strings.Repeat("v", 200) + "\x02\x02k1\x01\x00\x02\x02k2\x00"
	check.Equal(t, string(encodeRun(o)), want, "the changes are %q")
	if got := sealed(journalTable, journalKey(258), []byte("run")); string(journalKey(258)) != "\x00\x00\x01\x02" ||
		string(got) != "runI\a\xc1\x7f" {
		t.Errorf("record %q is %q", journalKey(258), got)
	}
}

// Whatever a journal has, its decoder returns what was encoded, or an error.
func FuzzJournal(f *testing.F) {
	o := new(overlay)
	o.put(streams, []byte("key"), []byte("value"))
	o.put(machine.TableExpiry, []byte("key"), nil)
	o.remove(streams, []byte("removed"))
	f.Add(encodeRun(o))
	f.Add([]byte{byte(streams), 1, 'a', 2})
	f.Fuzz(func(t *testing.T, run []byte) {
		o := new(overlay)
		if err := o.takeRun(run); err != nil {
			return
		}
		again := new(overlay)
		if err := again.takeRun(encodeRun(o)); err != nil || !bytes.Equal(encodeRun(again), encodeRun(o)) {
			t.Errorf("%x is read as %x and then as %x, %v", run, encodeRun(o), encodeRun(again), err)
		}
	})
}

// encodeRun encodes all changes.
func encodeRun(o *overlay) (run []byte) {
	for table, e := range o.changes() {
		for i := range e.len() {
			run = appendChange(run, machine.Table(table), e.at(i))
		}
	}
	return run
}
