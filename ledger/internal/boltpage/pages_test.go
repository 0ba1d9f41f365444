package boltpage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

const testPageSize = 1024 // small, so that small files have every kind of page

func newFile(t testing.TB) *bbolt.DB {
	t.Helper()
	db := must.Get(bbolt.Open(filepath.Join(t.TempDir(), "pages.db"), 0o600, &bbolt.Options{
		PageSize: testPageSize, NoSync: true, FreelistType: bbolt.FreelistMapType,
	}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// content returns the pages that the last transaction has left.
func content(t testing.TB, db *bbolt.DB) ([]byte, Meta) {
	t.Helper()
	b := must.Get(os.ReadFile(db.Path()))(t)
	m := must.Get(ReadMeta(bytes.NewReader(b)))(t)
	return b[:int64(m.Pages)*m.PageSize], m
}

func update(t testing.TB, db *bbolt.DB, change func(tx *bbolt.Tx) error) {
	t.Helper()
	must.Do(t, db.Update(change))
}

func bucketOf(t testing.TB, pages Pages, m Meta, name string) Bucket {
	t.Helper()
	b, found, err := pages.Buckets(m.Root).Bucket([]byte(name))
	if err != nil || !found {
		t.Fatalf("bucket %q: %t, %v", name, found, err)
	}
	return b
}

// TestCursorIsBbolts: whatever bbolt has written, all of it passes the checks, and a
// cursor goes where bbolt's goes.
func TestCursorIsBbolts(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	db := newFile(t)
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "empty"}
	update(t, db, func(tx *bbolt.Tx) error {
		for _, name := range names {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		return nil
	})
	for round := range 60 {
		update(t, db, func(tx *bbolt.Tx) error {
			for range 1 + random.IntN(300) {
				b := tx.Bucket([]byte(names[random.IntN(len(names)-1)]))
				b.FillPercent = []float64{0.5, 0.9, 1}[random.IntN(3)]
				key := fmt.Appendf(nil, "%0*d", 4+60*(round%3), random.IntN(900))
				var err error
				if random.IntN(5) < 1+round%4 {
					err = b.Delete(key)
				} else {
					err = b.Put(key, make([]byte, random.IntN(10)*random.IntN(400)))
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		b, m := content(t, db)
		pages := New(b, testPageSize)
		_, err := CheckFreeList(bytes.NewReader(b), m)
		must.Do(t, errors.Join(err, pages.Check(m, false), pages.Check(m, true)), "seed %d: round %d", seed, round)
		must.Do(t, db.View(func(tx *bbolt.Tx) error {
			for _, name := range names {
				if err := compareCursors(random, bucketOf(t, pages, m, name).Cursor(),
					tx.Bucket([]byte(name)).Cursor()); err != nil {
					return fmt.Errorf("bucket %s: %w", name, err)
				}
			}
			_, found, err := pages.Buckets(m.Root).Bucket([]byte("none"))
			if err != nil || found {
				return fmt.Errorf("a bucket that is not there: %t, %w", found, err)
			}
			return nil
		}), "seed %d: round %d", seed, round)
	}
}

func compareCursors(random *rand.Rand, ours *Cursor, theirs *bbolt.Cursor) error {
	same := func(what string, err error, key, value, wantKey, wantValue []byte) error {
		if err != nil || !bytes.Equal(key, wantKey) || (key == nil) != (wantKey == nil) ||
			!bytes.Equal(value, wantValue) {
			return fmt.Errorf("%s: key %q with %d bytes, want %q with %d: %w", what, key, len(value), wantKey,
				len(wantValue), err)
		}
		return nil
	}
	for range 30 {
		sought := fmt.Appendf(nil, "%0*d", 4+60*random.IntN(3), random.IntN(920))
		if err := ours.VerifyLeaf(sought, true); err != nil {
			return err
		}
		key, value, err := ours.Seek(sought)
		wantKey, wantValue := theirs.Seek(sought)
		if err := same(fmt.Sprintf("Seek of %s", sought), err, key, value, wantKey, wantValue); err != nil {
			return err
		}
		for range random.IntN(6) {
			if wantKey == nil {
				break // bbolt's stays at the last record then, and ours is behind it
			}
			key, value, err = ours.Next()
			wantKey, wantValue = theirs.Next()
			if err := same("Next", err, key, value, wantKey, wantValue); err != nil {
				return err
			}
		}
		if wantKey == nil {
			continue
		}
		if key, value, err = ours.Before(); err == nil && random.IntN(2) == 0 {
			_, _, err = ours.Seek(wantKey) // where it stands anyway
		}
		wantKey, wantValue = theirs.Prev()
		if err := same("Before", err, key, value, wantKey, wantValue); err != nil {
			return err
		}
	}
	return nil
}

// TestSeekTakesNoMemory: a cursor that was used before needs none, also in a tree that is deeper than most.
func TestSeekTakesNoMemory(t *testing.T) {
	db := newFile(t)
	key := func(i int) []byte { return fmt.Appendf(nil, "%0200d", i) } // so long that a page has four or five
	const records = 2000
	update(t, db, func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("deep"))
		for i := 0; i < records && err == nil; i++ {
			err = b.Put(key(i), nil)
		}
		return err
	})
	b, m := content(t, db)
	c := bucketOf(t, New(b, testPageSize), m, "deep").Cursor()
	sought := key(records / 2)
	seek := func() {
		if found, _, err := c.Seek(sought); err != nil || !bytes.Equal(found, sought) {
			t.Fatalf("found %q, %v", found, err)
		}
	}
	seek()
	if len(c.levels) <= len(c.few) {
		t.Fatalf("the tree has %d levels: as many as a cursor has room for", len(c.levels))
	}
	check.Equal(t, testing.AllocsPerRun(10, seek), 0, "a seek takes %v pieces of memory")
}

// TestBeforeTheEnd is the last record.
func TestBeforeTheEnd(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	fillForFlips(t, db)
	b, m := content(t, db)
	for _, name := range []string{"a", "small"} {
		c := bucketOf(t, New(b, testPageSize), m, name).Cursor()
		var last []byte
		key, _, err := c.Seek(nil)
		for ; key != nil && err == nil; key, _, err = c.Next() {
			last = key
		}
		must.Do(t, err)
		if key, _, err := c.Seek([]byte("zzz")); key != nil || err != nil {
			t.Errorf("bucket %s: behind the end is %q, %v", name, key, err)
		}
		if key, _, err := c.Before(); !bytes.Equal(key, last) || err != nil {
			t.Errorf("bucket %s: before the end is %q, %v; want %q", name, key, err, last)
		}
	}
}

// flipKey is long, so that few fit in an inner page and there are several levels.
func flipKey(i int) []byte { return fmt.Appendf(bytes.Repeat([]byte("k"), 150), "%03d", i) }

// fillForFlips makes a file with every kind of page and with old copies of pages.
// The values end with a checksum.
func fillForFlips(t testing.TB, db *bbolt.DB) {
	t.Helper()
	for round := range 8 {
		update(t, db, func(tx *bbolt.Tx) error {
			for _, name := range []string{"a", "small", "none"} {
				b, err := tx.CreateBucketIfNotExists([]byte(name))
				if err != nil {
					return err
				}
				for i := range map[string]int{"a": 28, "small": 2}[name] {
					key, size := flipKey(2*i), 60
					if i == 12 {
						size = 2_500
					}
					if round > 0 && i%8 != round {
						continue
					}
					value := bytes.Repeat([]byte{byte(i), byte(round)}, size/2)
					if err := b.Put(key, binary.BigEndian.AppendUint32(value, sum(key, value))); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
}

func sum(key, value []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(key), crc32.IEEETable, value)
}

// readAll asks for each key that is there or could be, and walks through all. It
// returns a hash of what it finds.
func readAll(pages Pages, m Meta, keys [][]byte) (uint64, error) {
	text := fnv.New64a()
	say := func(k, v []byte) {
		_, _ = text.Write(k)
		_, _ = text.Write(v)
		_, _ = text.Write([]byte{0})
	}
	for _, name := range []string{"a", "none", "small"} {
		b, found, err := pages.Buckets(m.Root).Bucket([]byte(name))
		if err != nil || !found {
			return 0, fmt.Errorf("bucket %s: %t %w", name, found, err)
		}
		c := b.Cursor()
		for _, key := range keys {
			k, v, err := lookUp(c, key)
			if err != nil {
				return 0, err
			}
			say(k, v)
		}
		var before []byte
		for k, v, err := c.Seek(nil); k != nil || err != nil; k, v, err = c.Next() {
			if err := errors.Join(err, checkSum(k, v)); err != nil {
				return 0, err
			}
			if bytes.Compare(before, k) >= 0 {
				return 0, errors.New("not ascending")
			}
			before = k
			say(k, v)
		}
	}
	return text.Sum64(), nil
}

// lookUp returns the record of a key. If there is none, that has to be proved.
func lookUp(c *Cursor, key []byte) (k, v []byte, err error) {
	k, v, err = c.Seek(key)
	if err != nil {
		return nil, nil, err
	}
	if err := checkSum(k, v); err != nil || bytes.Equal(k, key) {
		return k, v, err
	}
	before, v, err := c.Before()
	if err != nil {
		return nil, nil, err
	}
	if before != nil && bytes.Compare(before, key) >= 0 || k != nil && bytes.Compare(k, key) <= 0 {
		return nil, nil, errors.New("not around it")
	}
	return nil, nil, checkSum(before, v)
}

func checkSum(k, v []byte) error {
	if k == nil {
		return nil
	}
	if len(v) < 4 || sum(k, v[:len(v)-4]) != binary.BigEndian.Uint32(v[len(v)-4:]) {
		return errors.New("checksum")
	}
	return nil
}

// damageStep is how many bits the tests of damage go on by: 1 with
// SEQLEDGER_DAMAGE_ALL, and otherwise a number that has no factor in common with a
// byte, so that bits of all kinds are among them.
func damageStep() int {
	if os.Getenv("SEQLEDGER_DAMAGE_ALL") != "" {
		return 1
	}
	return 101
}

// TestDamage_Pages flips each bit of a file in turn: the checks refuse it, a read
// meets an error, or every answer is right.
func TestDamage_Pages(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	fillForFlips(t, db)
	b, m := content(t, db)
	var keys [][]byte
	for i := range 58 {
		keys = append(keys, flipKey(i))
	}
	want := must.Get(readAll(New(b, testPageSize), m, keys))(t)
	kinds := map[uint16]int{}
	for page := range int(m.Pages) {
		kinds[binary.NativeEndian.Uint16(b[page*testPageSize+8:])]++
	}
	flips, refused, noticed, harmless := 0, 0, 0, 0
	for bit := 0; bit < 8*len(b); bit += damageStep() {
		flips++
		b[bit/8] ^= 1 << (bit % 8)
		newest, err := ReadMeta(bytes.NewReader(b))
		_, listErr := CheckFreeList(bytes.NewReader(b), newest)
		switch {
		case err == nil && newest.TxID != m.TxID:
			harmless++ // the state before, in which what follows does not hold
		case err != nil, listErr != nil, New(b, testPageSize).Check(newest, false) != nil:
			refused++
		default:
			switch got, err := readAll(New(b, testPageSize), newest, keys); {
			case err != nil:
				noticed++
			case got == want:
				harmless++
			default:
				t.Errorf("bit %d of byte %d of page %d changes what is read", bit%8, bit/8%testPageSize,
					bit/8/testPageSize)
			}
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	t.Logf("%d flipped bits, pages by kind %v: %d refused, %d noticed by a read, %d harmless", flips, kinds, refused,
		noticed, harmless)
	if refused == 0 || noticed == 0 || harmless == 0 || kinds[kindBranch] == 0 || kinds[kindFreeList] == 0 {
		t.Error("the file is not what this test needs")
	}
}

// TestLoopIsRefused: pages that lead back to themselves end neither the stack nor
// the time.
func TestLoopIsRefused(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	fillForFlips(t, db)
	b, m := content(t, db)
	pages := New(b, testPageSize)
	a := bucketOf(t, pages, m, "a")
	top, err := pages.page(a.root)
	if err != nil || top.leaf {
		t.Fatalf("the bucket has one page: %v", err)
	}
	for i := range top.count {
		e := top.element(i).b[8:]
		was := slices.Clone(e)
		binary.NativeEndian.PutUint64(e, a.root)
		check.Is(t, pages.Check(m, false), ErrDamaged, "element %d leads back: Check =", i)
		for _, key := range [][]byte{nil, flipKey(0), flipKey(23), []byte("zzz")} {
			if _, _, err := a.Cursor().Seek(key); err != nil && !errors.Is(err, ErrDamaged) {
				t.Errorf("element %d leads back: Seek = %v", i, err)
			}
		}
		copy(e, was)
	}
}

// TestFreePageOfALeafIsRefused: a page that belongs to a leaf and is in the list of
// free pages would be overwritten.
func TestFreePageOfALeafIsRefused(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	fillForFlips(t, db)
	b, m := content(t, db)
	pages := New(b, testPageSize)
	list := must.Get(pages.extent(m.FreeList))(t)
	ids := list[headerSize : headerSize+8*int(binary.NativeEndian.Uint16(list[10:]))]
	tried := 0
	for id := uint64(firstPage); id < m.Pages; id++ {
		pg, err := pages.page(id)
		if err != nil || !pg.leaf || len(pg.b) == testPageSize {
			continue
		}
		for i := 0; i < len(ids); i += 8 { // the list stays in order
			was := binary.NativeEndian.Uint64(ids[i:])
			if i > 0 && binary.NativeEndian.Uint64(ids[i-8:]) > id || i+8 < len(ids) &&
				binary.NativeEndian.Uint64(ids[i+8:]) < id+2 {
				continue
			}
			tried++
			binary.NativeEndian.PutUint64(ids[i:], id+1)
			check.Is(t, pages.Check(m, false), ErrDamaged, "page %d belongs to page %d and is free: Check =", id+1, id)
			binary.NativeEndian.PutUint64(ids[i:], was)
		}
	}
	if tried == 0 {
		t.Error("no leaf has several pages, or none fits into the list")
	}
}

// TestRootBelowItsRootIsRefused: a bucket that begins with a page from the midst of
// it, one bit away, lacks the rest.
func TestRootBelowItsRootIsRefused(t *testing.T) {
	t.Parallel()
	db := newFile(t)
	tried := 0
	for round := 0; tried < 3 && round < 50; round++ {
		fillForFlips(t, db)
		b, m := content(t, db)
		pages := New(b, testPageSize)
		root := bucketOf(t, pages, m, "a").root
		var below []uint64
		var walk func(id uint64)
		walk = func(id uint64) {
			pg := must.Get(pages.page(id))(t)
			for i := range pg.count {
				if !pg.leaf {
					below = append(below, pg.element(i).child())
					walk(pg.element(i).child())
				}
			}
		}
		walk(root)
		place := bytes.Index(b[int64(m.Root)*testPageSize:],
			append([]byte("a"), binary.NativeEndian.AppendUint64(nil, root)...))
		if place < 0 {
			continue // the tree of buckets has several pages
		}
		place += int(m.Root)*testPageSize + 1
		for _, id := range below {
			if bits.OnesCount64(root^id) != 1 {
				continue
			}
			tried++
			binary.NativeEndian.PutUint64(b[place:], id)
			check.Is(t, pages.Check(m, false), ErrDamaged, "the bucket begins with page %d instead of %d: Check =", id,
				root)
			binary.NativeEndian.PutUint64(b[place:], root)
		}
	}
	if tried == 0 {
		t.Error("no page below is one bit away")
	}
}

// FuzzPages: whatever the bytes are, every call ends, with a record of the pages or
// with ErrDamaged.
func FuzzPages(f *testing.F) {
	db := newFile(f)
	fillForFlips(f, db)
	b, m := content(f, db)
	f.Add(b, m.Root, m.FreeList, flipKey(23))
	f.Add([]byte(nil), uint64(0), uint64(1)<<63, []byte(nil))
	f.Fuzz(func(t *testing.T, b []byte, root, freeList uint64, key []byte) {
		pages := New(b, testPageSize)
		m := Meta{PageSize: testPageSize, Root: root, FreeList: freeList, Pages: uint64(len(b) / testPageSize)}
		want := func(err error) {
			if err != nil && !errors.Is(err, ErrDamaged) {
				t.Errorf("%v", err)
			}
		}
		_, err := CheckFreeList(bytes.NewReader(b), m)
		want(err)
		checked := pages.Check(m, true)
		want(checked)
		bucket, found, err := pages.Buckets(root).Bucket([]byte("a"))
		want(err)
		if err != nil || !found {
			return
		}
		c := bucket.Cursor()
		want(c.VerifyLeaf(key, true))
		var before []byte
		k, _, err := c.Seek(key)
		for n := 0; k != nil && err == nil && n < 1_000; n++ {
			if checked == nil && bytes.Compare(k, before) <= 0 && n > 0 {
				t.Errorf("%x follows %x", k, before)
			}
			before = k
			k, _, err = c.Next()
		}
		want(err)
	})
}
