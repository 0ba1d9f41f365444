package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// The two forms of an entity's record.
const (
	entityWithValue byte = 1
	entityInBlock   byte = 2
)

// maxValueInRecord is the longest value, in bytes, that an entity's record
// holds itself. A longer one is in its transaction anyway: without it four times
// as many records share a page of the state file, and where entities change at
// random, every one of them costs a page at the next checkpoint.
const maxValueInRecord = 32

// maxReferredWrite is the longest write, as bytes of its encoded operations, whose
// values are left out of the records: reading one fetches and checks the whole
// record of blocks that it is in, and a condition may ask for a thousand.
const maxReferredWrite = 64 << 10

// leftOut tells whether a value that a write sets stays in its block alone.
func leftOut(valueBytes, writeBytes int) bool {
	return valueBytes > maxValueInRecord && writeBytes <= maxReferredWrite
}

// entity is a key's value as the state has it. The zero value is an absent
// one.
type entity struct {
	present   bool
	version   uint64
	expiresAt int64 // 0: never
	value     []byte
	// With inBlock the value is not here but in the operation that set it, of
	// the transaction whose index is the version.
	inBlock   bool
	operation uint64
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
		return binary.AppendUvarint(dst, e.operation)
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
		e.inBlock, e.operation = true, d.uvarint()
	default:
		d.fail()
	}
	if e.expiresAt < 0 || e.operation >= MaxOperations {
		d.fail()
	}
	return e, d.done("entity record")
}

// keep leaves the value of an operation of the current transaction out if it is
// long and the write is not.
func (e *entity) keep(operation, writeBytes int) {
	if leftOut(len(e.value), writeBytes) {
		e.value, e.inBlock, e.operation = nil, true, uint64(operation)
	}
}

// valueIn returns the value of an entity that is in the block of its
// transaction. It aliases the transaction.
func (e *entity) valueIn(t storedTransaction, key []byte) ([]byte, error) {
	d := decoder{rest: t.encoded}
	d.skipToOperations()
	n, op := d.uvarint(), Operation{}
	for i := uint64(0); i <= e.operation && i < n; i++ {
		op = decodeOperation(&d)
	}
	if d.bad || e.operation >= n || op.Kind != OpSetEntity || !bytes.Equal(op.Key, key) {
		return nil, fmt.Errorf("%w: operation %d of ledger index %d has not set entity %q", ErrCorrupt, e.operation, e.version, key)
	}
	return op.Value, nil
}

// valueReader reads values that are in blocks of the state. It keeps the last
// record of blocks: entities that stand side by side were often set together,
// and a record of half a megabyte is checked whole whenever it is fetched.
type valueReader struct {
	r       Reader
	record  []byte // as valid as what r hands out
	fetched int    // bytes of the records so far
}

// read returns the value of an entity. It aliases the storage.
func (v *valueReader) read(e *entity, key []byte) ([]byte, error) {
	if !e.inBlock {
		return e.value, nil
	}
	t, found, err := v.lookup(e.version)
	if err == nil && !found {
		v.record = nil
		err = v.r.Ascend(TableBlocks, appendIndexKey(nil, e.version), func(_, record []byte) bool {
			v.record = record
			v.fetched += len(record)
			return false
		})
		if err == nil {
			t, found, err = v.lookup(e.version)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, fmt.Errorf("%w: no transaction at ledger index %d, which has set entity %q", ErrCorrupt, e.version, key)
	}
	return e.valueIn(t, key)
}

// lookup finds a transaction in the record that is kept, if there is one.
func (v *valueReader) lookup(index uint64) (t storedTransaction, found bool, err error) {
	if v.record != nil {
		_, _, t, found, err = lookup(v.record, index)
	}
	return t, found, err
}

// expired tells whether the entity is absent for reads and conditions, though
// its record may still be there.
func (e *entity) expired(ledgerTime int64) bool {
	return e.expiresAt != 0 && ledgerTime >= e.expiresAt
}

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
	if err != nil || e.expired(m.head.time) {
		return entity{}, err
	}
	return e, nil
}

// conditionEntity is loadEntity with everything that a condition of this kind
// looks at.
func (m *Machine) conditionEntity(r Reader, scopeKey, key []byte, kind ConditionKind) (entity, error) {
	e, err := m.loadEntity(r, scopeKey, key)
	if err != nil || !e.inBlock || kind != ConditionValueEquals {
		return e, err
	}
	// A write of the entry that is being applied may have set it.
	if p := m.pendingAt(e.version); p != nil {
		e.value, err = e.valueIn(p.stored(), key)
	} else {
		e.value, err = m.values.read(&e, key)
	}
	return e, err
}

// newEntity returns the entity that a set makes at the current index. One that
// is born expired is absent at once.
func (m *Machine) newEntity(op *Operation) entity {
	e := entity{present: true, version: m.head.index, expiresAt: op.ExpiresAt, value: op.Value}
	if e.expired(m.head.time) {
		return entity{}
	}
	return e
}

// setEntity stores what an operation of the current transaction sets.
func (m *Machine) setEntity(tx Tx, scopeKey []byte, op *Operation, operation int) error {
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
	e.keep(operation, len(m.write.encodedOperations))
	m.scratch = e.append(m.scratch[:0])
	return tx.Put(TableEntities, m.entityKey(scopeKey, op.Key), m.scratch)
}

func (m *Machine) deleteEntity(tx Tx, scopeKey, key []byte) (changed bool, err error) {
	old, err := m.loadRecord(tx, scopeKey, key)
	// What has expired is absent already; its record waits for a round.
	if err != nil || !old.present || old.expired(m.head.time) {
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
	return m.putExpiry(tx, m.key)
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
