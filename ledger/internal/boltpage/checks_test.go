package boltpage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// layered makes a file with a bucket of several levels, a list of free pages, and a
// bucket within the page of its parent. It returns the pages, the first inner page of
// the large bucket, and the leaf on its left.
func layered(t *testing.T) (pages Pages, m Meta, inner, leaf page) {
	t.Helper()
	db := newFile(t)
	update(t, db, func(tx *bbolt.Tx) error {
		large, err := tx.CreateBucket([]byte("large"))
		for i := 0; err == nil && i < 200; i++ {
			err = large.Put(fmt.Appendf(nil, "%060d", i), bytes.Repeat([]byte("v"), 40))
		}
		if err != nil {
			return err
		}
		small, err := tx.CreateBucket([]byte("small"))
		if err != nil {
			return err
		}
		return small.Put([]byte("k"), []byte("v"))
	})
	update(t, db, func(tx *bbolt.Tx) error { // which leaves pages free
		large := tx.Bucket([]byte("large"))
		for i := 50; i < 60; i++ {
			if err := large.Put(fmt.Appendf(nil, "%060d", i), bytes.Repeat([]byte("w"), 40)); err != nil {
				return err
			}
		}
		return nil
	})
	b, m := content(t, db)
	pages = New(b, testPageSize)
	must.Do(t, pages.Check(m, true), "the file as it is")
	at := bucketOf(t, pages, m, "large").root
	for {
		pg := must.Get(pages.page(at))(t)
		if pg.leaf {
			return pages, m, inner, pg
		}
		inner, at = pg, pg.element(0).child()
	}
}

// TestEachCheckNamesItsDamage changes one field at a time, as damage might. What is
// wrong is told, and where: an operator restores a backup for it.
func TestEachCheckNamesItsDamage(t *testing.T) {
	t.Parallel()
	pages, m, inner, leaf := layered(t)
	list := must.Get(pages.extent(m.FreeList))(t)
	root := must.Get(pages.extent(m.Root))(t)
	count := int(binary.NativeEndian.Uint16(list[10:]))
	if count < 2 || inner.count < 3 || leaf.count < 3 {
		t.Fatalf("%d free pages, %d and %d elements: the file has too little", count, inner.count, leaf.count)
	}
	u16, u32, u64 := binary.NativeEndian.PutUint16, binary.NativeEndian.PutUint32, binary.NativeEndian.PutUint64
	element := func(b []byte, i int) []byte { return b[headerSize+i*elementSize:] }
	for _, test := range []struct {
		name, want string
		page       []byte
		change     func(b []byte)
	}{
		{"kind of the list", "should be the list of free pages", list, func(b []byte) { u16(b[8:], kindLeaf) }},
		{"length of the list", "for which it has no room", list, func(b []byte) { u16(b[10:], 0xFFFE) }},
		{"length in the first word", "for which it has no room", list,
			func(b []byte) { u16(b[10:], 0xFFFF); u64(b[headerSize:], 1<<40) }},
		{"order of the list", "as free, behind", list,
			func(b []byte) { u64(b[headerSize+8:], binary.NativeEndian.Uint64(b[headerSize:])) }},
		{"free page behind the end", "as free, behind", list,
			func(b []byte) { u64(b[headerSize+8*(count-1):], m.Pages) }},
		{"meta page as free", "as free, behind", list, func(b []byte) { u64(b[headerSize:], 1) }},
		{"page in use as free", "in the list of free pages", list,
			func(b []byte) { u64(b[headerSize:], inner.id); u16(b[10:], 1) }},
		{"number of the list", "says that it is page", list, func(b []byte) { u64(b, m.FreeList+1) }},
		{"number of an inner page", "says that it is page", inner.b, func(b []byte) { u64(b, inner.id+1) }},
		{"size of an inner page", "and the file ends before", inner.b, func(b []byte) { u32(b[12:], 1<<20) }},
		{"kind of an inner page", "which is none of a tree", inner.b, func(b []byte) { u16(b[8:], kindFreeList) }},
		{"no elements", "says that it has 0 elements", inner.b, func(b []byte) { u16(b[10:], 0) }},
		{"too many elements", "elements", inner.b, func(b []byte) { u16(b[10:], 1000) }},
		{"fewer elements", "its first key is at byte", inner.b, func(b []byte) { u16(b[10:], uint16(inner.count-1)) }},
		{"place of a key", "", inner.b, func(b []byte) { u32(element(b, 1), 1<<20) }},
		{"size of a key", "", inner.b, func(b []byte) { u32(element(b, 1)[4:], 0) }},
		{"page below twice", "is in two places", inner.b, func(b []byte) {
			copy(element(b, 1)[8:16], element(b, 0)[8:16])
		}},
		{"page below that is not there", "there is no page", inner.b,
			func(b []byte) { u64(element(b, 1)[8:], m.Pages) }},
		{"flags of a record", "flags", leaf.b, func(b []byte) { u32(element(b, 1), 8) }},
		{"a record as a bucket", "is no record", leaf.b, func(b []byte) { u32(element(b, 1), flagBucket) }},
		{"order of keys", "behind", leaf.b, func(b []byte) {
			first, second := headerSize+int(keyOffset(b, 0)), headerSize+elementSize+int(keyOffset(b, 1))
			copy(b[second:second+60], b[first:first+60])
		}},
		{"end of a value", "", leaf.b, func(b []byte) { u32(element(b, leaf.count-1)[12:], 1<<20) }},
		{"a bucket as a record", "is no bucket", root, func(b []byte) { u32(element(b, 0), 0) }},
		{"root of a bucket", "there is no page", root, func(b []byte) {
			at := headerSize + int(keyOffset(b, 0)) + len("large")
			u64(b[at:], 1<<40)
		}},
	} {
		was := bytes.Clone(test.page)
		test.change(test.page)
		if err := pages.Check(m, true); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
		copy(test.page, was)
	}
	must.Do(t, pages.Check(m, true), "as it was")
}

// keyOffset returns how far behind an element of a leaf its key lies.
func keyOffset(b []byte, i int) uint32 {
	return binary.NativeEndian.Uint32(b[headerSize+i*elementSize+4:])
}

// TestFreeListIsCheckedBeforeBbolt: bbolt makes room for as many ids as the list says.
func TestFreeListIsCheckedBeforeBbolt(t *testing.T) {
	t.Parallel()
	pages, m, _, _ := layered(t)
	list := must.Get(pages.extent(m.FreeList))(t)
	check := func() (int64, error) { return CheckFreeList(bytes.NewReader(pages.data), m) }
	if size, err := check(); err != nil || size != int64(len(list)) {
		t.Errorf("the list takes %d bytes, %v, want %d", size, err, len(list))
	}
	was := bytes.Clone(list)
	for name, change := range map[string]func(){
		"kind":   func() { binary.NativeEndian.PutUint16(list[8:], kindBranch) },
		"number": func() { binary.NativeEndian.PutUint64(list, 2) },
		"pages":  func() { binary.NativeEndian.PutUint32(list[12:], 1<<30) },
		"ids":    func() { binary.NativeEndian.PutUint16(list[10:], 0xFFFE) },
		"ids in the first word": func() {
			binary.NativeEndian.PutUint16(list[10:], 0xFFFF)
			binary.NativeEndian.PutUint64(list[headerSize:], 1<<60)
		},
	} {
		change()
		if size, err := check(); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %d bytes, %v", name, size, err)
		}
		copy(list, was)
	}
	if _, err := CheckFreeList(bytes.NewReader(pages.data[:int(m.FreeList)*testPageSize]), m); err == nil ||
		errors.Is(err, ErrDamaged) {
		t.Errorf("a file that is cut off: %v", err)
	}
	m.FreeList = m.Pages
	if _, err := check(); !errors.Is(err, ErrDamaged) {
		t.Errorf("a list behind the end: %v", err)
	}
}

// TestTouched: with keys that ascend, each page of the tree counts once.
func TestTouched(t *testing.T) {
	t.Parallel()
	pages, m, _, _ := layered(t)
	bucket := bucketOf(t, pages, m, "large")
	walk, cursor, want := bucket.Cursor(), bucket.Cursor(), int64(0)
	for id := range pages.Count() {
		if bucket.Has(id) {
			want += testPageSize
		}
	}
	key, _, err := walk.Seek(nil)
	for ; key != nil && err == nil; key, _, err = walk.Next() {
		must.Do(t, cursor.VerifyLeaf(key, false))
	}
	if err != nil || cursor.Touched() != want || want < 10*testPageSize {
		t.Errorf("%d bytes of pages are touched, want %d, %v", cursor.Touched(), want, err)
	}
}

// TestVerifyLeaf: what bbolt reads to change a record is checked whole, with the
// leaves beside it only where a record goes away; and Covers knows how far that goes.
func TestVerifyLeaf(t *testing.T) {
	t.Parallel()
	pages, m, inner, leaf := layered(t)
	cursor := bucketOf(t, pages, m, "large").Cursor()
	first := must.Get(leaf.key(0))(t)
	next := must.Get(inner.key(1))(t)
	must.Do(t, cursor.VerifyLeaf(first, true))
	for key, want := range map[string]bool{
		string(first): true, string(first) + "x": true, string(next): false, string(next[:10]): false, "z": false,
	} {
		check.Equal(t, cursor.Covers([]byte(key)), want, "Covers(%q) = %v", key)
	}
	beside := must.Get(pages.page(inner.element(1).child()))(t)
	was := bytes.Clone(beside.b)
	binary.NativeEndian.PutUint32(beside.b[headerSize+elementSize:], 8) // flags
	must.Do(t, cursor.VerifyLeaf(first, false), "the leaf beside it is damaged, and not read")
	check.Is(t, cursor.VerifyLeaf(first, true), ErrDamaged, "the leaf beside it is damaged, and read")
	copy(beside.b, was)
	// A leaf whose keys lie beyond what its parent says belongs elsewhere.
	was = bytes.Clone(inner.b)
	at := headerSize + elementSize + int(binary.NativeEndian.Uint32(inner.b[headerSize+elementSize:]))
	second := must.Get(leaf.key(1))(t)
	copy(inner.b[at:], second)
	check.Is(t, cursor.VerifyLeaf(first, false), ErrDamaged, "keys that belong to the next leaf")
	copy(inner.b, was)
	small := bucketOf(t, pages, m, "small").Cursor()
	must.Do(t, small.VerifyLeaf([]byte("k"), true), "a bucket within its parent's page")
}
