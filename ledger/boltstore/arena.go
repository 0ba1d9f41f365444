package boltstore

// place is where something begins in an arena.
type place struct{ block, offset uint32 }

// arena hands out memory that is never given back piece by piece. What it has
// handed out stays where it is.
type arena struct {
	blocks [][]byte
	free   uint32 // offset of what is left of the last block
	used   int64  // handed out, in bytes
}

// The sizes of an arena's blocks, in bytes: they double, so that a small overlay
// is small. Something larger than the largest has a block to itself.
const (
	smallestBlock = 4 << 10
	largestBlock  = 256 << 10
)

// take hands out n bytes.
func (a *arena) take(n uint32) place {
	last := len(a.blocks) - 1
	if last < 0 || uint32(len(a.blocks[last]))-a.free < n {
		size := uint32(smallestBlock)
		if last >= 0 {
			size = min(max(2*uint32(len(a.blocks[last])), smallestBlock), largestBlock)
		}
		a.blocks = append(a.blocks, make([]byte, max(size, n)))
		a.free = 0
		last++
	}
	p := place{uint32(last), a.free}
	a.free += n
	a.used += int64(n)
	return p
}

// at returns n bytes from a place on.
func (a *arena) at(p place, n uint32) []byte {
	end := p.offset + n
	return a.blocks[p.block][p.offset:end:end]
}
