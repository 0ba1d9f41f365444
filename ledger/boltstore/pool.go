package boltstore

// hugePage is the size of a pool's pages, in bytes: that of a huge page of most processors.
const hugePage = 2 << 20

// pool is the memory of a store's overlays, which take it in turns: the changes that come while a flush is running
// have the memory of those that the flush before has written. It lies outside of Go's heap, in huge pages
// where the system has them. In the heap the first use of each 4 KiB is a fault, which takes 17 µs on some virtual
// machines, and the collector lets the heap grow to twice of what is in use. Under the store's mu.
type pool struct {
	mapped map[*byte][]byte // the mappings of pages that it has from the system, by their first bytes
	free   [][]byte
}

// newPool returns a pool that gives its pages back to the system with close.
func newPool() *pool { return &pool{mapped: map[*byte][]byte{}} }

// take returns a page, whose bytes may be anything. Without a pool it is the garbage collector's.
func (p *pool) take() []byte {
	if p == nil {
		return make([]byte, hugePage)
	}
	if n := len(p.free); n > 0 {
		page := p.free[n-1]
		p.free = p.free[:n-1]
		return page
	}
	if !scrub {
		if page, mapping := mapPage(); page != nil {
			p.mapped[&page[0]] = mapping
			return page
		}
	}
	return make([]byte, hugePage)
}

// give takes back unused pages, and keeps that many for later calls of take.
func (p *pool) give(pages [][]byte) {
	if p == nil {
		return
	}
	p.free = append(p.free, pages...)
	p.shrink(len(pages))
}

// shrink returns free pages to the system until keep are left.
func (p *pool) shrink(keep int) {
	for _, page := range p.free[keep:] {
		if mapping, ok := p.mapped[&page[0]]; ok { // one of the heap is left to the collector
			delete(p.mapped, &page[0])
			unmap(mapping)
		}
	}
	clear(p.free[keep:])
	p.free = p.free[:keep]
}

// close gives all pages back. None of them may be in use.
func (p *pool) close() {
	if p == nil {
		return
	}
	for _, mapping := range p.mapped {
		unmap(mapping)
	}
	clear(p.mapped)
	p.free = nil
}
