package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// View reads the state as of one ledger index. It is valid as long as the
// Reader that it was made from. What its methods return is copied and stays
// valid.
type View struct {
	r      Reader
	head   *head
	cursor *cursors // see Machine.cursor
}

// View returns a view of the state that the machine stands at. The caller
// keeps Apply from running meanwhile.
func (m *Machine) View(r Reader) View { return View{r: r, head: &m.head, cursor: &m.cursor} }

// Created tells whether the ledger has been created.
func (v View) Created() bool { return v.head.created() }

// Index returns the ledger index.
func (v View) Index() uint64 { return v.head.index }

// Time returns the ledger time in Unix nanoseconds.
func (v View) Time() int64 { return v.head.time }

// LongestPause returns the longest step of ledger time so far, in nanoseconds.
func (v View) LongestPause() int64 { return v.head.longestPause }

// Level returns the format level of the ledger; see [Level].
func (v View) Level() uint64 { return v.head.level }

// CommandsToPass returns how many commands are missing to the next eviction
// pass, at least 1.
func (v View) CommandsToPass() uint64 {
	c, interval := v.head, v.head.config.EvictionInterval
	if c.level == 1 {
		return interval - c.index%interval
	}
	return interval - min(c.sincePass, interval-1)
}

// Due tells whether an eviction pass at a ledger time would find anything.
func (v View) Due(unixNanos int64) (bool, error) {
	for kind, before := range []int64{
		expiryStream: unixNanos - v.head.config.ClientTTL, expiryEntity: unixNanos + 1, expiryKeyed: unixNanos + 1,
	} {
		due := false
		var failed error
		from, any := v.cursor.from(byte(kind))
		if !any {
			continue
		}
		err := v.r.Ascend(TableExpiry, from, func(k, _ []byte) bool {
			entryKind, t, _, err := splitExpiryKey(k)
			due, failed = err == nil && entryKind == byte(kind) && t < before, err
			return false
		})
		if err := firstErr(err, failed); err != nil || due {
			return due, err
		}
	}
	return false, nil
}

// Digest returns the running digest at Index.
func (v View) Digest() Hash { return v.head.digest }

// Streams returns the number of streams in all organizations.
func (v View) Streams() uint64 { return v.head.streams }

// Config returns the replicated configuration.
func (v View) Config() Config { return v.head.config }

// LedgerID returns the id that new transactions bear. The ledger must have
// been created.
func (v View) LedgerID() LedgerID { return v.head.ledgerID() }

// TxIDAt returns the id of the transaction that took an index.
func (v View) TxIDAt(index uint64) TxID { return NewTxID(v.head.ledgerIDAt(index), index) }

// ErrNotFound is returned for what is not in the ledger.
var ErrNotFound = errors.New("not found")

// Stream returns where a stream stands, and false when there is none.
func (v View) Stream(scope Scope, clientID string) (StreamState, bool, error) {
	s, found, err := v.stream(scope, clientID)
	return s.state(), found, err
}

func (v View) stream(scope Scope, clientID string) (s stream, found bool, err error) {
	b, err := v.r.Get(TableStreams, append(appendScopeKey(nil, scope), clientID...))
	if err != nil || b == nil {
		return stream{}, false, err
	}
	return s, true, s.decode(b)
}

// InWindow tells whether a write is a retry that the state may answer: its
// session is the stream's, and its sequence is in the window. It returns the
// creation index, which tells two lives of a stream apart. Buffer is scratch
// space; pass what is returned to the next call.
func (v View) InWindow(buffer []byte, w *Write) (scratch []byte, createdIndex uint64, ok bool, err error) {
	buffer = append(appendScopeKey(buffer[:0], w.Scope), w.ClientID...)
	b, err := v.r.Get(TableStreams, buffer)
	if err != nil || b == nil {
		return buffer, 0, false, err
	}
	var s stream
	d := decoder{rest: b}
	size := min(s.decodeHead(&d), v.head.config.ReceiptWindow)
	if d.bad {
		return buffer, 0, false, fmt.Errorf("%w: stream record", ErrCorrupt)
	}
	ok = w.Session == s.session && (w.Session == 0 || w.Session >= v.head.epochStart()) &&
		w.Sequence <= s.last && s.last-w.Sequence < size
	return buffer, s.created, ok, nil
}

// Replay returns the receipt that the log would answer a write with that is
// InWindow, and false when the log would refuse it.
func (v View) Replay(w *Write, hash RequestHash) (r Receipt, ok bool, err error) {
	s, found, err := v.stream(w.Scope, w.ClientID)
	if err != nil || !found {
		return r, false, err
	}
	slot, ok := s.slot(w.Sequence, v.head.config.ReceiptWindow)
	if !ok {
		return r, false, nil
	}
	if r, err = readWindowReceipt(v.r, &s, slot, w.Sequence); err != nil {
		return r, false, err
	}
	r.Replayed = true
	return r, r.Answers(w.Key, hash), nil
}

// Answers tells whether the receipt is the answer to a request with its
// sequence that bears a key and a hash: rule 4.
func (r *Receipt) Answers(key Key, hash RequestHash) bool {
	return r.RequestHash == hash && (r.Key == key || !r.Key.Present || !key.Present)
}

// SessionExpired tells whether a write of the session would be answered with
// SESSION_EXPIRED (rule 1).
func (v View) SessionExpired(s StreamState, found bool, session uint64) bool {
	return session != 0 && (!found || session > s.Session || session < v.head.epochStart())
}

// Receipts returns the receipts of a stream that are in the window, newest
// first, at most limit.
func (v View) Receipts(scope Scope, clientID string, limit int) ([]Receipt, error) {
	s, found, err := v.stream(scope, clientID)
	if err != nil || !found {
		return nil, err
	}
	var receipts []Receipt
	for i := range s.visible(v.head.config.ReceiptWindow) {
		if len(receipts) == limit {
			break
		}
		r, err := readWindowReceipt(v.r, &s, s.window.slot(i), s.last-i)
		if err != nil {
			return nil, err
		}
		receipts = append(receipts, r)
	}
	return receipts, nil
}

// NamedStream is a stream with its name.
type NamedStream struct {
	Scope    Scope
	ClientID string
	StreamState
}

// VisitStreams calls visit for the streams whose encoded key is
// greater than after, in the order of their keys, until visit returns false.
// With a scope it visits that scope alone. The key that visit gets is what a
// next page begins after.
func (v View) VisitStreams(scope *Scope, after []byte, visit func(key []byte, s NamedStream) bool) error {
	var prefix []byte
	if scope != nil {
		prefix = appendScopeKey(nil, *scope)
	}
	return v.scan(TableStreams, prefix, after, func(key, value []byte) (bool, error) {
		streamScope, clientID, err := splitScope(key)
		if err != nil {
			return false, err
		}
		var s stream
		if err := s.decode(value); err != nil {
			return false, err
		}
		return visit(bytes.Clone(key), NamedStream{streamScope, string(clientID), s.state()}), nil
	})
}

// scan visits the keys with the prefix that come after a key.
func (v View) scan(table Table, prefix, after []byte, visit func(k, value []byte) (bool, error)) error {
	from := prefix
	if len(after) > 0 && bytes.Compare(after, prefix) >= 0 {
		from = append(bytes.Clone(after), 0) // the next possible key
	}
	var failed error
	err := v.r.Ascend(table, from, func(k, value []byte) bool {
		if outside(k, prefix) {
			return false
		}
		more, err := visit(k, value)
		failed = err
		return more && err == nil
	})
	if err == nil {
		err = failed
	}
	return err
}

// Entity is a key with a value in one scope.
type Entity struct {
	Key       string
	Value     []byte
	Version   uint64 // ledger index of the last set
	ExpiresAt int64  // Unix nanoseconds of ledger time, 0 for never
}

// Entity returns an entity, or ErrNotFound.
func (v View) Entity(scope Scope, key string) (Entity, error) {
	b, err := v.r.Get(TableEntities, append(appendScopeKey(nil, scope), key...))
	if err != nil {
		return Entity{}, err
	}
	if b == nil {
		return Entity{}, ErrNotFound
	}
	e, err := decodeEntity(b)
	if err != nil {
		return Entity{}, err
	}
	if v.head.entityExpired(&e) {
		return Entity{}, ErrNotFound
	}
	return (&valueReader{r: v.r}).entity(&e, key)
}

// entity makes a copy with the value, wherever that is.
func (v *valueReader) entity(e *entity, key string) (Entity, error) {
	value, err := v.read(e, []byte(key), -1)
	return Entity{Key: key, Value: bytes.Clone(value), Version: e.version, ExpiresAt: e.expiresAt}, err
}

// maxExpiredScan bounds how many expired entities one VisitEntities steps over:
// a round of eviction may be far behind, and applying waits while a view lasts.
const maxExpiredScan = 10_000

// maxFetched bounds, for the same reason, how many bytes of blocks one
// VisitEntities reads values from.
const maxFetched = 8 << 20

// VisitEntities calls visit for the entities of a scope whose keys begin with
// prefix and are greater than after, in the order of their keys, until visit
// returns false. If resume is not empty, the visit ended early, and goes on with
// resume as after.
func (v View) VisitEntities(scope Scope, prefix, after string, visit func(Entity) bool) (resume string, err error) {
	scopeKey := appendScopeKey(nil, scope)
	from := append(bytes.Clone(scopeKey), prefix...)
	var afterKey []byte
	if after != "" {
		afterKey = append(bytes.Clone(scopeKey), after...)
	}
	expired, values := 0, valueReader{r: v.r}
	err = v.scan(TableEntities, from, afterKey, func(k, value []byte) (bool, error) {
		e, err := decodeEntity(value)
		if err != nil {
			return false, err
		}
		key := string(k[len(scopeKey):])
		if v.head.entityExpired(&e) {
			if expired++; expired == maxExpiredScan {
				resume = key
			}
			return expired < maxExpiredScan, nil
		}
		found, err := values.entity(&e, key)
		if err != nil || !visit(found) {
			return false, err
		}
		if values.fetched > maxFetched {
			resume = key
		}
		return resume == "", nil
	})
	return resume, err
}

// Relationship says that Subject has Relation to Resource.
type Relationship struct{ Resource, Relation, Subject string }

// VisitRelationships calls visit for the relationships of a scope, of one
// resource and one relation of it where these are not empty, that come after a
// key, in a stable order, until visit returns false. The key that visit gets
// is what a next page begins after.
func (v View) VisitRelationships(
	scope Scope, resource, relation string, after []byte, visit func(key []byte, r Relationship) bool,
) error {
	scopeKey := appendScopeKey(nil, scope)
	prefix := bytes.Clone(scopeKey)
	if resource != "" {
		prefix = appendRelationshipParts(prefix, []byte(resource))
		if relation != "" {
			prefix = appendRelationshipParts(prefix, []byte(relation))
		}
	}
	if len(after) > 0 {
		after = append(bytes.Clone(scopeKey), after...)
	}
	return v.scan(TableRelationships, prefix, after, func(k, _ []byte) (bool, error) {
		r, err := splitRelationship(k[len(scopeKey):])
		if err != nil {
			return false, err
		}
		return visit(bytes.Clone(k[len(scopeKey):]), r), nil
	})
}

// ChainHead returns the height and hash of the last block of a scope, zeros
// when it has none.
func (v View) ChainHead(scope Scope) (uint64, Hash, error) {
	return readChainHead(v.r, appendScopeKey(nil, scope))
}

// Block is what one log entry committed in one scope.
type Block struct {
	Header       BlockHeader
	Transactions []Transaction
}

// Block returns the block of a height, or ErrNotFound.
func (v View) Block(scope Scope, height uint64) (Block, error) {
	var block Block
	err := v.blockRecord(scope, height, func(b *blockRecord) error {
		block.Header = b.header
		var failed error
		err := b.visit(func(_ uint32, t storedTransaction) bool {
			x, err := t.decode(b.header.Height)
			failed = err
			block.Transactions = append(block.Transactions, x.clone())
			return err == nil
		})
		return firstErr(err, failed)
	})
	return block, err
}

// BlockHeader returns the header of a height, or ErrNotFound.
func (v View) BlockHeader(scope Scope, height uint64) (header BlockHeader, err error) {
	err = v.blockRecord(scope, height, func(b *blockRecord) error {
		header = b.header
		return nil
	})
	return header, err
}

func (v View) blockRecord(scope Scope, height uint64, visit func(*blockRecord) error) error {
	location, err := v.r.Get(TableHeights, appendHeightKey(nil, appendScopeKey(nil, scope), height))
	if err != nil {
		return err
	}
	if location == nil {
		return ErrNotFound
	}
	d := decoder{rest: location}
	last, place := d.take(8), d.uvarint()
	if err := d.done("block location"); err != nil {
		return err
	}
	data, err := v.r.Get(TableBlocks, last)
	if err != nil {
		return err
	}
	r, err := openRecord(last, data)
	if err != nil {
		return err
	}
	b, err := r.blockAtPlace(place)
	if err != nil {
		return err
	}
	if b.header.Height != height || b.header.Scope != scope {
		return fmt.Errorf("%w: block %d of %s is not where its height says", ErrCorrupt, height, scope)
	}
	return visit(&b)
}

// Transaction returns the transaction of an id, or ErrNotFound.
func (v View) Transaction(id TxID) (Transaction, error) {
	ledger, index := id.Parts()
	t, found, err := findTransaction(v.r, index)
	if err != nil {
		return Transaction{}, err
	}
	if !found || t.LedgerID != ledger {
		return Transaction{}, ErrNotFound
	}
	return t.clone(), nil
}

// Proof is an RFC 6962 inclusion path from a transaction to the root in its
// block's header.
type Proof struct {
	Header    BlockHeader
	LeafIndex uint64
	Path      []Hash // from the leaf's sibling upwards
}

// Proof returns the proof for the transaction that took an index, or
// ErrNotFound.
func (v View) Proof(index uint64) (Proof, error) {
	l, found, err := locate(v.r, index)
	if err != nil {
		return Proof{}, err
	}
	if !found {
		return Proof{}, ErrNotFound
	}
	leaves, err := l.block.leaves()
	if err != nil {
		return Proof{}, err
	}
	return Proof{Header: l.header, LeafIndex: uint64(l.position), Path: merklePath(leaves, int(l.position))}, nil
}

// findTransaction finds the transaction that took an index. Its operations
// alias the storage.
func findTransaction(r Reader, index uint64) (t Transaction, found bool, err error) {
	l, found, err := locate(r, index)
	if err != nil || !found {
		return t, false, err
	}
	t, err = l.stored.decode(l.header.Height)
	return t, true, err
}

// locate finds the transaction that took an index in a closed block.
func locate(r Reader, index uint64) (l located, found bool, err error) {
	record, last, err := recordOf(r, index)
	if err != nil || last == 0 {
		return l, false, err
	}
	return record.find(index)
}

// recordOf returns the record that has the transaction of an index, if there is
// one, and its key, or 0 when there is no record. A record stands at or behind
// the last of its transactions and before those of the next record, so it is
// the first at or behind the index.
func recordOf(r Reader, index uint64) (found record, last uint64, err error) {
	var failed error
	err = r.Ascend(TableBlocks, appendIndexKey(nil, index), func(key, data []byte) bool {
		if found, failed = openRecord(key, data); failed == nil {
			last = binary.BigEndian.Uint64(key)
		}
		return false
	})
	return found, last, firstErr(err, failed)
}

// clone copies what aliases the storage.
func (t Transaction) clone() Transaction {
	for i := range t.Operations {
		op := &t.Operations[i]
		op.Key, op.Value = bytes.Clone(op.Key), bytes.Clone(op.Value)
		op.Relation, op.Subject = bytes.Clone(op.Relation), bytes.Clone(op.Subject)
		op.Condition.Value = bytes.Clone(op.Condition.Value)
	}
	return t
}

func firstErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
