package boltstore

import (
	"bytes"
	"math"

	"github.com/seqledger/seqledger/ledger/internal/boltpage"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Ascend implements [machine.Reader]: a merge of the three layers, in which a
// higher layer hides the same key of the lower ones.
//
// A tombstone costs a step, of some twenty nanoseconds, or a hundred and more where the
// file has the key. A caller that deletes from the front of a table again and again should
// pass the last deleted key as from rather than start over.
func (r *reader) Ascend(table machine.Table, from []byte, visit func(key, value []byte) bool) error {
	_, err := r.ascend(table, from, math.MaxInt, visit)
	return err
}

// AscendBounded implements [machine.BoundedReader].
func (r *reader) AscendBounded(
	table machine.Table, from []byte, deleted int, visit func(key, value []byte) bool,
) (resume []byte, err error) {
	return r.ascend(table, from, deleted, visit)
}

// ascend is AscendBounded with any bound.
func (r *reader) ascend(
	table machine.Table, from []byte, bound int, visit func(key, value []byte) bool,
) (resume []byte, err error) {
	if err := r.mayRead(table); err != nil {
		return nil, r.fail(err)
	}
	if table == machine.TableBlocks {
		if err := r.ascendBlocks(from, visit); err != nil {
			return nil, r.fail(err)
		}
		return nil, nil
	}
	layers, err := r.layers(table, from)
	if err == nil {
		resume, err = merge(table, layers, bound, visit)
	}
	if err != nil {
		return nil, r.fail(err)
	}
	return resume, nil
}

// merge visits the keys of all layers. Once it has skipped the given number of tombstones, it returns the key of the
// last.
func merge(
	table machine.Table, layers []layer, bound int, visit func(key, value []byte) bool,
) (resume []byte, err error) {
	for deleted := 0; ; {
		// The first of equal keys wins, and layers are sorted from the newest.
		var top *layer
		for i := range layers {
			l := &layers[i]
			if l.ok && (top == nil || bytes.Compare(l.key, top.key) < 0) {
				top = l
			}
		}
		if top == nil {
			return nil, nil
		}
		key := top.key
		value, err := top.read(table)
		if err != nil {
			return nil, err
		}
		if value != nil && !visit(key, value) {
			return nil, nil
		}
		for i := range layers {
			l := &layers[i]
			if !l.ok || !bytes.Equal(l.key, key) {
				continue
			}
			// A record that is hidden by a newer one must be checked, too: its key
			// may have been another one's.
			if err := l.next(table, l != top); err != nil {
				return nil, err
			}
		}
		if value != nil {
			continue
		}
		skipped, last := skipTombstones(layers, top, bound-deleted-1)
		if deleted += skipped + 1; deleted >= bound {
			if last == nil {
				last = key
			}
			return bytes.Clone(last), nil
		}
	}
}

// skipTombstones moves an overlay's layer to its next entry that is not deleted, or that another layer has reached. It
// skips at most the given number, and returns how many it has skipped and the key of the last.
func skipTombstones(layers []layer, top *layer, most int) (skipped int, last []byte) {
	var bound []byte // nil: the other layers have ended
	for i := range layers {
		l := &layers[i]
		if l != top && l.ok && (bound == nil || bytes.Compare(l.key, bound) < 0) {
			bound = l.key
		}
	}
	for skipped < most && top.ok && top.changes.at(0).deleted &&
		(bound == nil || bytes.Compare(top.key, bound) < 0) {
		skipped, last = skipped+1, top.key
		top.changes = top.changes.from(1)
		top.atEntry()
	}
	return skipped, last
}

// layer is a position in one of the layers: an overlay, or the file.
type layer struct {
	ok     bool
	key    []byte
	sealed []byte // as stored, when the layer is the file

	changes entries          // of an overlay, from the position on
	stored  *boltpage.Cursor // nil for an overlay
	advance func()           // see Options.Advanced
}

// layers returns the layers of a table, newest first, each at its first key
// that is not below from.
func (r *reader) layers(table machine.Table, from []byte) ([]layer, error) {
	layers := make([]layer, 0, 3)
	for _, o := range []*overlay{r.active, r.frozen} {
		if o == nil || o.tables[table] == nil {
			continue
		}
		t := o.tables[table]
		ids := t.order()
		l := layer{changes: entries{t, ids[t.search(ids, from):]}}
		l.atEntry()
		layers = append(layers, l)
	}
	l, err := r.storedLayer(table, from)
	if err != nil {
		return nil, err
	}
	return append(layers, l), nil
}

// storedLayer is the file's part of layers.
func (r *reader) storedLayer(table machine.Table, from []byte) (l layer, err error) {
	defer recoverDamage(table, from, &err)
	l.advance = r.store.advanced
	// Not the cursor of Get: visit may call Get, which would move it.
	if l.stored, err = r.cursor(table); err != nil {
		return layer{}, err
	}
	key, sealed, err := l.stored.Seek(from)
	if err != nil {
		return layer{}, pageDamage(table, from, err)
	}
	if l.atStored(key, sealed); bytes.Equal(key, from) {
		return l, nil
	}
	// What comes before the first key must come before from, or records are left
	// out, as in a lookup that finds nothing.
	return l, checkGap(l.stored, table, from, key, sealed)
}

// atStored takes over what the cursor stands at.
func (l *layer) atStored(key, sealed []byte) { l.key, l.sealed, l.ok = key, sealed, key != nil }

// atEntry takes over the overlay's first entry that is left.
func (l *layer) atEntry() {
	if l.ok = l.changes.len() > 0; l.ok {
		l.key = l.changes.at(0).key
	}
}

// read returns the value at the position, or nil for a tombstone.
func (l *layer) read(table machine.Table) (value []byte, err error) {
	if l.stored == nil {
		e := l.changes.at(0)
		return e.value(), nil
	}
	defer recoverDamage(table, l.key, &err)
	return unseal(table, l.key, l.sealed)
}

// next moves to the following key. With check, it checks the record that it leaves.
func (l *layer) next(table machine.Table, check bool) (err error) {
	if l.stored == nil {
		l.changes = l.changes.from(1)
		l.atEntry()
		return nil
	}
	before := l.key
	defer recoverDamage(table, before, &err)
	if check {
		if err := checkStored(table, before, l.sealed); err != nil {
			return err
		}
	}
	key, sealed, err := l.stored.Next()
	if err != nil {
		return pageDamage(table, before, err)
	}
	l.advance()
	// Without this a damaged page could make an iteration go back, repeat
	// records, or never end.
	if key != nil && bytes.Compare(key, before) <= 0 {
		return damaged(table, before, "followed by key %x, which is not greater", key)
	}
	l.atStored(key, sealed)
	return nil
}
