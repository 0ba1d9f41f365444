package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// The forms of an entity's record.
const (
	entityWithValue byte = 1
	entityInBlock   byte = 2 // the value is in a block, at an offset
)

// maxValueInRecord is the longest value, in bytes, that an entity's record
// holds itself. A longer one is in its transaction anyway: without it four times
// as many records share a page of the state file, and where entities change at
// random, every one of them costs a page at the next checkpoint.
const maxValueInRecord = 32

// entity is a key's value as the state has it. The zero value is an absent
// one.
type entity struct {
	present   bool
	version   uint64
	expiresAt int64 // 0: never
	value     []byte
	entityPlace
}

// entityPlace is where the value is of an entity whose record has none: in the
// operation that set it, of the transaction whose index is the version.
type entityPlace struct {
	inBlock bool
	at      uint64 // the offset of the operation after the number of operations
}

func (e *entity) append(dst []byte) []byte {
	form := entityWithValue
	if e.inBlock {
		form = entityInBlock
	}
	dst = append(dst, form)
	dst = binary.AppendUvarint(dst, e.version)
	dst = binary.AppendUvarint(dst, uint64(e.expiresAt))
	if e.inBlock {
		return binary.AppendUvarint(dst, e.at)
	}
	return append(dst, e.value...)
}

func decodeEntity(b []byte) (entity, error) {
	d := decoder{rest: b}
	form := d.octet()
	e := entity{present: true, version: d.uvarint(), expiresAt: int64(d.uvarint())}
	switch form {
	case entityWithValue:
		e.value = d.take(uint64(len(d.rest)))
	case entityInBlock:
		e.inBlock, e.at = true, d.uvarint()
	default:
		d.fail()
	}
	if e.expiresAt < 0 {
		d.fail()
	}
	return e, d.done("entity record")
}

// valueIn returns the value of an entity that is in the block of its
// transaction, and how many bytes were checked for it. It aliases the
// transaction. A value that has not the wanted length, unless that is negative,
// is only good for its own length, because its bytes are not checked.
func (e *entity) valueIn(t *storedTransaction, key []byte, length int) (value []byte, checked int, err error) {
	setKey, from, to, err := t.setAt(e.at)
	if err != nil {
		return nil, 0, err
	}
	if !bytes.Equal(setKey, key) {
		return nil, 0, e.notSet(key)
	}
	value, checked = t.encoded[t.head+from:t.head+to], 2*operationChunk
	if length < 0 || length == len(value) {
		checked += len(value)
		err = t.check(from, to)
	}
	return value, checked, err
}

func (e *entity) notSet(key []byte) error {
	return fmt.Errorf("%w: what ledger index %d has at %d has not set entity %q", ErrCorrupt, e.version, e.at, key)
}

// valueReader reads values that are in blocks of the state. It keeps the last
// record of blocks, because entities that stand side by side were often set together.
type valueReader struct {
	r       Reader
	record  record // as valid as what r hands out
	last    uint64 // the key of the record; 0 for none
	fetched int    // bytes that were checked so far

	later   bool // than the view in which the entities were found
	horizon uint64
}

// read returns the value of an entity. It aliases the storage. For length see
// valueIn.
func (v *valueReader) read(e *entity, key []byte, length int) ([]byte, error) {
	if !e.inBlock {
		return e.value, nil
	}
	l, found, err := v.locate(e.version)
	if errors.Is(err, ErrDropped) {
		err = nil // then it was carried before
	}
	if err != nil {
		return nil, err
	}
	if !found {
		return v.carried(e, key, length)
	}
	value, checked, err := e.valueIn(&l.stored, key, length)
	v.fetched += checked
	return value, err
}

// locate finds the transaction of an index, in the record that is kept if it is
// there.
func (v *valueReader) locate(index uint64) (l located, found bool, err error) {
	if v.last != 0 && index <= v.last {
		if l, found, err = v.record.find(index); found || err != nil {
			return l, found, err
		}
	}
	v.record, v.last, err = recordOf(v.r, index)
	if err != nil || v.last == 0 {
		return l, false, err
	}
	return v.record.find(index)
}

// expired reports whether an entity is absent for reads and conditions, though
// its record may still be there.
func (h *head) entityExpired(e *entity) bool { return h.expired(e.expiresAt, e.version) }

func (m *Machine) entityKey(scopeKey, key []byte) []byte {
	m.key = append(append(m.key[:0], scopeKey...), key...)
	return m.key
}

// loadRecord reads the record of an entity, expired or not.
func (m *Machine) loadRecord(r Reader, scopeKey, key []byte) (entity, error) {
	b, err := r.Get(TableEntities, m.entityKey(scopeKey, key))
	if err != nil || b == nil {
		return entity{}, err
	}
	return decodeEntity(b)
}

// loadEntity reads an entity as conditions see it.
func (m *Machine) loadEntity(r Reader, scopeKey, key []byte) (entity, error) {
	e, err := m.loadRecord(r, scopeKey, key)
	if err != nil || m.head.entityExpired(&e) {
		return entity{}, err
	}
	return e, nil
}

// conditionEntity is loadEntity with everything that the condition looks at.
func (m *Machine) conditionEntity(r Reader, scopeKey, key []byte, c *Condition) (entity, error) {
	e, err := m.loadEntity(r, scopeKey, key)
	if err != nil || !e.inBlock || c.Kind != ConditionValueEquals {
		return e, err
	}
	// A write of the entry that is being applied may have set it.
	if t, _, pending := m.findPending(e.version); pending {
		e.value, _, err = e.valueIn(&t, key, len(c.Value))
	} else {
		e.value, err = m.values.read(&e, key, len(c.Value))
	}
	return e, err
}

// newEntity returns the entity that a set makes at the current index. One that
// is born expired is absent at once.
func (m *Machine) newEntity(op *Operation) entity {
	e := entity{present: true, version: m.head.index, expiresAt: op.ExpiresAt, value: op.Value}
	if m.head.entityExpired(&e) {
		return entity{}
	}
	return e
}

// setEntity stores what an operation of the current transaction sets.
func (m *Machine) setEntity(tx Tx, scopeKey []byte, c *writeCommand, operation int) error {
	op := &c.operations[operation]
	old, err := m.loadRecord(tx, scopeKey, op.Key)
	if err != nil {
		return err
	}
	if old.expiresAt != op.ExpiresAt {
		if err := m.moveExpiry(tx, scopeKey, op.Key, old.expiresAt, op.ExpiresAt); err != nil {
			return err
		}
	}
	e := entity{present: true, version: m.head.index, expiresAt: op.ExpiresAt, value: op.Value}
	if len(e.value) > maxValueInRecord {
		e.value, e.inBlock, e.at = nil, true, uint64(c.offsets[operation])
	}
	m.scratch = e.append(m.scratch[:0])
	return tx.Put(TableEntities, m.entityKey(scopeKey, op.Key), m.scratch)
}

func (m *Machine) deleteEntity(tx Tx, scopeKey, key []byte) (changed bool, err error) {
	old, err := m.loadRecord(tx, scopeKey, key)
	// What has expired is absent already, because its record may wait for a pass.
	if err != nil || !old.present || m.head.entityExpired(&old) {
		return false, err
	}
	if err := m.moveExpiry(tx, scopeKey, key, old.expiresAt, 0); err != nil {
		return false, err
	}
	return true, tx.Delete(TableEntities, m.entityKey(scopeKey, key))
}

// moveExpiry moves an entity's entry in the expiry index; 0 means none.
func (m *Machine) moveExpiry(tx Tx, scopeKey, key []byte, from, to int64) error {
	if from != 0 {
		k := appendExpiryKey(m.key[:0], expiryEntity, from, scopeKey)
		m.key = append(k, key...)
		if err := tx.Delete(TableExpiry, m.key); err != nil {
			return err
		}
	}
	if to == 0 {
		return nil
	}
	k := appendExpiryKey(m.key[:0], expiryEntity, to, scopeKey)
	m.key = append(k, key...)
	return m.addExpiry(tx, m.key)
}

func (m *Machine) changeRelationship(tx Tx, scopeKey []byte, op *Operation) (changed bool, err error) {
	m.key = appendRelationshipParts(append(m.key[:0], scopeKey...), op.Key, op.Relation, op.Subject)
	b, err := tx.Get(TableRelationships, m.key)
	if err != nil {
		return false, err
	}
	create := op.Kind == OpCreateRelationship
	switch {
	case create == (b != nil):
		return false, nil
	case create:
		m.scratch = binary.AppendUvarint(m.scratch[:0], m.head.index)
		return true, tx.Put(TableRelationships, m.key, m.scratch)
	default:
		return true, tx.Delete(TableRelationships, m.key)
	}
}
