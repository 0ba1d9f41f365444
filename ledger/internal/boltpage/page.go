package boltpage

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// Pages is the pages of a bbolt file as one transaction sees them.
type Pages struct {
	data     []byte
	pageSize int
	check    func(id uint64, page []byte) error // nil for none
}

// New returns the pages in data, which is a file from its beginning to the end of
// the last page in use. They are read when they are asked for.
func New(data []byte, pageSize int) Pages { return Pages{data: data, pageSize: pageSize} }

// Checked returns the pages with a check that is called with each page before it is used. An error of
// it is damage.
func (p Pages) Checked(check func(id uint64, page []byte) error) Pages {
	p.check = check
	return p
}

// Count returns how many pages there are.
func (p Pages) Count() uint64 { return p.count() }

// Raw returns the bytes of one page, unchecked. The page must be there.
func (p Pages) Raw(id uint64) []byte {
	return p.data[id*uint64(p.pageSize) : (id+1)*uint64(p.pageSize)]
}

// Has reports whether a page belongs to a bucket, as far as its inner pages lead. It is for messages about
// damage: it checks nothing, and reads the header of every page.
func (b Bucket) Has(id uint64) bool {
	if b.root == 0 {
		return false
	}
	seen := newBits(b.pages.count())
	for below := []uint64{b.root}; len(below) > 0; {
		at := below[len(below)-1]
		below = below[:len(below)-1]
		if at == id {
			return true
		}
		if inFile(at, b.pages.count()) != nil || seen.has(at) {
			continue
		}
		seen.set(at)
		pg, err := b.pages.page(at)
		if err != nil {
			continue
		}
		if at < id && id < at+uint64(len(pg.b)/b.pages.pageSize) {
			return true
		}
		for i := 0; i < pg.count && !pg.leaf; i++ {
			below = append(below, pg.element(i).child())
		}
	}
	return false
}

// verify calls the check with some pages.
func (p Pages) verify(id, count uint64) error {
	if p.check == nil {
		return nil
	}
	for i := id; i < id+count; i++ {
		if err := p.check(i, p.Raw(i)); err != nil {
			return damaged("%w", err)
		}
	}
	return nil
}

// count is how many pages there are.
func (p Pages) count() uint64 { return uint64(len(p.data) / p.pageSize) }

// firstPage is the first page that is no meta page.
const firstPage = 2

// A page begins with its number (8 bytes), its kind and the number of its elements
// (2 each), and how many pages follow that belong to it (4).
//
// An element of a leaf is flags, position, size of the key and of the value (4 bytes
// each); one of an inner page is position and size of the key (4 each) and the page
// below (8). A position counts from the beginning of its element.
const (
	headerSize  = 16
	elementSize = 16

	kindBranch   = 0x01
	kindLeaf     = 0x02
	kindFreeList = 0x10

	flagBucket = 1 // of a leaf's element, whose value is then a bucket
)

// page is a page whose number, kind and count of elements fit.
type page struct {
	b     []byte // with the pages that follow and belong to it
	id    uint64 // 0 for a page inside a value
	count int
	leaf  bool
}

// extent returns a page with those that belong to it.
func (p Pages) extent(id uint64) ([]byte, error) {
	if err := inFile(id, p.count()); err != nil {
		return nil, err
	}
	// The first page says how many follow.
	if err := p.verify(id, 1); err != nil {
		return nil, err
	}
	b := p.data[id*uint64(p.pageSize):]
	pages, err := extent(b, id, p.count())
	if err != nil {
		return nil, err
	}
	if err := p.verify(id+1, pages-1); err != nil {
		return nil, err
	}
	return b[:pages*uint64(p.pageSize)], nil
}

// inFile refuses a reference to a page that is not there.
func inFile(id, count uint64) error {
	if id < firstPage || id >= count {
		return damaged("there is no page %d, but a reference to it", id)
	}
	return nil
}

// extent returns how many pages a page has, itself included, by its header. There
// are count pages in all.
func extent(header []byte, id, count uint64) (uint64, error) {
	if got := binary.NativeEndian.Uint64(header); got != id {
		return 0, damaged("page %d says that it is page %d", id, got)
	}
	pages := 1 + uint64(binary.NativeEndian.Uint32(header[12:]))
	if pages > count-id {
		return 0, damaged("page %d says that it has %d pages, and the file ends before", id, pages)
	}
	return pages, nil
}

// page returns a page of a tree.
func (p Pages) page(id uint64) (page, error) {
	b, err := p.extent(id)
	if err != nil {
		return page{}, err
	}
	return parse(b, id)
}

// parse checks the kind of a page, and its count of elements against its first one.
func parse(b []byte, id uint64) (page, error) {
	if len(b) < headerSize {
		return page{}, damaged("page %d is cut off", id)
	}
	pg := page{b: b, id: id, count: int(binary.NativeEndian.Uint16(b[10:]))}
	switch kind := binary.NativeEndian.Uint16(b[8:]); kind {
	case kindLeaf:
		pg.leaf = true
	case kindBranch:
	default:
		return page{}, damaged("page %d is of kind %#x, which is none of a tree", id, kind)
	}
	elements := headerSize + pg.count*elementSize
	switch {
	case pg.count == 0 && pg.leaf && !slices.ContainsFunc(b[headerSize:min(len(b), headerSize+elementSize)], isSet):
		// An empty bucket, because bbolt fills the rest of a page with zeros.
		return pg, nil
	case pg.count == 0 || elements > len(b):
		return page{}, damaged("page %d says that it has %d elements", id, pg.count)
	}
	if first := headerSize + pg.element(0).position(); first != uint64(elements) {
		return page{}, damaged("page %d says that it has %d elements, and its first key is at byte %d", id,
			pg.count, first)
	}
	return pg, nil
}

func isSet(b byte) bool { return b != 0 }

// element is an element of a page, not yet checked.
type element struct {
	b    []byte
	leaf bool
}

func (pg *page) element(i int) element {
	at := headerSize + i*elementSize
	return element{pg.b[at : at+elementSize], pg.leaf}
}

func (e element) word(at int) uint64 { return uint64(binary.NativeEndian.Uint32(e.b[at:])) }

func (e element) position() uint64 {
	if e.leaf {
		return e.word(4)
	}
	return e.word(0)
}

func (e element) keySize() uint64 {
	if e.leaf {
		return e.word(8)
	}
	return e.word(4)
}

func (e element) valueSize() uint64 {
	if e.leaf {
		return e.word(12)
	}
	return 0
}

func (e element) flags() uint64 { return e.word(0) }                           // of a leaf's
func (e element) child() uint64 { return binary.NativeEndian.Uint64(e.b[8:]) } // of an inner page's

// record returns the key and value of an element.
func (pg *page) record(i int) (key, value []byte, err error) {
	e := pg.element(i)
	begin := uint64(headerSize+i*elementSize) + e.position()
	middle := begin + e.keySize()
	end := middle + e.valueSize()
	if begin == middle || end > uint64(len(pg.b)) {
		return nil, nil, damaged("page %d: element %d has a key at bytes %d to %d and ends at %d", pg.id, i, begin,
			middle, end)
	}
	return pg.b[begin:middle:middle], pg.b[middle:end:end], nil
}

// key returns the key of an element.
func (pg *page) key(i int) ([]byte, error) {
	at := headerSize + i*elementSize
	e := pg.b[at : at+elementSize]
	if pg.leaf {
		e = e[4:]
	}
	begin := uint64(at) + uint64(binary.NativeEndian.Uint32(e))
	end := begin + uint64(binary.NativeEndian.Uint32(e[4:]))
	if begin == end || end > uint64(len(pg.b)) {
		return nil, damaged("page %d: element %d has a key at bytes %d to %d", pg.id, i, begin, end)
	}
	return pg.b[begin:end:end], nil
}

// search returns the first element whose key is not below key, and whether it has
// that key.
func (pg *page) search(key []byte) (index int, exact bool, err error) {
	low, high := 0, pg.count
	for low < high {
		middle := (low + high) / 2
		k, err := pg.key(middle)
		if err != nil {
			return 0, false, err
		}
		switch bytes.Compare(k, key) {
		case 0:
			return middle, true, nil
		case -1:
			low = middle + 1
		default:
			high = middle
		}
	}
	return low, false, nil
}

// bounds is where the keys of a page lie: not below low, and below high. Nil is no
// bound.
type bounds struct{ low, high []byte }

// below narrows bounds to those of the page below an element.
func (in bounds) below(pg *page, i int) (bounds, error) {
	low, err := pg.key(i)
	if err != nil {
		return in, err
	}
	if in.low == nil || bytes.Compare(low, in.low) > 0 {
		in.low = low
	}
	if i+1 == pg.count {
		return in, nil
	}
	high, err := pg.key(i + 1)
	if err == nil && (in.high == nil || bytes.Compare(high, in.high) < 0) {
		in.high = high
	}
	return in, err
}

// within checks that a page below another has keys, and that they are where its
// parents say.
func (pg *page) within(in bounds) error {
	if pg.count == 0 {
		return damaged("page %d has no elements", pg.id)
	}
	first, err := pg.key(0)
	if err != nil {
		return err
	}
	last, err := pg.key(pg.count - 1)
	if err != nil {
		return err
	}
	if in.low != nil && bytes.Compare(first, in.low) < 0 || in.high != nil && bytes.Compare(last, in.high) >= 0 {
		return damaged("page %d has keys from %x to %x, and should have them from %x to below %x", pg.id, first, last,
			in.low, in.high)
	}
	return nil
}

// verify checks the layout of a page: its keys ascend, each key and value directly follows the previous one, and the
// last one ends where the page does. The page takes a multiple of pageSize bytes, or any number for 0.
func (pg *page) verify(pageSize int) error {
	next := headerSize + pg.count*elementSize
	var before []byte
	for i := range pg.count {
		key, value, err := pg.record(i)
		if err != nil {
			return err
		}
		e := pg.element(i)
		if at := uint64(headerSize+i*elementSize) + e.position(); at != uint64(next) {
			return damaged("page %d: the key of element %d is at byte %d, and should be at %d", pg.id, i, at, next)
		}
		next += len(key) + len(value)
		if i > 0 && bytes.Compare(key, before) <= 0 {
			return damaged("page %d: element %d has key %x, behind %x", pg.id, i, key, before)
		}
		if pg.leaf && e.flags()&^flagBucket != 0 {
			return damaged("page %d: element %d has flags %#x", pg.id, i, e.flags())
		}
		before = key
	}
	size := next
	if pageSize != 0 {
		size = (next + pageSize - 1) / pageSize * pageSize
	}
	if size != len(pg.b) {
		return damaged("page %d ends at its byte %d, and should take %d", pg.id, next, len(pg.b))
	}
	return nil
}
