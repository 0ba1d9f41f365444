package machine

import (
	"bytes"
	"fmt"
	"math"
)

// loadStream reads the stream of a command into m.stream and its key into
// m.streamKey, which every write uses again so that none allocates.
func (m *Machine) loadStream(r Reader, organization, vault, clientID []byte) (found bool, err error) {
	m.streamKey = appendScope(m.streamKey[:0], organization, vault)
	m.scopeLength = len(m.streamKey)
	m.streamKey = append(m.streamKey, clientID...)
	b, err := r.Get(TableStreams, m.streamKey)
	if err != nil {
		return false, err
	}
	if b == nil {
		empty := window{fingerprints: m.stream.window.fingerprints[:0], deltas: m.stream.window.deltas[:0]}
		m.stream = stream{attempts: m.stream.attempts[:0], window: empty}
		return false, nil
	}
	return true, m.stream.decode(b)
}

// applyWrite decides a write: the rules in their order, the first that matches
// decides. Rules 1–10 change nothing (invariant 4).
func (m *Machine) applyWrite(tx Tx, c *writeCommand, out *Outcome) (*Hash, error) {
	found, err := m.loadStream(tx, c.organization, c.vault, c.clientID)
	if err != nil {
		return nil, err
	}
	s := &m.stream
	out.CreatedIndex, out.Last, out.Session = s.created, s.last, s.session

	if out.Code = m.checkSession(s, found, c.session); out.Code != 0 { // rules 1–3
		return nil, nil
	}
	hash := hashOperations(c.encodedOperations)
	if out.Code, err = m.checkDuplicate(tx, s, c, hash, out); err != nil || out.Code != 0 { // rules 4–6
		return nil, err
	}
	switch {
	case c.sequence == math.MaxUint64: // rule 7
		out.Code = SequenceExhausted
		return nil, nil
	case c.sequence > s.last+1: // rule 8
		out.Code = SequenceGap
		return nil, nil
	}
	if !found { // rule 9
		full, err := m.organizationFull(tx, c.organization)
		if err != nil {
			return nil, err
		}
		if full {
			out.Code = TooManyStreams
			return nil, nil
		}
	}
	scopeKey := m.streamKey[:m.scopeLength]
	if err := m.checkConditions(tx, scopeKey, c.operations, out); err != nil || out.Code != 0 { // rule 10
		return nil, err
	}
	return m.commit(tx, c, found, hash, out) // rule 11
}

// checkSession is rules 1–3; it returns 0 when none of them matches. A session
// from before the current epoch has expired wherever its number stands, because
// the ledger that gave it out may have gone on elsewhere.
func (m *Machine) checkSession(s *stream, found bool, session uint64) Code {
	switch {
	case session != 0 && (!found || session > s.session || session < m.head.epochStart()):
		return SessionExpired
	case session != 0 && session < s.session:
		return SessionFenced
	case session == 0 && s.session != 0:
		return SessionRequired
	}
	return 0
}

// checkDuplicate is rules 4–6; it returns 0 when none of them matches.
func (m *Machine) checkDuplicate(tx Tx, s *stream, c *writeCommand, hash RequestHash, out *Outcome) (Code, error) {
	if c.sequence <= s.last {
		slot, ok := m.head.slot(s, c.sequence)
		if !ok {
			out.CommittedSequence = c.sequence
			return AlreadyCommitted, nil // rule 5
		}
		r, err := m.windowReceipt(tx, s, slot, c.sequence)
		if err != nil {
			return 0, err
		}
		out.CommittedSequence = c.sequence
		switch {
		case r.Answers(c.key, hash):
			return replay(r, out), nil
		case r.Key == c.key && c.key.Present:
			return IdempotencyKeyReused, nil
		}
		return SequenceReused, nil
	}
	fingerprint := m.head.fingerprint(c.key)
	if fingerprint == 0 {
		return 0, nil
	}
	for i := range s.visible(m.head.config.ReceiptWindow) {
		if s.window.fingerprint(i) != fingerprint {
			continue
		}
		slot := s.window.slot(i)
		if slot.index < m.head.retention.horizon {
			break // as are all that follow
		}
		r, err := m.windowReceipt(tx, s, slot, s.last-i)
		if err != nil {
			return 0, err
		}
		if r.Key != c.key {
			continue // another key with the same fingerprint
		}
		out.CommittedSequence = r.Sequence
		if r.RequestHash == hash {
			return replay(r, out), nil
		}
		return IdempotencyKeyReused, nil
	}
	return 0, nil
}

func replay(r Receipt, out *Outcome) Code {
	out.Receipt = r
	out.Receipt.Replayed = true
	return Replayed
}

// windowReceipt reads the receipt of a window slot, which must be there, because a
// stream that points at nothing is damage.
func (m *Machine) windowReceipt(r Reader, s *stream, slot windowSlot, sequence uint64) (Receipt, error) {
	if t, height, pending := m.findPending(slot.index); pending {
		return t.windowReceipt(height, s, sequence)
	}
	return readWindowReceipt(r, s, slot, sequence)
}

// readWindowReceipt is windowReceipt for what is in a closed block.
func readWindowReceipt(r Reader, s *stream, slot windowSlot, sequence uint64) (Receipt, error) {
	l, found, err := locate(r, slot.index)
	if err != nil {
		return Receipt{}, err
	}
	if !found {
		return Receipt{}, missingReceipt(sequence, slot.index)
	}
	return l.stored.windowReceipt(l.header.Height, s, sequence)
}

// windowReceipt is receipt for a transaction that a stream's window has under a
// sequence.
func (t *storedTransaction) windowReceipt(height uint64, s *stream, sequence uint64) (Receipt, error) {
	x, operations, err := t.decodeHead(height)
	if err != nil {
		return Receipt{}, err
	}
	if x.Sequence != sequence || x.CreatedIndex != s.created {
		return Receipt{}, missingReceipt(sequence, x.Index)
	}
	return t.receiptOf(x, operations)
}

func missingReceipt(sequence, index uint64) error {
	return fmt.Errorf("%w: no receipt of sequence %d at ledger index %d", ErrCorrupt, sequence, index)
}

// commit is rule 11: transaction, entities, relationships, receipt and stream
// entry change together.
func (m *Machine) commit(tx Tx, c *writeCommand, found bool, hash RequestHash, out *Outcome) (*Hash, error) {
	s := &m.stream
	if !found {
		if err := m.createStream(tx, c.organization); err != nil {
			return nil, err
		}
	}
	leaf, err := m.commitWrite(tx, c, nil, m.streamKey[:m.scopeLength], s.created, hash, out)
	if err != nil {
		return nil, err
	}
	s.push(windowSlot{m.head.index, m.head.fingerprint(c.key)}, m.head.config.ReceiptWindow)
	s.lastSeen = m.head.time
	if err := m.putStream(tx); err != nil {
		return nil, err
	}
	out.CreatedIndex, out.Last, out.CommittedSequence = s.created, s.last, c.sequence
	return leaf, nil
}

// commitWrite commits the operations of a write and makes its transaction. Keyed
// is the identity of a keyed write, nil for one of a stream.
func (m *Machine) commitWrite(
	tx Tx, c *writeCommand, keyed *keyedID, scopeKey []byte, created uint64, hash RequestHash, out *Outcome,
) (*Hash, error) {
	b, err := m.builder(tx, scopeKey)
	if err != nil {
		return nil, err
	}
	versions, changed, err := m.applyOperations(tx, scopeKey, c)
	if err != nil {
		return nil, err
	}
	m.transaction = appendCommandTransaction(m.transaction[:0], &m.head, c, keyed, created, hash)
	head := len(m.transaction) - len(c.encodedOperations) + c.countLength
	leaf, position := m.addTransaction(b, m.head.index, head, changed)
	out.Code = Committed
	out.Receipt = Receipt{
		LedgerID: m.head.ledgerID(), Sequence: c.sequence, Session: c.session, Index: m.head.index,
		BlockHeight: b.chain.height + 1, Position: position, CommittedAt: m.head.time, Actor: m.actor(c.actor),
		RequestHash: hash, Key: c.key, Versions: versions,
	}
	return &leaf, nil
}

// actor returns the actor as a string. Nearly always it is the one of the
// command before, so that no new string is made.
func (m *Machine) actor(b []byte) string {
	if m.lastActor != string(b) {
		m.lastActor = string(b)
	}
	return m.lastActor
}

// createStream begins a stream at the current index. The caller writes the
// record.
func (m *Machine) createStream(tx Tx, organization []byte) error {
	s := &m.stream
	s.created, s.lastSeen, s.indexed = m.head.index, m.head.time, m.head.time
	if err := m.countStreams(tx, organization, 1); err != nil {
		return err
	}
	m.key = appendExpiryKey(m.key[:0], expiryStream, s.indexed, m.streamKey)
	return m.addExpiry(tx, m.key)
}

func (m *Machine) putStream(tx Tx) error {
	m.scratch = m.stream.append(m.scratch[:0])
	return tx.Put(TableStreams, m.streamKey, m.scratch)
}

// checkConditions is rule 10: it looks at the state with the earlier
// operations of the same write in place, and changes nothing.
func (m *Machine) checkConditions(r Reader, scopeKey []byte, ops []Operation, out *Outcome) error {
	// The effects of earlier operations of this write. The map is never ranged over, because its order must not
	// decide anything.
	var earlier map[string]entity
	// One reader does for all conditions, because nothing is put while they are checked.
	m.values = valueReader{r: r}
	defer func() { m.values = valueReader{} }()
	for i := range ops {
		op := &ops[i]
		if op.Kind != OpSetEntity && op.Kind != OpDeleteEntity {
			continue
		}
		if op.Condition.Kind != ConditionNone {
			e, ok := earlier[string(op.Key)]
			if !ok {
				var err error
				if e, err = m.conditionEntity(r, scopeKey, op.Key, &op.Condition); err != nil {
					return err
				}
			}
			if code := op.Condition.check(&e); code != 0 {
				out.Code, out.OperationIndex = code, i
				out.EntityKey, out.CurrentVersion = bytes.Clone(op.Key), e.version
				return nil
			}
		}
		if i < len(ops)-1 {
			if earlier == nil {
				earlier = make(map[string]entity)
			}
			after := entity{} // absent
			if op.Kind == OpSetEntity {
				after = m.newEntity(op)
			}
			earlier[string(op.Key)] = after
		}
	}
	return nil
}

// check returns the code that a condition refuses an entity with, or 0.
func (c *Condition) check(e *entity) Code {
	switch {
	case c.Kind == ConditionNotExists && e.present:
		return KeyExists
	case c.Kind == ConditionNotExists:
		return 0
	case !e.present:
		return KeyNotFound
	case c.Kind == ConditionVersion && e.version != c.Version:
		return VersionMismatch
	case c.Kind == ConditionValueEquals && !bytes.Equal(e.value, c.Value):
		return ValueMismatch
	}
	return 0
}

// applyOperations changes entities and relationships. It returns the versions
// for the receipt, and a bitmap of the operations that changed something, or
// nil when all did.
func (m *Machine) applyOperations(
	tx Tx, scopeKey []byte, c *writeCommand,
) (versions []uint64, changed []byte, err error) {
	ops := c.operations
	versions = m.newVersions(len(ops))
	all := true
	for i := range ops {
		did, err := m.applyOperation(tx, scopeKey, c, i)
		if err != nil {
			return nil, nil, err
		}
		if did {
			versions[i] = m.head.index
		}
		all = all && did
	}
	if all {
		return versions, nil, nil
	}
	m.changed = appendChanged(m.changed[:0], versions)
	return versions, m.changed, nil
}

// newVersions hands out slices of a shared array, which nearly always spares
// an allocation for each write.
func (m *Machine) newVersions(n int) []uint64 {
	if len(m.versions) < n {
		m.versions = make([]uint64, max(n, 256))
	}
	v := m.versions[:n:n]
	m.versions = m.versions[n:]
	return v
}

func (m *Machine) applyOperation(tx Tx, scopeKey []byte, c *writeCommand, i int) (changed bool, err error) {
	switch op := &c.operations[i]; op.Kind {
	case OpSetEntity:
		return true, m.setEntity(tx, scopeKey, c, i)
	case OpDeleteEntity:
		return m.deleteEntity(tx, scopeKey, op.Key)
	case OpCreateRelationship, OpDeleteRelationship:
		return m.changeRelationship(tx, scopeKey, op)
	case OpAppend, OpExpireEntity: // the transaction itself is the change
		return true, nil
	}
	return false, fmt.Errorf("%w: operation of unknown kind %d", ErrCorrupt, c.operations[i].Kind)
}
