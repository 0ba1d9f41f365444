package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
)

// Evictions count what the rounds of eviction have done since Open. No decision
// looks at them.
type Evictions struct {
	Rounds   uint64
	Full     uint64 // rounds that reached eviction_limit, so that more may be due
	Streams  uint64 // removed
	Entities uint64 // removed
}

// Evictions returns the counts.
func (m *Machine) Evictions() Evictions { return m.evictions }

// actorGC is who removes expired entities.
const actorGC = "system:gc"

// evict is one round: it takes at most eviction_limit entries from the expiry
// index, streams before entities. It runs at an exact ledger index, so that
// every node evicts the same whatever log entries it got.
func (m *Machine) evict(tx Tx) error {
	limit := int(m.head.config.EvictionLimit)
	due := m.head.time - m.head.config.ClientTTL // a stream indexed before this is due
	streams, err := m.collectDue(tx, expiryStream, limit, func(t int64) bool { return t < due })
	if err != nil {
		return err
	}
	if err := m.evictStreams(tx, streams, due); err != nil {
		return err
	}
	now := m.head.time
	entities, err := m.collectDue(tx, expiryEntity, limit-len(streams), func(t int64) bool { return t <= now })
	if err != nil {
		return err
	}
	m.evictions.Rounds++
	if len(streams)+len(entities) == limit {
		m.evictions.Full++
	}
	m.evictions.Entities += uint64(len(entities))
	return m.expireEntities(tx, entities)
}

// expiryEntry is one entry of the expiry index, copied out of it.
type expiryEntry struct {
	indexKey []byte
	key      []byte
}

// collectDue takes up to limit due entries of a kind from the front of the
// index. It begins behind what earlier rounds took, because a store may have to
// step over every deleted key until it writes a checkpoint; the answer is the
// same from wherever it begins before the first key.
func (m *Machine) collectDue(tx Tx, kind byte, limit int, due func(unixNanos int64) bool) (entries []expiryEntry, err error) {
	if limit == 0 {
		return nil, nil
	}
	from := m.swept[kind]
	if from == nil {
		from = []byte{kind}
	}
	var damage error
	var copies []byte // of keys; one allocation for many
	err = tx.Ascend(TableExpiry, from, func(k, _ []byte) bool {
		entryKind, t, key, err := splitExpiryKey(k)
		if damage = err; err != nil || entryKind != kind || !due(t) {
			return false
		}
		if cap(copies)-len(copies) < len(k) {
			copies = make([]byte, 0, max(len(k), 1<<14))
		}
		copies = append(copies, k...)
		indexKey := copies[len(copies)-len(k) : len(copies) : len(copies)]
		entries = append(entries, expiryEntry{indexKey, indexKey[len(k)-len(key):]})
		return len(entries) < limit
	})
	if err == nil {
		err = damage
	}
	if len(entries) > 0 {
		m.swept[kind] = entries[len(entries)-1].indexKey // about to be deleted
	}
	return entries, err
}

// putExpiry adds an entry to the index. One that comes before what has been
// swept, as an entity that was born expired does, moves the sweep back.
func (m *Machine) putExpiry(tx Tx, key []byte) error {
	if swept := m.swept[key[0]]; bytes.Compare(key, swept) < 0 {
		m.swept[key[0]] = bytes.Clone(key)
	}
	return tx.Put(TableExpiry, key, nil)
}

// evictStreams removes the streams that are idle for longer than the TTL, in
// the order of their keys. The others were written since they were indexed:
// they go back under their true time.
func (m *Machine) evictStreams(tx Tx, entries []expiryEntry, due int64) error {
	slices.SortFunc(entries, func(a, b expiryEntry) int { return bytes.Compare(a.key, b.key) })
	var organization []byte // of the streams removed since it was counted; they are neighbours
	removed := 0
	for _, e := range entries {
		b, err := tx.Get(TableStreams, e.key)
		if err != nil {
			return err
		}
		if b == nil {
			return fmt.Errorf("%w: the expiry index has stream %x, which is not there", ErrCorrupt, e.key)
		}
		created, lastSeen, err := decodeStreamLife(b)
		if err != nil {
			return err
		}
		if lastSeen >= due {
			if err := m.reindexStream(tx, b, e); err != nil {
				return err
			}
			continue
		}
		if o := organizationPart(e.key); !bytes.Equal(o, organization) {
			if err := m.countStreams(tx, organization, -removed); err != nil {
				return err
			}
			organization, removed = o, 0
		}
		removed++
		if err := m.removeStream(tx, e, created); err != nil {
			return err
		}
	}
	return m.countStreams(tx, organization, -removed)
}

// removeStream leaves the stream to be counted.
func (m *Machine) removeStream(tx Tx, e expiryEntry, created uint64) error {
	if err := tx.Delete(TableExpiry, e.indexKey); err != nil {
		return err
	}
	if err := tx.Delete(TableStreams, e.key); err != nil {
		return err
	}
	m.evictions.Streams++
	m.scratch = binary.AppendUvarint(append(m.scratch[:0], e.key...), created)
	m.digestEvent(digestTagEviction, m.scratch)
	return nil
}

func (m *Machine) reindexStream(tx Tx, record []byte, e expiryEntry) error {
	if err := m.stream.decode(record); err != nil {
		return err
	}
	if err := tx.Delete(TableExpiry, e.indexKey); err != nil {
		return err
	}
	m.stream.indexed = m.stream.lastSeen
	m.key = appendExpiryKey(m.key[:0], expiryStream, m.stream.indexed, e.key)
	if err := m.putExpiry(tx, m.key); err != nil {
		return err
	}
	m.scratch = m.stream.append(m.scratch[:0])
	return tx.Put(TableStreams, e.key, m.scratch)
}

// expireEntities removes expired entities by transactions of their own: one
// for each scope, and one more for every MaxOperations. Each takes a ledger
// index, which never starts a round itself.
func (m *Machine) expireEntities(tx Tx, entries []expiryEntry) error {
	slices.SortFunc(entries, func(a, b expiryEntry) int { return bytes.Compare(a.key, b.key) })
	for len(entries) > 0 {
		scopeKey, err := scopePart(entries[0].key)
		if err != nil {
			return err
		}
		n := 1
		for n < len(entries) && n < MaxOperations && bytes.HasPrefix(entries[n].key, scopeKey) {
			n++
		}
		if err := m.expireInScope(tx, scopeKey, entries[:n]); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

func (m *Machine) expireInScope(tx Tx, scopeKey []byte, entries []expiryEntry) error {
	b, err := m.builder(tx, scopeKey)
	if err != nil {
		return err
	}
	m.head.index++
	t := Transaction{
		LedgerID: m.head.ledgerID(), Index: m.head.index, CommittedAt: m.head.time, Scope: b.scope, Actor: actorGC,
	}
	for _, e := range entries {
		t.Operations = append(t.Operations, Operation{Kind: OpExpireEntity, Key: e.key[len(scopeKey):]})
		if err := tx.Delete(TableExpiry, e.indexKey); err != nil {
			return err
		}
		record, err := tx.Get(TableEntities, e.key)
		if err != nil {
			return err
		}
		if record == nil {
			return fmt.Errorf("%w: the expiry index has entity %x, which is not there", ErrCorrupt, e.key)
		}
		if err := tx.Delete(TableEntities, e.key); err != nil {
			return err
		}
	}
	operations := appendOperations(nil, t.Operations)
	t.RequestHash = hashOperations(operations)
	m.transaction = t.append(append(m.transaction[:0], leafPrefix), operations)
	leaf, _ := m.addTransaction(b, t.Index, nil)
	m.digestEvent(digestTagExpiry, leaf[:])
	return nil
}
