package machine

import (
	"bytes"
	"fmt"
	"math/bits"
	"slices"
)

// interval is the history between two marks.
type interval struct {
	mark  // where it ends
	begin mark
	bytes uint64 // of its operations, as far as they were met
}

// marks reads the marks, against which the blocks are counted.
func (a *auditor) marks() error {
	r := &a.head.retention
	before := r.dropped
	err := visitMarks(a.r, 0, func(k mark) bool {
		switch where := fmt.Sprintf("mark at ledger index %d", k.index); {
		case k.index < r.horizon || k.index > a.head.index || k.index <= before.index && before.index > 0:
			a.problem(where, "it lies before the horizon, which is %d, or behind the ledger index", r.horizon)
		case k.bytes < before.bytes || k.bytes > r.marked.bytes || k.time > a.latestTime():
			a.problem(where, "it has %d bytes, and %d are before it", k.bytes, before.bytes)
		}
		a.history = append(a.history, interval{mark: k, begin: before})
		before = k
		return true
	})
	if before.bytes != r.marked.bytes && (len(a.history) > 0 || r.horizon > 0) {
		a.problem("marks of the history", "the last one has %d bytes, the head says %d", before.bytes, r.marked.bytes)
	}
	a.history = append(a.history, interval{mark: mark{index: a.head.index, bytes: r.bytes}, begin: before})
	return err
}

// count counts the operations of a transaction, which come in the order of their indexes.
func (a *auditor) count(index uint64, operations int) {
	i, _ := slices.BinarySearchFunc(a.history, index, func(x interval, index uint64) int {
		switch {
		case x.index < index:
			return -1
		case x.index > index:
			return 1
		}
		return 0
	})
	if i < len(a.history) && index > a.history[i].begin.index {
		a.history[i].bytes += uint64(operations)
	}
}

// retained compares the marks with the blocks that are kept.
func (a *auditor) retained() error {
	for _, x := range a.history {
		whole := x.begin.index >= a.sum.Dropped
		if want := x.mark.bytes - x.begin.bytes; whole && x.bytes != want {
			a.problem("marks of the history", "the transactions from ledger index %d to %d have %d bytes of "+
				"operations, the marks say %d", x.begin.index+1, x.index, x.bytes, want)
		}
	}
	return nil
}

// begin takes the ledger index before the first record. Blocks from the horizon on must exist: the next block of the
// chain, or the head of the chain, names each of them.
func (a *auditor) begin(before uint64) {
	if horizon := a.head.retention.horizon; horizon > 0 && !a.whole {
		a.sum.Dropped = min(before, horizon-1)
	}
}

// resume returns a chain whose first blocks have been dropped.
func (a *auditor) resume(first *BlockHeader, places []place) (c chain) {
	if a.sum.Dropped == 0 || first.Height <= 1 || len(places) == 0 || places[0].record > a.sum.Dropped {
		return c
	}
	c.height, c.hash = first.Height-1, first.PreviousHash
	c.places = make([]place, bits.Len64(c.height))
	return c
}

// learn takes over places in blocks that have been dropped, of which nothing else is known.
func (c *chain) learn(places []place, dropped uint64) {
	for k := range min(len(places), len(c.places)) {
		if c.places[k] == (place{}) && places[k].record <= dropped {
			c.places[k] = places[k]
		}
	}
}

// knowsAbsent tells whether a key that no block has set is known to be absent.
func (a *auditor) knowsAbsent(removed map[string]struct{}, key string) bool {
	_, gone := removed[key]
	return gone || a.sum.Dropped == 0
}

func (a *auditor) remove(key string) {
	delete(a.entities, key)
	if a.sum.Dropped > 0 {
		a.removed[key] = struct{}{}
	}
}

// relate decides a relationship again, and returns whether it changes. did is what its result says, which
// counts where nothing is known.
func (a *auditor) relate(key string, create bool, index uint64, did bool) (changed bool) {
	_, there := a.relationships[key]
	changed = there != create
	if !there && !a.knowsAbsent(a.unrelated, key) {
		changed = did
	}
	switch {
	case !changed:
	case create:
		a.relationships[key] = index
	default:
		delete(a.relationships, key)
		if a.sum.Dropped > 0 {
			a.unrelated[key] = struct{}{}
		}
	}
	return changed
}

// carriedValue checks the carried value of an entity whose block has been dropped.
func (a *auditor) carriedValue(key []byte, e *entity) error {
	if !e.inBlock {
		return nil
	}
	scope, err := scopePart(key)
	if err != nil {
		return err
	}
	values := valueReader{r: a.r}
	_, err = values.read(e, key[len(scope):], -1)
	return err
}

// carriedTable checks the carried values by themselves, and those that are still in a block.
func (a *auditor) carriedTable() error {
	return a.scan(TableCarried, "carried value", func(k, row []byte) error {
		if len(k) != carriedKeyBytes {
			return fmt.Errorf("the key has %d bytes instead of %d", len(k), carriedKeyBytes)
		}
		if !bytes.Equal(k[carriedKeyBytes-2:], []byte{0, 0}) {
			return nil // it is read with the first piece
		}
		a.sum.Carried++
		d := decoder{rest: row}
		head := d.carriedHead()
		if d.bad {
			return fmt.Errorf("%w: its first piece", ErrCorrupt)
		}
		record, err := a.r.Get(TableEntities, head.key)
		if err != nil || record == nil {
			return err
		}
		e, err := decodeEntity(record)
		if err != nil || !e.inBlock || !bytes.Equal(e.carriedKey(nil, 0), k) {
			return err // its entity has changed since
		}
		scope, err := scopePart(head.key)
		if err != nil {
			return err
		}
		values := valueReader{r: a.r}
		value, err := values.carried(&e, head.key[len(scope):], -1)
		if err != nil || e.version <= a.sum.Dropped {
			return err
		}
		inBlock, err := values.read(&e, head.key[len(scope):], -1)
		if err == nil && !bytes.Equal(value, inBlock) {
			err = fmt.Errorf("it is not what ledger index %d has set", e.version)
		}
		return err
	})
}
