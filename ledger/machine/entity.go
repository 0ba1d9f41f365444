package machine

import (
	"encoding/binary"
	"fmt"
)

const entityVersion = 1

// entity is a key's value as the state has it. The zero value is an absent
// one.
type entity struct {
	present   bool
	version   uint64
	expiresAt int64 // 0: never
	value     []byte
}

func (e *entity) append(dst []byte) []byte {
	dst = append(dst, entityVersion)
	dst = binary.AppendUvarint(dst, e.version)
	dst = binary.AppendUvarint(dst, uint64(e.expiresAt))
	return append(dst, e.value...)
}

func decodeEntity(b []byte) (entity, error) {
	d := decoder{rest: b}
	d.version(entityVersion)
	e := entity{present: true, version: d.uvarint(), expiresAt: int64(d.uvarint())}
	e.value = d.rest
	if d.bad || e.expiresAt < 0 {
		return entity{}, fmt.Errorf("%w: entity record", ErrCorrupt)
	}
	return e, nil
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

// newEntity returns the entity that a set makes at the current index. One that
// is born expired is absent at once.
func (m *Machine) newEntity(op *Operation) entity {
	e := entity{present: true, version: m.head.index, expiresAt: op.ExpiresAt, value: op.Value}
	if e.expired(m.head.time) {
		return entity{}
	}
	return e
}

func (m *Machine) setEntity(tx Tx, scopeKey []byte, op *Operation) error {
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
