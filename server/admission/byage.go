package admission

import (
	"container/list"
	"net/netip"
)

// byAge holds what unauthenticated callers have open, oldest first: all of it, and that of each address. The zero value
// is empty. Its user has a lock.
type byAge[T any] struct {
	all       list.List // of *aged[T]
	ofAddress map[netip.Addr]*list.List
}

// aged is an element of a byAge.
type aged[T any] struct {
	value            T
	address          netip.Addr
	inAll, inAddress *list.Element
}

// add adds the newest element.
func (b *byAge[T]) add(address netip.Addr, value T) *aged[T] {
	of := b.ofAddress[address]
	if of == nil {
		if b.ofAddress == nil {
			b.ofAddress = make(map[netip.Addr]*list.List)
		}
		of = list.New()
		b.ofAddress[address] = of
	}
	a := &aged[T]{value: value, address: address}
	a.inAll, a.inAddress = b.all.PushBack(a), of.PushBack(a)
	return a
}

// remove removes an element.
func (b *byAge[T]) remove(a *aged[T]) {
	b.all.Remove(a.inAll)
	of := b.ofAddress[a.address]
	if of.Remove(a.inAddress); of.Len() == 0 {
		delete(b.ofAddress, a.address)
	}
}

// oldest returns the oldest element, or the zero value if there is none.
func (b *byAge[T]) oldest() (value T) {
	if front := b.all.Front(); front != nil {
		value = front.Value.(*aged[T]).value //nolint:forcetypeassert // The list holds nothing else.
	}
	return value
}

// excess returns the oldest element of an address that has more than ofAddress, or else of all if there are more than
// ofAll, and whose bound that is. The owner is ownerCount if there are not too many.
func (b *byAge[T]) excess(address netip.Addr, ofAddress, ofAll int) (value T, whose Owner) {
	of := b.ofAddress[address]
	switch {
	case of != nil && of.Len() > ofAddress:
		return of.Front().Value.(*aged[T]).value, OfAddress //nolint:forcetypeassert // As above.
	case b.all.Len() > ofAll:
		return b.oldest(), OfServer
	}
	return value, ownerCount
}
