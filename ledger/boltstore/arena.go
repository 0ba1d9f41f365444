package boltstore

// place is where something begins in an arena.
type place struct{ block, offset uint32 }

// arena hands out memory that is never given back piece by piece. What it has
// handed out stays where it is.
type arena struct {
	blocks [][]byte
	// The block that is being handed out, its size, and where it is free.
	current, room, free uint32
	used                int64 // handed out, in bytes
}

// The sizes of an arena's blocks, in bytes: they double, so that a small overlay
// is small. What takes more than an eighth of the largest has a block to itself.
const (
	smallestBlock = 4 << 10
	largestBlock  = 256 << 10
)

// take hands out n bytes. The block that is being handed out stays in use beside
// a large value: otherwise each of these would leave most of a block behind.
func (a *arena) take(n uint32) place {
	a.used += int64(n)
	if n > largestBlock/8 {
		a.blocks = append(a.blocks, make([]byte, n))
		return place{uint32(len(a.blocks) - 1), 0}
	}
	if a.room-a.free < n {
		a.room = max(min(max(2*a.room, smallestBlock), largestBlock), n)
		a.blocks = append(a.blocks, make([]byte, a.room))
		a.current, a.free = uint32(len(a.blocks)-1), 0
	}
	p := place{a.current, a.free}
	a.free += n
	return p
}

// at returns n bytes from a place on.
func (a *arena) at(p place, n uint32) []byte {
	end := p.offset + n
	return a.blocks[p.block][p.offset:end:end]
}
