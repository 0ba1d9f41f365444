package boltstore

import "hash/maphash"

// hashSeed is new with every process, so that no client can choose keys that collide.
var hashSeed = maphash.MakeSeed()

// index finds the ids of keys by their hash. It is many small hash tables, so
// that none takes long to grow: what is applied waits for it.
type index struct{ shards []shard }

// shard is a hash table with open addressing.
type shard struct {
	slots []slot // a power of two, or none
	used  int
}

// slot has half of a key's hash, which tells most other keys apart without a
// look at them, and its id and one; 0 is an empty slot.
type slot struct{ hash, id uint32 }

const (
	shardBits     = 8
	smallestShard = 8 // slots
)

func newIndex() index { return index{make([]shard, 1<<shardBits)} }

// find returns the id that is under a hash and that matches.
func (x *index) find(hash uint64, matches func(id uint32) bool) (id uint32, found bool) {
	s := &x.shards[hash>>(64-shardBits)]
	if len(s.slots) == 0 {
		return 0, false
	}
	half, mask := uint32(hash), uint32(len(s.slots)-1)
	for i := half & mask; ; i = (i + 1) & mask { // ends at an empty slot: add leaves a quarter empty
		switch slot := s.slots[i]; {
		case slot.id == 0:
			return 0, false
		case slot.hash == half && matches(slot.id-1):
			return slot.id - 1, true
		}
	}
}

// add puts an id under a hash. It must not be there yet.
func (x *index) add(hash uint64, id uint32) {
	s := &x.shards[hash>>(64-shardBits)]
	if s.used >= len(s.slots)/4*3 {
		s.grow()
	}
	s.used++
	s.place(slot{uint32(hash), id + 1})
}

func (s *shard) grow() {
	old := s.slots
	s.slots = make([]slot, max(smallestShard, 2*len(old)))
	for _, slot := range old {
		if slot.id != 0 {
			s.place(slot)
		}
	}
}

func (s *shard) place(new slot) {
	mask := uint32(len(s.slots) - 1)
	i := new.hash & mask
	for s.slots[i].id != 0 {
		i = (i + 1) & mask
	}
	s.slots[i] = new
}
