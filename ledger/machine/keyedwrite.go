package machine

import (
	"encoding/binary"

	"github.com/seqledger/seqledger/internal/keyed"
)

// KeyedWrite asks for one write that commits once for its key. It belongs to no
// stream and has no sequence.
type KeyedWrite struct {
	ID       KeyedID
	ClientID string // may be empty
	Actor    string
	TTL      int64 // nanoseconds of ledger time that the key is known for
	// MaxKeys is how many keyed records the principal may have in the scope.
	MaxKeys    uint64
	Operations []Operation // 1–1,000
}

// AppendKeyedWrite appends a keyed write, which must be valid (see
// KeyedWrite.Validate).
func AppendKeyedWrite(dst []byte, w *KeyedWrite) []byte {
	dst = append(dst, byte(commandKeyedWrite))
	dst = appendKeyedID(dst, &w.ID)
	dst = appendBytes(dst, w.ClientID)
	dst = appendBytes(dst, w.Actor)
	dst = binary.AppendUvarint(dst, uint64(w.TTL))
	dst = binary.AppendUvarint(dst, w.MaxKeys)
	return appendOperations(dst, w.Operations)
}

// keyedWriteCommand is a decoded KeyedWrite. Its slices alias the log entry.
type keyedWriteCommand struct {
	id      keyedID
	ttl     int64
	maxKeys uint64
	write   writeCommand // without session, sequence and key
}

func (c *keyedWriteCommand) decode(d *decoder) {
	c.id = d.keyedID()
	w := &c.write
	w.organization, w.vault = c.id.organization, c.id.vault
	w.clientID, w.actor = d.bytes(), d.bytes()
	c.ttl, c.maxKeys = d.duration(), d.uvarint()
	w.decodeOperations(d)
}

// applyKeyedWrite decides a keyed write. The key belongs to the first request that used it until its record expires.
func (m *Machine) applyKeyedWrite(tx Tx, c *keyedWriteCommand, out *Outcome) (*Hash, error) {
	m.setKeyedKey(&c.id)
	hash := hashOperations(c.write.encodedOperations)
	before, err := loadKeyed(tx, m.keyedKey)
	if err != nil {
		return nil, err
	}
	if before.record().Live(m.head.time) {
		return nil, m.answerKeyedWrite(tx, before, hash, out)
	}
	if before == nil {
		full, err := m.principalFull(tx, c.maxKeys)
		if err != nil {
			return nil, err
		}
		if full {
			out.Code = TooManyKeys
			return nil, nil
		}
	}
	scopeKey := appendScope(m.streamKey[:0], c.id.organization, c.id.vault)
	m.streamKey = scopeKey
	if err := m.checkConditions(tx, scopeKey, c.write.operations, out); err != nil || out.Code != 0 {
		return nil, err
	}
	leaf, err := m.commitWrite(tx, &c.write, &c.id, scopeKey, 0, hash, out)
	if err != nil {
		return nil, err
	}
	next := &keyed.Record{
		State: keyed.Written, Token: m.head.index, Fingerprint: keyed.Fingerprint{Digest: writtenDigest(hash)},
		TTL:     c.ttl,
		Created: m.head.time, Completed: m.head.time, Expires: m.head.time + c.ttl, Past: before.past(m.head.time),
	}
	_, err = m.changeKeyed(tx, before, next, false)
	return leaf, err
}

// answerKeyedWrite answers a write whose key is known.
func (m *Machine) answerKeyedWrite(r Reader, known *keyedEntry, hash RequestHash, out *Outcome) error {
	if known.State != keyed.Written || known.Fingerprint.Digest != writtenDigest(hash) {
		out.Code = IdempotencyKeyReused
		return nil
	}
	if known.Token < m.head.retention.horizon {
		out.Code = AlreadyCommitted
		out.Receipt.LedgerID, out.Receipt.Index = m.head.ledgerIDAt(known.Token), known.Token
		return nil
	}
	receipt, err := m.receiptAt(r, known.Token)
	if err == nil {
		out.Code = replay(receipt, out)
	}
	return err
}

// receiptAt reads the receipt of the transaction that took an index, which must be
// there.
func (m *Machine) receiptAt(r Reader, index uint64) (Receipt, error) {
	if t, height, pending := m.findPending(index); pending {
		return t.receipt(height)
	}
	l, found, err := locate(r, index)
	if err != nil {
		return Receipt{}, err
	}
	if !found {
		return Receipt{}, missingReceipt(0, index)
	}
	return l.stored.receipt(l.header.Height)
}

// writtenDigest is how a record of a keyed write has the request hash.
func writtenDigest(hash RequestHash) (digest [32]byte) {
	copy(digest[:], hash[:])
	return digest
}

// past returns the attempts that a record keeps, when another life of its key
// begins.
func (e *keyedEntry) past(now int64) []keyed.PastAttempt {
	if e == nil {
		return nil
	}
	return e.PastAttempts(now)
}
