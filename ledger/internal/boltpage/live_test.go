package boltpage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/rapidtest"
)

// TestLiveIsWhatBboltUses: after any transactions, a page is live if and only if bbolt itself does not call it
// free; and the other meta page is that of the transaction before.
func TestLiveIsWhatBboltUses(t *testing.T) {
	t.Parallel()
	free, large := 0, 0
	rapidtest.CheckUntil(t, func() string {
		if free == 0 || large == 0 {
			return "no free page, or no file of more than 64 pages"
		}
		return ""
	}, func(rt *rapid.T) {
		path := filepath.Join(t.TempDir(), "db")
		db := must.Get(bbolt.Open(path, 0o600, &bbolt.Options{PageSize: 1024, NoSync: true}))(rt)
		defer func() { _ = db.Close() }()
		for range rapid.IntRange(1, 6).Draw(rt, "transactions") {
			first, keys := rapid.IntRange(0, 200).Draw(rt, "first"), rapid.IntRange(1, 150).Draw(rt, "keys")
			size := rapid.SampledFrom([]int{0, 20, 300, 5000}).Draw(rt, "size")
			remove := rapid.IntRange(0, 2).Draw(rt, "remove") == 0
			must.Do(rt, db.Update(func(tx *bbolt.Tx) error {
				b, err := tx.CreateBucketIfNotExists([]byte("b"))
				for k := first; k < first+keys && err == nil; k++ {
					key := binary.BigEndian.AppendUint16(nil, uint16(k))
					if remove {
						err = b.Delete(key)
					} else {
						err = b.Put(key, make([]byte, size))
					}
				}
				return err
			}))
			b, m := content(t, db)
			pages := New(b, int(m.PageSize))
			live := must.Get(pages.Live(m))(rt)
			must.Do(rt, db.View(func(tx *bbolt.Tx) error { return compareLive(tx, live, m, &free) }))
			if m.Pages > 64 {
				large++
			}
			if before, err := pages.MetaBefore(m); err != nil || before.TxID != m.TxID-1 || before.Offset == m.Offset {
				rt.Fatalf("before %+v came %+v, %v", m, before, err)
			}
		}
	})
}

// compareLive compares the bits with what bbolt says of each page, and counts the free ones.
func compareLive(tx *bbolt.Tx, live []uint64, m Meta, free *int) error {
	count := 0
	for id := 0; uint64(id) < m.Pages; id++ {
		info, err := tx.Page(id)
		if err != nil {
			return err
		}
		want := info.Type != "free" && id >= firstPage
		if got := live[id/64]>>(id%64)&1 == 1; got != want {
			return errors.New("page " + info.Type + " is live the wrong way")
		}
		if info.Type == "free" {
			*free++
		}
		if want {
			count++
		}
	}
	total := 0
	for _, word := range live {
		total += bits.OnesCount64(word)
	}
	if total != count {
		return errors.New("bits beyond the last page are set")
	}
	return nil
}

// FuzzLive: of whatever is in the list of free pages and in the meta pages, Live makes bits of the file's own
// pages or an error, and takes no more memory than a bit for each page.
func FuzzLive(f *testing.F) {
	db := newFile(f)
	fillForFlips(f, db)
	b, m := content(f, db)
	must.Do(f, db.Close())
	list := uint32(int64(m.FreeList) * m.PageSize)
	f.Add(list, []byte{}, uint8(0))
	f.Add(list+8, []byte{0xff, 0xff, 0xff, 0xff}, uint8(0))
	f.Add(list+10, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 1}, uint8(0))
	f.Add(list+12, []byte{0xff, 0xff, 0xff, 0x7f}, uint8(3))
	f.Fuzz(func(t *testing.T, at uint32, change []byte, cut uint8) {
		damaged := bytes.Clone(b)
		copy(damaged[min(int(at), len(damaged)):], change)
		damaged = damaged[:len(damaged)-min(int(cut), int(m.Pages))*int(m.PageSize)]
		pages := New(damaged, int(m.PageSize))
		live, err := pages.Live(m)
		switch {
		case err != nil && !errors.Is(err, ErrDamaged):
			t.Fatalf("%v is not damage", err)
		case err == nil && (uint64(len(live)) != (m.Pages+63)/64 || live[0]&3 != 0 ||
			live[len(live)-1]>>(m.Pages%64) != 0 && m.Pages%64 != 0):
			t.Fatalf("%d pages have the bits %x", m.Pages, live)
		}
		if before, err := pages.MetaBefore(m); err == nil && before.Offset == m.Offset {
			t.Fatalf("before the meta page at %d comes that at %d", m.Offset, before.Offset)
		}
	})
}

// TestTheCheckOfEachPage is called before a page is used, with all pages that belong to it, and its error is
// damage.
func TestTheCheckOfEachPage(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	update(t, db, func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("b"))
		if err == nil {
			err = b.Put([]byte("long"), make([]byte, 20_000))
		}
		return err
	})
	b, m := content(t, db)
	seen := map[uint64]bool{}
	plain := New(b, int(m.PageSize))
	pages := plain.Checked(func(id uint64, page []byte) error {
		if !bytes.Equal(page, plain.Raw(id)) {
			t.Errorf("page %d is not what the check gets", id)
		}
		seen[id] = true
		return nil
	})
	bucket := bucketOf(t, pages, m, "b")
	c := bucket.Cursor()
	if k, v, err := c.Seek([]byte("long")); err != nil || string(k) != "long" || len(v) != 20_000 {
		t.Fatalf("%q, %d bytes, %v", k, len(v), err)
	}
	used := 0
	for id := uint64(0); id < m.Pages; id++ {
		if bucket.Has(id) {
			if used++; !seen[id] {
				t.Errorf("page %d of the bucket was used unchecked", id)
			}
		}
	}
	if used < 20_000/int(m.PageSize) {
		t.Errorf("the bucket has %d pages", used)
	}
	wrong := errors.New("another sum")
	bad := plain.Checked(func(uint64, []byte) error { return wrong })
	if _, err := bad.page(m.Root); !errors.Is(err, wrong) || !errors.Is(err, ErrDamaged) {
		t.Errorf("a page that its check refuses: %v", err)
	}
	if (Bucket{}).Has(3) {
		t.Error("a bucket without a page has one")
	}
}
