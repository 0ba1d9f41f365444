package boltpage

import (
	"bytes"
	"encoding/binary"
)

// bucketHeader is what a bucket's value begins with, in bytes: its root page and a
// number that is not used here. A small bucket has no root page; then its only page
// follows.
const bucketHeader = 16

// Bucket is a tree of records.
type Bucket struct {
	pages Pages
	root  uint64
	small page // the only page, when root is 0
}

// Buckets returns the tree whose records are buckets, of the root page that a
// transaction names.
func (p Pages) Buckets(root uint64) Bucket { return Bucket{pages: p, root: root} }

// Bucket returns the bucket with a name in a tree of buckets, and whether there is
// one.
func (b Bucket) Bucket(name []byte) (bucket Bucket, found bool, err error) {
	c := Cursor{bucket: b}
	key, _, err := c.seek(name)
	if err != nil || key == nil || !bytes.Equal(key, name) {
		return Bucket{}, false, err
	}
	leaf := &c.levels[len(c.levels)-1]
	bucket, err = b.pages.bucket(&leaf.page, leaf.index)
	return bucket, err == nil, err
}

// bucket returns the bucket in an element of a leaf.
func (p Pages) bucket(pg *page, i int) (Bucket, error) {
	name, value, err := pg.record(i)
	switch {
	case err != nil:
		return Bucket{}, err
	case pg.element(i).flags() != flagBucket || len(value) < bucketHeader:
		return Bucket{}, damaged("page %d: %x is no bucket", pg.id, name)
	}
	b := Bucket{pages: p, root: binary.NativeEndian.Uint64(value)}
	if b.root != 0 {
		return b, nil
	}
	if b.small, err = parse(value[bucketHeader:], 0); err != nil {
		return Bucket{}, err
	}
	if !b.small.leaf || binary.NativeEndian.Uint64(b.small.b) != 0 || binary.NativeEndian.Uint32(b.small.b[12:]) != 0 {
		return Bucket{}, damaged("page %d: the page in bucket %x has a number or a size of its own", pg.id, name)
	}
	if b.small.count == 0 && len(b.small.b) != headerSize {
		return Bucket{}, damaged("page %d: the page in bucket %x says that it is empty", pg.id, name)
	}
	return b, nil
}

// top returns the first page of the tree.
func (b Bucket) top() (page, error) {
	if b.root == 0 && b.small.b != nil {
		return b.small, nil
	}
	return b.pages.page(b.root)
}

// Cursor walks through the records of a bucket in the order of their keys. After an
// error, or before its first Seek, it must not be moved.
type Cursor struct {
	bucket Bucket
	levels []level  // from the first page to a leaf
	few    [4]level // for most of them, so that they take no memory of their own
	beside []level  // memory for Before
	// verified is what VerifyLeaf has checked last; path is how it came there, and touched the bytes of all such pages.
	verified bounds
	path     []uint64
	touched  int64
}

// level is a page on the way to a record, and the element that the way takes. In a leaf the element is the record, or
// the count of records for the position after the last.
type level struct {
	page  page
	index int
}

// maxLevels is more than the tree of any file has, because almost every page below the root has at least two elements.
const maxLevels = 64

// Cursor returns a cursor over the bucket's records.
func (b Bucket) Cursor() *Cursor { return &Cursor{bucket: b} }

// Seek moves to the first record whose key is not below key and returns it, or nil
// when there is none. What it returns is part of the pages.
func (c *Cursor) Seek(key []byte) (k, value []byte, err error) { return c.plain(c.seek(key)) }

// Next moves to the next record and returns it, or nil after the last one.
func (c *Cursor) Next() (key, value []byte, err error) { return c.plain(c.next()) }

// Before returns the record before the one where the cursor stands, or nil at the
// first. The cursor stays.
func (c *Cursor) Before() (key, value []byte, err error) {
	if leaf := &c.levels[len(c.levels)-1]; leaf.index > 0 {
		leaf.index--
		defer func() { leaf.index++ }()
		return c.plain(c.current())
	}
	before := Cursor{bucket: c.bucket, levels: append(c.beside[:0], c.levels...)}
	c.beside = before.levels
	return before.plain(before.prev())
}

// plain refuses a bucket where a record should be.
func (c *Cursor) plain(key, value []byte, err error) ([]byte, []byte, error) {
	if err != nil || key == nil {
		return nil, nil, err
	}
	if l := &c.levels[len(c.levels)-1]; l.page.element(l.index).flags() != 0 {
		return nil, nil, damaged("page %d: element %d is no record", l.page.id, l.index)
	}
	return key, value, nil
}

func (c *Cursor) seek(key []byte) ([]byte, []byte, error) {
	if err := c.place(key); err != nil {
		return nil, nil, err
	}
	leaf := &c.levels[len(c.levels)-1]
	if leaf.index == leaf.page.count {
		return c.next()
	}
	if leaf.index == 0 {
		if err := c.checkLeaf(); err != nil {
			return nil, nil, err
		}
	}
	return c.current()
}

// checkLeaf checks that the leaf is where its keys belong. A record in the midst of a
// leaf needs no such proof, because the two around a key that is missing are enough.
// At the edges the inner pages say what comes next.
func (c *Cursor) checkLeaf() error {
	if len(c.levels) == 1 {
		return nil
	}
	in, err := c.bounds()
	if err != nil {
		return err
	}
	return c.levels[len(c.levels)-1].page.within(in)
}

// bounds returns the bounds of the leaf, as the pages above it give them.
func (c *Cursor) bounds() (in bounds, err error) {
	for i := range len(c.levels) - 1 {
		if in, err = in.below(&c.levels[i].page, c.levels[i].index); err != nil {
			break
		}
	}
	return in, err
}

// place moves to where key is or would be in its leaf.
func (c *Cursor) place(key []byte) error {
	if err := c.restart(); err != nil {
		return err
	}
	for {
		l := &c.levels[len(c.levels)-1]
		index, exact, err := l.page.search(key)
		if err != nil {
			return err
		}
		if l.page.leaf {
			l.index = index
			return nil
		}
		if !exact && index > 0 {
			index-- // the page with the key begins at or below it
		}
		l.index = index
		if err := c.descend(); err != nil {
			return err
		}
	}
}

func (c *Cursor) restart() error {
	top, err := c.bucket.top()
	if c.levels == nil {
		c.levels = c.few[:0]
	}
	c.levels = append(c.levels[:0], level{page: top}) // a deep tree has outgrown few, and keeps what it took
	return err
}

// descend adds the page below the last level.
func (c *Cursor) descend() error {
	l := &c.levels[len(c.levels)-1]
	pg, err := c.bucket.pages.page(l.page.element(l.index).child())
	if err != nil {
		return err
	}
	if len(c.levels) == maxLevels {
		return damaged("page %d leads back to itself", pg.id)
	}
	c.levels = append(c.levels, level{page: pg})
	return nil
}

func (c *Cursor) current() ([]byte, []byte, error) {
	l := &c.levels[len(c.levels)-1]
	return l.page.record(l.index)
}

func (c *Cursor) next() ([]byte, []byte, error) {
	leaf := &c.levels[len(c.levels)-1]
	if leaf.index < leaf.page.count-1 {
		leaf.index++
		return c.current()
	}
	if err := c.checkLeaf(); err != nil {
		return nil, nil, err
	}
	for n := len(c.levels) - 2; n >= 0; n-- {
		if l := &c.levels[n]; l.index < l.page.count-1 {
			l.index++
			c.levels = c.levels[:n+1]
			return c.edge(false)
		}
	}
	leaf.index = leaf.page.count
	return nil, nil, nil
}

func (c *Cursor) prev() ([]byte, []byte, error) {
	if err := c.checkLeaf(); err != nil {
		return nil, nil, err
	}
	for n := len(c.levels) - 1; n >= 0; n-- {
		if l := &c.levels[n]; l.index > 0 {
			l.index--
			c.levels = c.levels[:n+1]
			return c.edge(true)
		}
	}
	return nil, nil, nil
}

// edge moves from an element of the last level to the first or last record below
// it.
func (c *Cursor) edge(last bool) ([]byte, []byte, error) {
	for {
		if c.levels[len(c.levels)-1].page.leaf {
			if err := c.checkLeaf(); err != nil {
				return nil, nil, err
			}
			return c.current()
		}
		if err := c.descend(); err != nil {
			return nil, nil, err
		}
		if l := &c.levels[len(c.levels)-1]; last {
			l.index = l.page.count - 1
		}
	}
}

// VerifyLeaf checks every element of the leaf that has key or would have it, and with
// beside also of those on both sides of it below the same page: of all pages that
// bbolt reads to change a record, and to remove one.
func (c *Cursor) VerifyLeaf(key []byte, beside bool) error {
	if err := c.place(key); err != nil {
		return err
	}
	before := c.touch()
	c.verified = bounds{}
	leaf := &c.levels[len(c.levels)-1]
	if c.bucket.root == 0 {
		return leaf.page.verify(0)
	}
	err := leaf.page.verify(c.bucket.pages.pageSize)
	if err != nil || len(c.levels) == 1 {
		return err
	}
	if c.verified, err = c.bounds(); err != nil {
		return err
	}
	if err := leaf.page.within(c.verified); err != nil || !beside {
		return err
	}
	parent := &c.levels[len(c.levels)-2]
	for _, i := range []int{parent.index - 1, parent.index + 1} {
		if i < 0 || i >= parent.page.count {
			continue
		}
		pg, err := c.bucket.pages.page(parent.page.element(i).child())
		if err == nil {
			err = pg.verify(c.bucket.pages.pageSize)
		}
		if err != nil {
			return err
		}
		// bbolt merges a leaf with the one on its left, or with the next one if it is the first.
		if i < parent.index && pg.id != before || i > parent.index && parent.index == 0 {
			c.touched += int64(len(pg.b))
		}
	}
	return nil
}

// touch counts the pages of the path that were not on the one before, of which it returns the leaf.
func (c *Cursor) touch() (before uint64) {
	if len(c.path) > 0 {
		before = c.path[len(c.path)-1]
	}
	for i := range c.levels {
		if pg := &c.levels[i].page; i == len(c.path) {
			c.path = append(c.path, pg.id)
			c.touched += int64(len(pg.b))
		} else if c.path[i] != pg.id {
			c.path[i] = pg.id
			c.touched += int64(len(pg.b))
		}
	}
	return before
}

// Touched returns how many bytes the pages have that bbolt replaces to put or remove records with the keys that
// VerifyLeaf was given, which must ascend. A page that bbolt may merge with may count twice.
func (c *Cursor) Touched() int64 { return c.touched }

// Covers reports whether key is or would be in the leaf that VerifyLeaf has checked
// last, as far as the inner pages say so. In doubt it does not, because a leaf that was not
// checked must not be changed.
func (c *Cursor) Covers(key []byte) bool {
	in := c.verified
	return (in.low == nil || bytes.Compare(in.low, key) <= 0) && (in.high == nil || bytes.Compare(key, in.high) < 0)
}
