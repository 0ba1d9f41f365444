package boltstore

// place is where something begins in an arena.
type place struct{ block, offset uint32 }

// arena hands out memory. What it has handed out stays where it is.
type arena struct {
	blocks [][]byte
	pool   *pool    // where its large blocks come from
	pages  [][]byte // those blocks
	// The block that is being handed out, its size, and where it is free.
	current, room, free uint32
	used                int64 // handed out, in bytes

	// spare has unused pieces, by their size. A piece that a value has outgrown becomes spare with the next Update,
	// because reads of the current one may still use it.
	spare    *[spareSizes][]place
	outgrown []room
}

// room is memory that a value has, or has had.
type room struct {
	at   place
	size uint32
}

// The sizes of an arena's blocks, in bytes: they double up to largestBlock, so that a small overlay is small. Later
// blocks are pages of the pool. A value larger than largestPiece has its own block.
const (
	smallestBlock = 4 << 10
	largestBlock  = 256 << 10
	largestPiece  = 32 << 10
)

// take returns n bytes. A large value does not end the current block: otherwise most of each block would be wasted.
func (a *arena) take(n uint32) place {
	a.used += int64(n)
	if n > largestPiece {
		a.blocks = append(a.blocks, make([]byte, n))
		return place{uint32(len(a.blocks) - 1), 0}
	}
	if a.room-a.free < n {
		a.grow(n)
	}
	p := place{a.current, a.free}
	a.free += n
	return p
}

// grow begins a block with room for n bytes.
func (a *arena) grow(n uint32) {
	if a.room < largestBlock {
		a.room = max(2*a.room, smallestBlock, n)
		a.blocks = append(a.blocks, make([]byte, a.room))
	} else {
		page := a.pool.take()
		a.room, a.blocks, a.pages = uint32(len(page)), append(a.blocks, page), append(a.pages, page)
	}
	a.current, a.free = uint32(len(a.blocks)-1), 0
}

// at returns n bytes from a place on.
func (a *arena) at(p place, n uint32) []byte {
	end := p.offset + n
	return a.blocks[p.block][p.offset:end:end]
}

// Rooms of these sizes, in bytes, are handed out again. Smaller ones would not be worth it, and larger ones are few.
const (
	leastSpare = 128
	mostSpare  = 4 << 10
	spareUnit  = 16 // which sizes are multiples of, so that a value often fits where another was
	spareSizes = (mostSpare-leastSpare)/spareUnit + 1
)

// takeRoom is take for a value of n bytes that may outgrow it: the room may be somewhat larger.
func (a *arena) takeRoom(n uint32) room {
	if n < leastSpare || n > mostSpare {
		return room{a.take(n), n}
	}
	n = (n + spareUnit - 1) / spareUnit * spareUnit
	if a.spare != nil {
		if places := &a.spare[(n-leastSpare)/spareUnit]; len(*places) > 0 {
			last := len(*places) - 1
			at := (*places)[last]
			*places = (*places)[:last]
			return room{at, n}
		}
	}
	return room{a.take(n), n}
}

// leave gives a room back.
func (a *arena) leave(r room) {
	if r.size >= leastSpare && r.size <= mostSpare {
		a.outgrown = append(a.outgrown, r)
	}
}

// reuse makes spare what has been given back. Nobody may use any of it any more.
func (a *arena) reuse() {
	if len(a.outgrown) == 0 {
		return
	}
	if a.spare == nil {
		a.spare = new([spareSizes][]place)
	}
	for _, r := range a.outgrown {
		if scrub {
			overwrite(a.at(r.at, r.size))
		}
		places := &a.spare[(r.size-leastSpare)/spareUnit]
		*places = append(*places, r.at)
	}
	a.outgrown = a.outgrown[:0]
}

// release returns the arena's pages, for the pool, and leaves an arena without memory. Nobody may use any of it any
// more.
func (a *arena) release() (pages [][]byte) {
	if scrub {
		for _, b := range a.blocks {
			overwrite(b)
		}
	}
	pages = a.pages
	*a = arena{pool: a.pool}
	return pages
}

// overwrite fills b, so that a reader that still uses it notices.
func overwrite(b []byte) {
	for i := range b {
		b[i] = 0xDB
	}
}
