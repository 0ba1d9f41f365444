package writer

// ring is a first-in-first-out queue that reuses its memory, so a short queue does not allocate.
type ring[T any] struct {
	items []T // its length is zero or a power of two
	head  int
	size  int
}

// len returns how many elements there are.
func (r *ring[T]) len() int { return r.size }

// at returns element i from the front. i must be less than len.
func (r *ring[T]) at(i int) T { return r.items[(r.head+i)&(len(r.items)-1)] }

// push adds v at the back.
func (r *ring[T]) push(v T) {
	if r.size == len(r.items) {
		grown := make([]T, max(4, 2*len(r.items)))
		for i := range r.size {
			grown[i] = r.at(i)
		}
		r.items, r.head = grown, 0
	}
	r.items[(r.head+r.size)&(len(r.items)-1)] = v
	r.size++
}

// pop removes and returns the front. The ring must not be empty.
func (r *ring[T]) pop() T {
	var zero T
	v := r.items[r.head]
	// Clear the slot, so that the ring does not keep an answered write alive.
	r.items[r.head] = zero
	r.head = (r.head + 1) & (len(r.items) - 1)
	r.size--
	return v
}
