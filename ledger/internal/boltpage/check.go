package boltpage

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"slices"
)

// Check reads every inner page of a file, the tree of buckets, and the list of free
// pages. It finds a page that has two places, or a place and is free, which no single
// path shows. Otherwise a reader could get an old copy of a page, and a writer
// overwrite one that is in use.
//
// Of the leaves it reads the first and those right before free pages, or all of them
// with leaves. It takes three bits of memory for each page of the file.
func (p Pages) Check(m Meta, leaves bool) error {
	if p.count() < firstPage {
		return damaged("it has %d pages", p.count())
	}
	c := checker{
		pages: p, readLeaves: leaves,
		used: newBits(p.count()), unread: newBits(p.count()), free: newBits(p.count()),
	}
	c.used.set(0)
	c.used.set(1)
	if err := c.freeList(m.FreeList); err != nil {
		return err
	}
	if err := c.buckets(m.Root); err != nil {
		return err
	}
	if err := c.aboveRoots(); err != nil {
		return err
	}
	return c.beforeFree()
}

type checker struct {
	pages      Pages
	readLeaves bool
	used       bitset // pages that have a place, and those that belong to them as far as they were read
	unread     bitset // leaves that were not read
	free       bitset
	roots      []uint64 // of the buckets that have pages of their own
}

// use notes a page and those that belong to it.
func (c *checker) use(id uint64, pages int) error {
	for i := id; i < id+uint64(pages); i++ {
		if err := inFile(i, c.pages.count()); err != nil {
			return err
		}
		if c.used.has(i) {
			return damaged("page %d is in two places", i)
		}
		if c.free.has(i) {
			return damaged("page %d is in use, and in the list of free pages", i)
		}
		c.used.set(i)
	}
	return nil
}

// CheckFreeList reads the beginning of the list of free pages and returns how many
// bytes the list takes in the file. It comes before bbolt opens the file,
// because bbolt allocates as much memory as the length says. It fails with ErrDamaged or the
// reader's error.
func CheckFreeList(file io.ReaderAt, m Meta) (size int64, err error) {
	if err := inFile(m.FreeList, m.Pages); err != nil {
		return 0, err
	}
	b := make([]byte, headerSize+8)
	if _, err := file.ReadAt(b, int64(m.FreeList)*m.PageSize); err != nil {
		return 0, fmt.Errorf("read the list of free pages: %w", err)
	}
	pages, err := extent(b, m.FreeList, m.Pages)
	if err != nil {
		return 0, err
	}
	_, _, err = freeCount(b, m.FreeList, pages*uint64(m.PageSize))
	return int64(pages) * m.PageSize, err
}

// freeCount returns how many ids a list of free pages has, and where they begin. The
// list takes size bytes, of which b has the first.
func freeCount(b []byte, id, size uint64) (count, begin uint64, err error) {
	if kind := binary.NativeEndian.Uint16(b[8:]); kind != kindFreeList {
		return 0, 0, damaged("page %d is of kind %#x, and should be the list of free pages", id, kind)
	}
	count, begin = uint64(binary.NativeEndian.Uint16(b[10:])), headerSize
	if count == 0xFFFF { // then the first word has it
		count, begin = binary.NativeEndian.Uint64(b[headerSize:]), headerSize+8
	}
	if count > (size-begin)/8 {
		return 0, 0, damaged("page %d says that it lists %d free pages, for which it has no room", id, count)
	}
	return count, begin, nil
}

func (c *checker) freeList(id uint64) error {
	b, err := c.pages.extent(id)
	if err != nil {
		return err
	}
	count, begin, err := freeCount(b, id, uint64(len(b)))
	if err != nil {
		return err
	}
	before := uint64(firstPage - 1)
	for ids := b[begin : begin+8*count]; len(ids) > 0; ids = ids[8:] {
		free := binary.NativeEndian.Uint64(ids)
		if free <= before || free >= c.pages.count() {
			return damaged("page %d lists page %d as free, behind %d of %d", id, free, before, c.pages.count())
		}
		c.free.set(free)
		before = free
	}
	return c.use(id, len(b)/c.pages.pageSize)
}

// Live returns a bit for each page that is in use after the transaction of m, the list of free pages
// included and the meta pages not: those that are not in the list.
func (p Pages) Live(m Meta) ([]uint64, error) {
	if m.Pages <= firstPage || m.Pages > p.count() {
		return nil, damaged("the meta page at %d says that there are %d pages, and there are %d", m.Offset, m.Pages,
			p.count())
	}
	c := checker{pages: p, used: newBits(p.count()), free: newBits(p.count())}
	if err := c.freeList(m.FreeList); err != nil {
		return nil, err
	}
	live := newBits(m.Pages)
	for i := range live {
		live[i] = ^c.free[i]
	}
	live[0] &^= 1<<firstPage - 1
	live[len(live)-1] &= ^uint64(0) >> (-m.Pages % 64)
	return live, nil
}

// MetaBefore returns the meta page of the transaction before that of m.
func (p Pages) MetaBefore(m Meta) (Meta, error) {
	offset := m.PageSize - m.Offset // of two pages, the other one
	if int64(len(p.data)) < offset+headerSize+metaSize {
		return Meta{}, damaged("it has no second meta page")
	}
	before, _, valid := parseMeta(p.data[offset+headerSize:])
	if !valid {
		return Meta{}, damaged("the meta page at %d is invalid", offset)
	}
	before.Offset = offset
	return before, nil
}

// buckets walks through the tree of buckets and through each of them.
func (c *checker) buckets(root uint64) error {
	return c.tree(Bucket{pages: c.pages, root: root}, true, func(pg *page) error {
		for i := range pg.count {
			b, err := c.pages.bucket(pg, i)
			if err != nil {
				return err
			}
			if err := c.tree(b, c.readLeaves, records); err != nil {
				return err
			}
			if b.root != 0 {
				c.roots = append(c.roots, b.root)
			}
		}
		return nil
	})
}

// aboveRoots looks for the page that a bucket should begin with, where a bit has
// flipped in its number and leads to one of the pages below it. Then all the others
// are missing, and nothing else shows that, because pages without a place could
// belong to any leaf that was not read.
func (c *checker) aboveRoots() error {
	for _, root := range c.roots {
		pg, err := c.pages.page(root)
		if err != nil {
			return err
		}
		if pg.count == 0 {
			continue
		}
		first, err := pg.key(0)
		if err != nil {
			return err
		}
		for bit := range 64 {
			id := root ^ 1<<bit
			if id < firstPage || id >= c.pages.count() || c.used.has(id) || c.free.has(id) {
				continue
			}
			above := Bucket{pages: c.pages, root: id}.Cursor()
			_ = above.place(first) // an error is no news: such a page is part of a leaf
			if above.passes(root) {
				return damaged("a bucket begins with page %d, which belongs below page %d", root, id)
			}
		}
	}
	return nil
}

// passes reports whether the way of a cursor leads through a page.
func (c *Cursor) passes(id uint64) bool {
	return slices.ContainsFunc(c.levels, func(l level) bool { return l.page.id == id })
}

// records refuses a leaf of a bucket that has a bucket.
func records(pg *page) error {
	for i := range pg.count {
		if pg.element(i).flags() != 0 {
			return damaged("page %d: element %d is no record", pg.id, i)
		}
	}
	return nil
}

// tree walks through the inner pages of a bucket, and with leaves visits the leaves,
// too. A leaf that is the only page is always visited.
func (c *checker) tree(b Bucket, leaves bool, visit func(leaf *page) error) error {
	top, err := b.top()
	if err != nil {
		return err
	}
	if b.root == 0 {
		if err := top.verify(0); err != nil {
			return err
		}
		return visit(&top)
	}
	depth, err := c.depth(top, false)
	if err != nil {
		return err
	}
	right, err := c.depth(top, true)
	if err == nil && right != depth {
		err = damaged("the leaves below page %d are %d pages away on one side, and %d on the other", b.root,
			depth, right)
	}
	if err != nil {
		return err
	}
	return c.subtree(b.root, bounds{}, depth, leaves, visit)
}

// depth returns how far below a page its first leaf is, or its last. All others are
// as far: so inner pages are told from leaves without reading these. A damaged
// number on one of the two ways does not change the other.
func (c *checker) depth(pg page, last bool) (n int, err error) {
	for ; !pg.leaf; n++ {
		if n == maxLevels {
			return 0, damaged("page %d leads back to itself", pg.id)
		}
		i := 0
		if last {
			i = pg.count - 1
		}
		if pg, err = c.pages.page(pg.element(i).child()); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// subtree walks through a page and the inner pages below it; depth is how far its
// leaves are.
func (c *checker) subtree(id uint64, in bounds, depth int, leaves bool, visit func(leaf *page) error) error {
	pg, err := c.pages.page(id)
	if err != nil {
		return err
	}
	if pg.leaf != (depth == 0) {
		return damaged("page %d is not as far from its leaves as its neighbours", id)
	}
	if err := c.use(id, len(pg.b)/c.pages.pageSize); err != nil {
		return err
	}
	if err := pg.verify(c.pages.pageSize); err != nil {
		return err
	}
	if in.low != nil || in.high != nil {
		if err := pg.within(in); err != nil {
			return err
		}
	}
	if pg.leaf {
		return visit(&pg)
	}
	for i := range pg.count {
		out, err := in.below(&pg, i)
		if err != nil {
			return err
		}
		below := pg.element(i).child()
		if depth > 1 || leaves {
			err = c.subtree(below, out, depth-1, leaves, visit)
		} else if err = c.use(below, 1); err == nil {
			c.unread.set(below)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// beforeFree reads the leaves right before free pages: these must not be part of
// them.
func (c *checker) beforeFree() error {
	for id := uint64(firstPage); id < c.pages.count(); id++ {
		if !c.free.has(id) || c.free.has(id-1) {
			continue
		}
		before := c.used.before(id)
		if !c.unread.has(before) {
			continue
		}
		pg, err := c.pages.page(before)
		if err == nil {
			err = pg.verify(c.pages.pageSize)
		}
		if err != nil {
			return err
		}
		if before+uint64(len(pg.b)/c.pages.pageSize) > id {
			return damaged("page %d is part of page %d, and in the list of free pages", id, before)
		}
	}
	return nil
}

// bitset has a bit for each page.
type bitset []uint64

func newBits(n uint64) bitset { return make(bitset, (n+63)/64) }

func (b bitset) set(i uint64)      { b[i/64] |= 1 << (i % 64) }
func (b bitset) has(i uint64) bool { return b[i/64]&(1<<(i%64)) != 0 }

// before returns the last bit that is set before i. There must be one.
func (b bitset) before(i uint64) uint64 {
	word := i / 64
	rest := b[word] & (1<<(i%64) - 1)
	for rest == 0 {
		word--
		rest = b[word]
	}
	return 64*word + 63 - uint64(bits.LeadingZeros64(rest))
}
