package pagesum

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/rapidtest"
	"github.com/seqledger/seqledger/ledger/internal/boltpage"
)

// disk is a state file, its checksums, and what a test does to them.
type disk struct {
	dir  string
	db   *bbolt.DB
	sums *Sums
	// before is the file of checksums as the last Update that was complete left it.
	before []byte
}

func (d *disk) statePath() string { return filepath.Join(d.dir, "state.db") }
func (d *disk) sumsPath() string  { return filepath.Join(d.dir, "state.sum") }

// begin makes a state file and its checksums.
func begin(t *rapid.T, dir string) *disk {
	d := &disk{dir: dir}
	d.db = must.Get(bbolt.Open(d.statePath(), 0o600, &bbolt.Options{PageSize: 1024, NoSync: true}))(t)
	d.transact(t)
	d.open(t)
	return d
}

func (d *disk) close() { _ = errors.Join(d.db.Close(), d.sums.Close()) }

// read returns the pages of the state file as they are now.
func (d *disk) read(t *rapid.T) (boltpage.Pages, boltpage.Meta) {
	content := must.Get(os.ReadFile(d.statePath()))(t)
	m := must.Get(boltpage.ReadMeta(bytes.NewReader(content)))(t)
	return boltpage.New(content[:int64(m.Pages)*m.PageSize], int(m.PageSize)), m
}

// transact changes some keys, so that pages come into use and become free.
func (d *disk) transact(t *rapid.T) {
	keys := rapid.IntRange(1, 60).Draw(t, "keys")
	first, size := rapid.IntRange(0, 400).Draw(t, "first"), rapid.IntRange(0, 300).Draw(t, "size")
	remove := rapid.IntRange(0, 3).Draw(t, "remove") == 0
	if rapid.IntRange(0, 60).Draw(t, "large") == 0 {
		keys, size = 600, 2000
	}
	must.Do(t, d.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte("b"))
		for k := first; k < first+keys && err == nil; k++ {
			key := binary.BigEndian.AppendUint32(nil, uint32(k))
			if remove {
				err = b.Delete(key)
			} else {
				err = b.Put(key, bytes.Repeat([]byte{byte(k)}, size))
			}
		}
		return err
	}))
}

// open opens the checksums of the state file as it is.
func (d *disk) open(t *rapid.T) {
	pages, m := d.read(t)
	s, err := Open(d.sumsPath(), pages, m, testOptions)
	must.Do(t, err, "the checksums are refused")
	d.sums = s
	d.keep(t)
}

func (d *disk) keep(t *rapid.T) {
	content := must.Get(os.ReadFile(d.sumsPath()))(t)
	d.before = content
}

// crash leaves any of the sectors that the last Update has written as they were, as a power failure may, and
// opens the checksums again. Of a new file it leaves all or nothing.
func (d *disk) crash(t *rapid.T) (anew bool) {
	must.Do(t, d.sums.Close())
	now := must.Get(os.ReadFile(d.sumsPath()))(t)
	const sector = 512
	if anew = !bytes.HasPrefix(now, d.before); anew && rapid.Bool().Draw(t, "lost") {
		now = d.before
	}
	for at := len(d.before); !anew && at < len(now); {
		next := min(len(now), (at/sector+1)*sector)
		if rapid.Bool().Draw(t, "lost") {
			clear(now[at:next])
		}
		if at = next; rapid.IntRange(0, 9).Draw(t, "short") == 0 {
			now = now[:at]
		}
	}
	must.Do(t, os.WriteFile(d.sumsPath(), now, 0o600))
	d.open(t)
	return anew
}

// check compares what the checksums say with the pages themselves: all in use are right, and one changed
// byte of any is found.
func (d *disk) check(t *rapid.T) {
	pages, m := d.read(t)
	live, err := pages.Live(m)
	must.Do(t, err)
	var used []uint64
	for id := uint64(2); id < m.Pages; id++ {
		if live[id/64]>>(id%64)&1 == 1 {
			used = append(used, id)
		}
	}
	compared, steps := 0, rapid.IntRange(1, 40).Draw(t, "pages at a time")
	for next := uint64(0); ; {
		var n int
		if next, n, err = d.sums.Verify(pages, next, steps); err != nil {
			t.Fatalf("a page that is right is refused: %v", err)
		}
		if compared += n; next == 0 {
			break
		}
	}
	if compared != len(used) {
		t.Fatalf("%d pages were compared, %d are in use", compared, len(used))
	}
	id := rapid.SampledFrom(used).Draw(t, "page")
	wrong := bytes.Clone(pages.Raw(id))
	wrong[rapid.IntRange(0, len(wrong)-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
	bad, isPage := errors.AsType[*PageError](compare(id, wrong, (*d.sums.table.Load())[id].Load()))
	if !isPage || bad.Page != id || bad.Got == bad.Want {
		t.Fatalf("page %d with another bit: %v", id, bad)
	}
}

// use reads every page in use, as a store does, and returns which they are.
func (d *disk) use(t *rapid.T) map[uint64]bool {
	pages, m := d.read(t)
	live := must.Get(pages.Live(m))(t)
	used := map[uint64]bool{}
	for id := uint64(2); id < m.Pages; id++ {
		if live[id/64]>>(id%64)&1 == 1 {
			used[id] = true
			must.Do(t, d.sums.Check(id, pages.Raw(id)))
		}
	}
	return used
}

// checkReused: a page that came into use is compared when it is read from the disk, also if it was read under
// an earlier transaction.
func (d *disk) checkReused(t *rapid.T, pages boltpage.Pages, m boltpage.Meta, before map[uint64]bool) {
	live := must.Get(pages.Live(m))(t)
	for id := uint64(2); id < m.Pages; id++ {
		if live[id/64]>>(id%64)&1 == 1 && !before[id] {
			wrong := bytes.Clone(pages.Raw(id))
			wrong[0] ^= 1
			if d.sums.Check(id, wrong) == nil {
				t.Fatalf("page %d, written by transaction %d, is not compared", id, m.TxID)
			}
		}
	}
}

// checkBefore: with a damaged newest meta page the state file is at the transaction before, whose pages all have their
// checksums, and so they have at the next start.
func (d *disk) checkBefore(t *rapid.T, m boltpage.Meta) {
	state := must.Get(os.ReadFile(d.statePath()))(t)
	state[m.Offset+30] ^= 1
	before, err := boltpage.ReadMeta(bytes.NewReader(state))
	if err != nil || before.TxID+1 != m.TxID {
		t.Fatalf("it is at transaction %d before %d: %v", before.TxID, m.TxID, err)
	}
	pages, path := boltpage.New(state[:int64(before.Pages)*m.PageSize], int(m.PageSize)), d.sumsPath()+".before"
	content, err := os.ReadFile(d.sumsPath())
	must.Do(t, errors.Join(err, os.WriteFile(path, content, 0o600)))
	for range 2 {
		s, err := Open(path, pages, before, testOptions)
		if err == nil {
			_, _, err = s.Verify(pages, 0, 1<<20)
		}
		must.Do(t, errors.Join(err, s.Close()))
	}
}

// TestTransactionsAndCrashes: through any transactions, updates, crashes at any point of an update, and starts,
// the checksums are taken, and are those of every page in use. Without an update, only the transaction before
// is known, and the next start brings the checksums up to date.
func TestTransactionsAndCrashes(t *testing.T) {
	t.Parallel()
	crashes, unknown, anew := 0, 0, 0
	rapidtest.CheckUntil(t, func() string {
		if crashes == 0 || unknown == 0 || anew == 0 {
			return "no crash in an update, no start before one, or no crash with a new file"
		}
		return ""
	}, func(rt *rapid.T) {
		d := begin(rt, t.TempDir())
		defer d.close()
		if !d.sums.Made() {
			rt.Fatal("checksums that were not there are not told to be made")
		}
		for range rapid.IntRange(1, 4).Draw(rt, "transactions") {
			d.keep(rt)
			before := d.use(rt)
			d.transact(rt)
			pages, m := d.read(rt)
			what := rapid.IntRange(0, 3).Draw(rt, "then")
			if what == 0 { // the process ends between the transaction and its checksums
				unknown++
				must.Do(rt, d.sums.Close())
				d.open(rt)
			} else {
				if rapid.IntRange(0, 3).Draw(rt, "anew") == 0 {
					d.sums.spare = math.MinInt32 // the file is too long
				}
				must.Do(rt, d.sums.Update(pages, m))
				d.checkReused(rt, pages, m, before)
				d.checkBefore(rt, m)
			}
			if what == 1 {
				crashes++
				if d.crash(rt) {
					anew++
				}
			}
			d.check(rt)
		}
	})
}

// TestCopiesOfOtherTimes: checksums and state file of different transactions are refused, with a name for it,
// unless the checksums are those of the transaction before.
func TestCopiesOfOtherTimes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		d := begin(rt, t.TempDir())
		defer d.close()
		var sums [][]byte
		for range 5 {
			sums = append(sums, d.before)
			d.transact(rt)
			pages, m := d.read(rt)
			must.Do(rt, d.sums.Update(pages, m))
			d.keep(rt)
		}
		pages, m := d.read(rt)
		age := rapid.IntRange(1, 5).Draw(rt, "age")
		must.Do(rt, os.WriteFile(d.sumsPath(), sums[5-age], 0o600))
		o := testOptions
		o.ReadOnly = rapid.Bool().Draw(rt, "read only")
		s, err := Open(d.sumsPath(), pages, m, o)
		if age == 1 {
			must.Do(rt, err, "checksums of the transaction before")
			if _, _, err := s.Verify(pages, 0, 1<<20); err != nil {
				rt.Fatal(err)
			}
			_ = s.Close()
			return
		}
		must.Is(rt, err, ErrOther, "checksums that are %d transactions old", age)
		o.Identity = []byte("another")
		must.Is(rt, check.Err(Open(d.sumsPath(), pages, m, o)), ErrForeign, "checksums of another directory")
	})
}

// TestCheckReadsAPageOnce: a page is compared at its first use, again after it was written anew, and never where
// nothing is known of it.
func TestCheckReadsAPageOnce(t *testing.T) {
	t.Parallel()
	pages, m, _ := small(t)
	s := must.Get(Open(filepath.Join(t.TempDir(), "state.sum"), pages, m, testOptions))(t)
	defer s.Close()
	live := must.Get(pages.Live(m))(t)
	var used, free uint64
	for id := uint64(2); id < m.Pages; id++ {
		if live[0]>>id&1 == 1 {
			used = id
		} else {
			free = id
		}
	}
	wrong := bytes.Repeat([]byte{0xee}, 4096)
	if s.Check(used, wrong) == nil {
		t.Error("a wrong page is taken at its first use")
	}
	must.Do(t, s.Check(used, pages.Raw(used)))
	must.Do(t, s.Check(used, wrong), "a page that was compared is compared again")
	for _, unknown := range []uint64{0, 1, free, m.Pages + 100} {
		must.Do(t, s.Check(unknown, wrong), "page %d has no checksum, and is refused", unknown)
	}
	// The scrub compares again what was compared before.
	content := bytes.Clone(pages.Raw(0))
	for id := uint64(1); id < m.Pages; id++ {
		content = append(content, pages.Raw(id)...)
	}
	content[used*4096+17] ^= 1
	if _, _, err := s.Verify(boltpage.New(content, 4096), used, 10); err == nil {
		t.Error("a page that has changed since it was compared passes the scrub")
	}
}
