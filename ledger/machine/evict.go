package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
)

// Evictions count what the eviction passes have done since Open. No decision
// looks at them.
type Evictions struct {
	Rounds   uint64 // passes
	Full     uint64 // passes that left entries that were due
	Streams  uint64 // removed
	Entities uint64 // removed
	Keys     uint64 // keyed records removed
}

// Evictions returns the counts.
func (m *Machine) Evictions() Evictions { return m.evictions }

// actorGC is the actor of the transactions that remove expired entities. A
// credential cannot have this name, because the server sets the part before the
// colon.
const actorGC = "system:gc"

// MaxPassWork bounds the work of one eviction pass, in units of about five microseconds, whatever the configuration
// says: see entryWork. If the last pass left due entries, a pass takes up to BacklogFactor times eviction_limit.
const (
	MaxPassWork   = 5_000
	BacklogFactor = 10
)

// entryWork is what an entry of the expiry index costs a pass, by the length of
// its key and of the record that is read for it, in bytes. The record counts
// because a stream that has been written since is put back as a whole.
func entryWork(key, record int) int { return 1 + key/workKeyBytes + record/workRecordBytes }

// So many bytes of a key, or of a record, cost a unit.
const (
	workKeyBytes    = 256
	workRecordBytes = 2_048
)

// keyedWork is how many times as much the removal of a keyed record costs, because the count of
// its principal's records and up to two attachments change with it.
const keyedWork = 3

// pass is the remaining budget of an eviction pass.
type pass struct {
	entries int  // that it may still take
	work    int  // that it may still do
	more    bool // there are due entries that it does not take
}

// newPass returns the bounds of the next pass.
func (m *Machine) newPass() pass {
	p := pass{entries: int(m.head.config.EvictionLimit), work: MaxPassWork}
	if m.head.backlog {
		p.entries *= BacklogFactor
		// At least as much as commands have added since, so that a backlog never grows by what they add.
		p.entries = max(p.entries, int(m.head.added.entries))
		p.work = max(p.work, int(m.head.added.work))
	}
	return p
}

// take counts an entry in and reports whether it fits into the pass. It sets
// more otherwise, so that the next pass takes a larger share.
func (p *pass) take(work int) bool {
	if p.entries == 0 || work > p.work {
		p.more = true
		return false
	}
	p.entries--
	p.work -= work
	return true
}

// evict is one pass: it takes due entries from the expiry index, streams before
// entities before keyed records, up to its bounds. It runs after the same command on
// every node, whatever log entries they got, because every node must come to the same state.
func (m *Machine) evict(tx Tx) error {
	p := m.newPass()
	queues := m.dueQueues()
	if m.head.backlog {
		if err := m.collectShares(tx, queues, p); err != nil {
			return err
		}
		p.spend(queues)
	}
	for _, q := range queues {
		if err := m.collect(tx, q, &p); err != nil {
			return err
		}
	}
	streams, future, entities, keys := queues[0].entries, queues[1].entries, queues[2].entries, queues[3].entries
	m.evictions.Rounds++
	m.evictions.Entities += uint64(len(entities))
	m.head.backlog = p.more
	if p.more {
		m.evictions.Full++
	}
	if err := m.evictStreams(tx, streams); err != nil {
		return err
	}
	if err := m.bringBack(tx, future); err != nil {
		return err
	}
	if err := m.expireEntities(tx, entities); err != nil {
		return err
	}
	if err := m.evictKeyed(tx, keys); err != nil {
		return err
	}
	m.head.added = indexGrowth{}
	return nil
}

// dueQueue is a part of the expiry index from which a pass takes what is due, in the order of the index.
type dueQueue struct {
	kind    byte
	from    []byte                     // where the walk continues
	ended   bool                       // nothing more is due
	due     func(unixNanos int64) bool // the first entry that is not ends the queue
	cursor  bool                       // the walk begins at the cursor of the kind, and moves it
	entries []expiryEntry              // taken
	work    int                        // of these
}

// dueQueues returns what a pass looks at, in its order: streams that may have been idle for too long, streams that
// the index has under a time that has not come yet, entities and keyed records.
func (m *Machine) dueQueues() []*dueQueue {
	now, idle := m.head.time, m.head.time-m.head.config.ClientTTL
	ended := func(t int64) bool { return t <= now }
	future := appendExpiryKey(nil, expiryStream, now+1, nil)
	queues := []*dueQueue{
		// A stream that is indexed before this is due.
		{kind: expiryStream, cursor: true, due: func(t int64) bool { return t < idle }},
		// Only an epoch that has set ledger time back leaves streams in the future.
		{kind: expiryStream, due: func(int64) bool { return true }, from: future,
			ended: m.head.timeSetBackFrom() <= now},
		{kind: expiryEntity, cursor: true, due: ended},
		{kind: expiryKeyed, cursor: true, due: ended},
	}
	for _, q := range queues {
		if q.cursor && !q.ended {
			var any bool
			q.from, any = m.cursor.from(q.kind)
			q.ended = !any
		}
	}
	return queues
}

// collectShares takes from each queue what fits into an equal part of a pass. What is left of the pass goes to the
// queues in their order. So a lasting backlog of one kind holds up no other: a client that sets expiring
// entities faster than passes remove them must not keep the keyed records of another one in the state.
func (m *Machine) collectShares(tx Tx, queues []*dueQueue, p pass) error {
	for _, q := range queues {
		share := pass{entries: p.entries / len(queues), work: p.work / len(queues)}
		if err := m.collect(tx, q, &share); err != nil {
			return err
		}
	}
	return nil
}

// spend takes off what the queues have taken.
func (p *pass) spend(queues []*dueQueue) {
	for _, q := range queues {
		p.entries -= len(q.entries)
		p.work -= q.work
	}
}

// expiryEntry is one entry of the expiry index, copied out of it.
type expiryEntry struct {
	indexKey []byte
	key      []byte
}

func sortByKey(entries []expiryEntry) {
	slices.SortFunc(entries, func(a, b expiryEntry) int { return bytes.Compare(a.key, b.key) })
}

// cursors holds, by kind, a key that no entry of the expiry index comes before; nil is not known.
// It spares a pass the deleted keys at the front of the index, and never decides what a pass
// takes.
type cursors [expiryKinds][]byte

// from returns where a walk over a kind begins, or false if the kind has no entries: a walk would then step over the
// deleted keys of the next kinds.
func (c *cursors) from(kind byte) (key []byte, any bool) {
	switch key := c[kind]; {
	case key == nil:
		return []byte{kind}, true
	default:
		return key, key[0] == kind
	}
}

// collect takes due entries of a queue, up to the bounds of the pass. A walk begins at the
// cursor, because a store may have to step over every deleted key until
// it writes a checkpoint; the answer is the same from wherever it begins before
// the first key.
func (m *Machine) collect(tx Tx, q *dueQueue, p *pass) error {
	if q.ended {
		return nil
	}
	var failed error
	var copies []byte          // of keys; one allocation for many
	rest := []byte{q.kind + 1} // of the index, after what was taken
	full := false
	err := tx.Ascend(TableExpiry, q.from, func(k, _ []byte) bool {
		kind, t, key, err := splitExpiryKey(k)
		if failed = err; err != nil || kind != q.kind {
			return false
		}
		work := 0
		taken := q.due(t)
		if taken {
			if work, failed = m.entryWork(tx, kind, key); failed != nil {
				return false
			}
			taken = p.take(work)
			full = !taken
		}
		if !taken {
			// A copy, because rest becomes the cursor, and k is valid only until the next Put or Delete.
			rest = bytes.Clone(k)
			return false
		}
		if cap(copies)-len(copies) < len(k) {
			copies = make([]byte, 0, max(len(k), 1<<14))
		}
		copies = append(copies, k...)
		indexKey := copies[len(copies)-len(k) : len(copies) : len(copies)]
		q.entries = append(q.entries, expiryEntry{indexKey, indexKey[len(k)-len(key):]})
		q.work += work
		return true
	})
	q.from, q.ended = rest, !full
	if q.cursor {
		m.cursor[q.kind] = rest
	}
	return firstErr(err, failed)
}

// entryWork returns what an entry costs. The lengths come from the state, so
// that every node counts the same work.
func (m *Machine) entryWork(r Reader, kind byte, key []byte) (int, error) {
	if kind == expiryEntity {
		return entryWork(len(key), 0), nil
	}
	table := TableStreams
	if kind == expiryKeyed {
		table = TableKeyed
	}
	record, err := r.Get(table, key)
	work := entryWork(len(key), len(record))
	if kind == expiryKeyed {
		work *= keyedWork
	}
	return work, err
}

// bringBack puts streams that the index has under a time that has not come yet where they belong:
// an epoch has set ledger time back since. They count as seen now.
func (m *Machine) bringBack(tx Tx, entries []expiryEntry) error {
	for _, e := range entries {
		record, err := tx.Get(TableStreams, e.key)
		if err == nil && record == nil {
			err = missingStream(e.key)
		}
		if err != nil {
			return err
		}
		if err := m.reindexStream(tx, record, e); err != nil {
			return err
		}
	}
	return nil
}

func missingStream(key []byte) error {
	return fmt.Errorf("%w: the expiry index has stream %x, which is not there", ErrCorrupt, key)
}

// indexGrowth is what commands have added to the expiry index since the last pass, as
// a pass that removes it again will count it. What replaces another entry counts as well.
type indexGrowth struct{ entries, work uint64 }

// addExpiry adds an entry for something that a command has made.
func (m *Machine) addExpiry(tx Tx, key []byte) error {
	m.head.added.count(key)
	return m.putExpiry(tx, key)
}

// count adds an entry of the index. The length of the record is left out, because the record is written
// after its entry.
func (g *indexGrowth) count(key []byte) {
	work := entryWork(len(key)-expiryKeyHead, 0)
	if key[0] == expiryKeyed {
		work *= keyedWork
	}
	g.entries++
	g.work += uint64(work)
}

// passDue counts the command and reports whether an eviction pass follows it. The
// interval is read after the command has taken effect, because the command may be
// the one that changes it.
func (m *Machine) passDue() bool {
	m.head.sincePass++
	// While there is a backlog, a pass follows once commands have added as much work as a pass does. Otherwise a
	// client could add more in each interval than a pass removes.
	overdue := m.head.backlog && m.head.added.work >= MaxPassWork
	if m.head.sincePass < m.head.config.EvictionInterval && !overdue {
		return false
	}
	m.head.sincePass = 0
	return true
}

// putExpiry adds an entry to the index. An entity that was born expired may
// come before the cursor, which moves back then, because a walk from the cursor
// would never find the entry.
func (m *Machine) putExpiry(tx Tx, key []byte) error {
	if cursor := m.cursor[key[0]]; bytes.Compare(key, cursor) < 0 {
		m.cursor[key[0]] = bytes.Clone(key)
	}
	return tx.Put(TableExpiry, key, nil)
}

// evictStreams removes the streams that are idle for longer than the TTL, in
// the order of their keys. The others were written since they were indexed:
// they go back under their true time.
func (m *Machine) evictStreams(tx Tx, entries []expiryEntry) error {
	due := m.head.time - m.head.config.ClientTTL
	sortByKey(entries)
	var organization []byte // of the streams removed since it was counted; they are neighbours
	removed := 0
	for _, e := range entries {
		b, err := tx.Get(TableStreams, e.key)
		if err != nil {
			return err
		}
		if b == nil {
			return missingStream(e.key)
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

// removeStream removes a stream. The caller counts it, because neighbours of
// one organization are counted together.
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
	m.stream.lastSeen = min(m.stream.lastSeen, m.head.time) // it is later only after an epoch
	m.stream.indexed = m.stream.lastSeen
	m.key = appendExpiryKey(m.key[:0], expiryStream, m.stream.indexed, e.key)
	if err := m.putExpiry(tx, m.key); err != nil {
		return err
	}
	m.scratch = m.stream.append(m.scratch[:0])
	return tx.Put(TableStreams, e.key, m.scratch)
}

// expireEntities removes expired entities by transactions of their own, so that
// the blocks tell what has left the state: one for each scope, and one more for
// every MaxOperations. Each takes a ledger index, which counts as no command.
func (m *Machine) expireEntities(tx Tx, entries []expiryEntry) error {
	sortByKey(entries)
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
	m.transaction = t.append(m.transaction[:0], operations)
	head := len(m.transaction) - len(operations) + uvarintLength(len(t.Operations))
	leaf, _ := m.addTransaction(b, t.Index, head, nil)
	m.digestEvent(digestTagExpiry, leaf[:])
	return m.closeLongBlocks(tx)
}
