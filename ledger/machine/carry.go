package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// A long value is in the block of the write that set it (see entity.leaveOut). Before a node drops a file of
// blocks, it carries the values in it that are alive into TableCarried. That is a matter of this node: no
// decision and no digest depends on where a value is read from, and replicas may drop their files at different
// times.
//
// A value stands there in pieces, as operations stand in blocks in chunks, so that comparing a value of
// another length costs a piece and not the value. It stands under the version of its entity and the place in the
// transaction, which no other value ever has. So a row never says anything wrong, however old it is; one that
// no entity leads to is clutter, which DropCarried removes.

// carriedPiece is how many bytes of a value are in a row, at most.
const carriedPiece = 16 << 10

// carriedKey is where a piece of an entity's value stands.
func (e *entity) carriedKey(dst []byte, piece int) []byte {
	dst = appendIndexKey(dst, e.version)
	dst = binary.BigEndian.AppendUint32(dst, uint32(e.at))
	return binary.BigEndian.AppendUint16(dst, uint16(piece))
}

const carriedKeyBytes = 8 + 4 + 2

// carriedHead is what stands before the first piece.
type carriedHead struct {
	length int    // of the value
	key    []byte // of the entity, with its scope
}

func (d *decoder) carriedHead() (c carriedHead) {
	length := d.uvarint()
	c.key = d.bytes()
	if length > MaxValueBytes || uint64(min(length, carriedPiece)) != uint64(len(d.rest)) {
		d.fail()
	}
	c.length = int(length)
	return c
}

// unread takes the place of a value of which only the length is needed.
var unread [MaxValueBytes]byte

// carried is read for a value that is not in the blocks any more.
func (v *valueReader) carried(e *entity, key []byte, length int) ([]byte, error) {
	first, err := v.r.Get(TableCarried, e.carriedKey(nil, 0))
	if err != nil {
		return nil, err
	}
	if first == nil {
		if v.later && e.version < v.horizon {
			return nil, ErrChanged
		}
		return nil, fmt.Errorf("%w: no transaction at ledger index %d, which has set entity %q, and no value of it "+
			"that was carried", ErrCorrupt, e.version, key)
	}
	d := decoder{rest: first}
	head := d.carriedHead()
	if d.bad || !bytes.HasSuffix(head.key, key) {
		return nil, fmt.Errorf("%w: carried value of entity %q, version %d", ErrCorrupt, key, e.version)
	}
	v.fetched += len(first)
	if length >= 0 && length != head.length {
		return unread[:head.length], nil
	}
	value := append(make([]byte, 0, head.length), d.rest...)
	for piece := 1; len(value) < head.length; piece++ {
		more, err := v.r.Get(TableCarried, e.carriedKey(nil, piece))
		if err != nil {
			return nil, err
		}
		if len(more) != min(carriedPiece, head.length-len(value)) {
			return nil, fmt.Errorf("%w: piece %d of the carried value of entity %q, version %d", ErrCorrupt, piece, key,
				e.version)
		}
		value = append(value, more...)
		v.fetched += len(more)
	}
	return value, nil
}

// LiveValue is a value that has to be carried.
type LiveValue struct {
	key    []byte // in TableEntities
	entity entity // with the value
}

// The bounds of one FindLive: it keeps entries from being applied.
const (
	maxLiveScan  = 1_000
	maxLiveBytes = 256 << 10
)

// FindLive looks among the entities from a key on, nil for the first, for values that are in blocks up to
// a ledger index and are not carried yet. It looks at a bounded number; next is where to go on, nil at the end.
func (v View) FindLive(from []byte, upTo uint64) (live []LiveValue, next []byte, err error) {
	values, scanned, size := valueReader{r: v.r}, 0, 0
	var failed error
	deleted, err := v.ascendBounded(TableEntities, from, func(key, record []byte) bool {
		if scanned == maxLiveScan || size >= maxLiveBytes {
			next = bytes.Clone(key)
			return false
		}
		scanned++
		var found *LiveValue
		if found, failed = v.live(&values, key, record, upTo); failed != nil {
			return false
		}
		if found != nil {
			live = append(live, *found)
			size += len(found.entity.value)
		}
		return true
	})
	if deleted != nil {
		next = nextKey(deleted)
	}
	return live, next, firstErr(err, failed)
}

// live returns the value of an entity if it has to be carried, else nil.
func (v View) live(values *valueReader, key, record []byte, upTo uint64) (*LiveValue, error) {
	e, err := decodeEntity(record)
	if err != nil || !e.inBlock || e.version > upTo {
		return nil, err
	}
	there, err := v.r.Get(TableCarried, e.carriedKey(nil, 0))
	if err != nil || there != nil {
		return nil, err
	}
	scope, err := scopePart(key)
	if err != nil {
		return nil, err
	}
	value, err := values.read(&e, key[len(scope):], -1)
	if err != nil {
		return nil, err
	}
	e.value = bytes.Clone(value)
	return &LiveValue{key: bytes.Clone(key), entity: e}, nil
}

// Carry puts values into TableCarried. It does not matter whether their entities have changed since
// they were found.
func Carry(tx Tx, live []LiveValue) error {
	for i := range live {
		e := &live[i].entity
		row := appendBytes(binary.AppendUvarint(nil, uint64(len(e.value))), live[i].key)
		rest := e.value
		for piece := 0; piece == 0 || len(rest) > 0; piece++ {
			n := min(len(rest), carriedPiece)
			row = append(row, rest[:n]...)
			if err := tx.Put(TableCarried, e.carriedKey(nil, piece), row); err != nil {
				return err
			}
			row, rest = row[:0], rest[n:]
		}
	}
	return nil
}

// FindUnused looks among the carried values from a key on, nil for the first, for those that no entity leads
// to any more. It returns their keys, and looks at a bounded number; next is where to go on, nil at the end.
func (v View) FindUnused(from []byte) (unused [][]byte, next []byte, err error) {
	scanned, dead := 0, false
	var failed error
	deleted, err := v.ascendBounded(TableCarried, from, func(key, row []byte) bool {
		if len(key) != carriedKeyBytes {
			failed = fmt.Errorf("%w: carried value under a key of %d bytes", ErrCorrupt, len(key))
			return false
		}
		if binary.BigEndian.Uint16(key[carriedKeyBytes-2:]) == 0 {
			if scanned >= maxLiveScan {
				next = bytes.Clone(key)
				return false
			}
			if dead, failed = v.unused(key, row); failed != nil {
				return false
			}
		}
		if scanned++; dead {
			unused = append(unused, bytes.Clone(key))
		}
		return true
	})
	if deleted != nil {
		next = nextKey(deleted)
	}
	return unused, next, firstErr(err, failed)
}

// unused tells whether no entity leads to the value of which this is the first piece.
func (v View) unused(key, row []byte) (bool, error) {
	d := decoder{rest: row}
	head := d.carriedHead()
	if d.bad {
		return false, fmt.Errorf("%w: carried value %x", ErrCorrupt, key)
	}
	record, err := v.r.Get(TableEntities, head.key)
	if err != nil || record == nil {
		return err == nil, err
	}
	e, err := decodeEntity(record)
	return err == nil && (!e.inBlock || !bytes.Equal(e.carriedKey(nil, 0), key)), err
}

// DropCarried removes carried values that no entity leads to.
func DropCarried(tx Tx, unused [][]byte) error {
	for _, key := range unused {
		if err := tx.Delete(TableCarried, key); err != nil {
			return err
		}
	}
	return nil
}
