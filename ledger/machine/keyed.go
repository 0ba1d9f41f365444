package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/seqledger/seqledger/internal/keyed"
)

// KeyedID identifies a keyed record. Only the hash of the key is ever stored,
// because a client may put something into a key that must not be kept.
type KeyedID struct {
	Scope     Scope
	Namespace string   // 0–128 bytes of printable ASCII: a route, an intake, a task type
	Principal string   // 1–512 bytes: the party on whose behalf the request is made
	Key       [32]byte // SHA-256 of the key
}

// keyedID is a decoded KeyedID. Its slices alias the log entry.
type keyedID struct {
	organization, vault  []byte
	namespace, principal []byte
	key                  []byte // 32 bytes
}

func (d *decoder) keyedID() (id keyedID) {
	id.organization, id.vault = d.bytes(), d.bytes()
	id.namespace, id.principal = d.bytes(), d.bytes()
	id.key = d.take(32)
	if len(id.organization) > MaxScopePart || len(id.vault) > MaxScopePart ||
		len(id.namespace) > MaxNamespace || len(id.principal) > maxActorBytes {
		d.fail()
	}
	return id
}

func appendKeyedID(dst []byte, id *KeyedID) []byte {
	dst = appendBytes(dst, id.Scope.Organization)
	dst = appendBytes(dst, id.Scope.Vault)
	dst = appendBytes(dst, id.Namespace)
	dst = appendBytes(dst, id.Principal)
	return append(dst, id.Key[:]...)
}

// appendPrincipalKey is the key of a principal in TablePrincipals, and what the
// keys of its records begin with.
func appendPrincipalKey[T ~string | ~[]byte](dst []byte, organization, vault, principal T) []byte {
	dst = appendScope(dst, organization, vault)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(principal)))
	return append(dst, principal...)
}

// appendKeyedKey appends the key of a record in TableKeyed: scope, principal, namespace and key. Each part follows its
// length, so that the records of a principal, and of a namespace, are adjacent.
func appendKeyedKey[T ~string | ~[]byte](dst []byte, organization, vault, principal, namespace T, key []byte) []byte {
	dst = slices.Grow(dst, 5+len(organization)+len(vault)+len(principal)+len(namespace)+len(key))
	dst = appendPrincipalKey(dst, organization, vault, principal)
	dst = append(dst, byte(len(namespace)))
	dst = append(dst, namespace...)
	return append(dst, key...)
}

func splitKeyedKey(b []byte) (id KeyedID, err error) {
	scope, rest, err := splitScope(b)
	if err != nil {
		return id, err
	}
	d := decoder{rest: rest}
	size := d.take(2)
	if size != nil {
		id.Principal = string(d.take(uint64(binary.BigEndian.Uint16(size))))
	}
	id.Namespace = string(d.take(uint64(d.octet())))
	copy(id.Key[:], d.take(32))
	id.Scope = scope
	return id, d.done("key of a keyed record")
}

// keyedEntry is a record with what the state keeps beside it. Long responses and
// checkpoints have a table of their own, so that a heartbeat and an eviction pass
// cost the same whatever an owner has stored.
type keyedEntry struct {
	keyed.Record

	indexed      int64  // under which the expiry index has it
	responseAt   uint64 // in TableAttachments; 0: the record has it
	checkpointAt uint64 // the same
}

const (
	keyedVersion = 1
	// maxInlineAttachment is the longest response or checkpoint, in bytes, that a record contains. A longer one has
	// its own row, because every heartbeat rewrites the record.
	maxInlineAttachment = 512
)

func (e *keyedEntry) append(dst []byte) []byte {
	dst = append(dst, keyedVersion)
	dst = appendTime(dst, e.indexed)
	dst = binary.AppendUvarint(dst, e.responseAt)
	dst = binary.AppendUvarint(dst, e.checkpointAt)
	return e.Record.Append(dst)
}

func decodeKeyed(b []byte) (*keyedEntry, error) {
	e := new(keyedEntry)
	return e, e.decode(b)
}

// decode reads an entry into e. Its checkpoint and response alias b.
func (e *keyedEntry) decode(b []byte) error {
	d := decoder{rest: b}
	d.version(keyedVersion)
	e.indexed, e.responseAt, e.checkpointAt = d.time(), d.uvarint(), d.uvarint()
	if d.bad {
		return fmt.Errorf("%w: keyed record", ErrCorrupt)
	}
	if err := e.Decode(d.rest); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}

// moment is the time at which a command meets a record.
func (h *head) moment() keyed.Moment {
	return keyed.Moment{
		Now: h.time, Token: h.index, LeaseFloor: h.leaseFloor, FloorSet: h.floorSet,
	}
}

// loadKeyed returns a copy of a record, or nil if there is none.
func loadKeyed(r Reader, key []byte) (*keyedEntry, error) {
	return loadKeyedInto(r, key, new(keyedEntry))
}

// loadKeyedInto is loadKeyed into an entry that may have been used before.
func loadKeyedInto(r Reader, key []byte, e *keyedEntry) (*keyedEntry, error) {
	b, err := r.Get(TableKeyed, key)
	if err != nil || b == nil {
		return nil, err
	}
	if err := e.decode(b); err != nil {
		return nil, err
	}
	// Copied, because b is valid only until the transaction ends. Most records
	// have neither.
	e.Response, e.Checkpoint = bytes.Clone(e.Response), bytes.Clone(e.Checkpoint)
	return e, nil
}

// KeyedCommand is a command on a keyed record. Times and limits have been resolved
// by the proposer, because the machine never reads a setting of its node.
type KeyedCommand struct {
	ID      KeyedID
	Actor   string
	MaxKeys uint64 // of the principal in the scope, for a Reserve
	keyed.Command
}

// KeyedOutcome is what became of a command on a keyed record.
type KeyedOutcome struct {
	// Record is the record as it is then, nil where the key has none. Reading a
	// long response or checkpoint is left to View.Attachments, because applying must
	// not wait for what may be a mebibyte a command.
	Record     *KeyedRecord
	RetryAfter int64 // nanoseconds, with Keyed(keyed.InFlight)
	Changed    bool  // the record
}

// keyedAnswer is an outcome and its record in one piece of memory, because every command makes both.
type keyedAnswer struct {
	outcome KeyedOutcome
	record  KeyedRecord
}

// set makes e the record of the outcome.
func (a *keyedAnswer) set(e *keyedEntry) {
	a.record = KeyedRecord{Record: e.Record, responseAt: e.responseAt, checkpointAt: e.checkpointAt}
	a.outcome.Record = &a.record
}

// KeyedRecord is a record as it is kept.
type KeyedRecord struct {
	// ID is not set in an outcome, whose command has it.
	ID KeyedID
	keyed.Record

	responseAt, checkpointAt uint64
}

// keyedCommand is a decoded KeyedCommand. Its slices alias the log entry.
type keyedCommand struct {
	id      keyedID
	maxKeys uint64
	command keyed.Command
}

// AppendKeyed appends a command on a keyed record, which must be valid (see
// KeyedCommand.Validate).
func AppendKeyed(dst []byte, c *KeyedCommand) []byte {
	dst = append(dst, byte(commandKeyed), byte(c.Kind))
	dst = appendKeyedID(dst, &c.ID)
	dst = appendBytes(dst, c.Actor)
	switch c.Kind {
	case keyed.Reserve:
		dst = binary.AppendUvarint(dst, c.MaxKeys)
		dst = append(dst, c.AttemptID[:]...)
		dst = append(dst, c.Fingerprint.Algorithm)
		dst = append(dst, c.Fingerprint.Digest[:]...)
		dst = appendTime(dst, c.ValidUntil)
		dst = binary.AppendUvarint(dst, uint64(c.Lease))
		dst = binary.AppendUvarint(dst, uint64(c.TTL))
		dst = binary.AppendUvarint(dst, uint64(c.ForgetAfter))
		return append(dst, byte(c.Policy))
	case keyed.Resolve:
		dst = append(dst, byte(c.State))
		dst = binary.AppendUvarint(dst, uint64(c.TTL))
		return appendBytes(dst, c.Response)
	case keyed.Purge:
		return dst
	}
	dst = append(dst, c.AttemptID[:]...)
	dst = binary.AppendUvarint(dst, c.Token)
	switch c.Kind {
	case keyed.Complete, keyed.Reject:
		dst = binary.AppendUvarint(dst, uint64(c.TTL))
		dst = appendBytes(dst, c.Response)
	case keyed.Heartbeat:
		dst = binary.AppendUvarint(dst, uint64(c.Lease))
	case keyed.Checkpoint:
		dst = appendBytes(dst, c.Data)
	}
	return dst
}

func (d *decoder) duration() int64 {
	n := int64(d.uvarint())
	if n < 0 || n > int64(keyed.MaxTTL) {
		d.fail()
	}
	return n
}

func (c *keyedCommand) decode(d *decoder) {
	k := &c.command
	*k = keyed.Command{Kind: keyed.Kind(d.octet())}
	c.id, c.maxKeys = d.keyedID(), 0
	d.bytes() // the actor stands there for readers of the log
	switch k.Kind {
	case keyed.Reserve:
		c.maxKeys = d.uvarint()
		copy(k.AttemptID[:], d.take(16))
		k.Fingerprint.Algorithm = d.octet()
		copy(k.Fingerprint.Digest[:], d.take(32))
		k.ValidUntil, k.Lease, k.TTL = d.time(), d.duration(), d.duration()
		k.ForgetAfter, k.Policy = int64(d.uvarint()), keyed.Policy(d.octet())
		if k.ValidUntil < 0 || k.ForgetAfter < 0 || k.Policy > keyed.TakeOver {
			d.fail()
		}
		return
	case keyed.Resolve:
		k.State = keyed.State(d.octet())
		k.TTL, k.Response = d.duration(), d.bytes()
		if k.State != keyed.Committed && k.State != keyed.Rejected {
			d.fail()
		}
		return
	case keyed.Purge:
		return
	}
	copy(k.AttemptID[:], d.take(16))
	k.Token = d.uvarint()
	switch k.Kind {
	case keyed.Complete, keyed.Reject:
		k.TTL, k.Response = d.duration(), d.bytes()
	case keyed.Heartbeat:
		k.Lease = d.duration()
	case keyed.Checkpoint:
		k.Data = d.bytes()
	case keyed.Release:
	default:
		d.fail()
	}
}

// applyKeyed decides a command on a keyed record.
func (m *Machine) applyKeyed(tx Tx, c *keyedCommand, out *Outcome) error {
	m.setKeyedKey(&c.id)
	before, err := loadKeyedInto(tx, m.keyedKey, &m.keyedBefore)
	if err != nil {
		return err
	}
	if before == nil && c.command.Kind == keyed.Reserve {
		full, err := m.principalFull(tx, c.maxKeys)
		if err != nil {
			return err
		}
		if full {
			out.Code = TooManyKeys
			return nil
		}
	}
	next, decided := keyed.Transition(before.record(), &c.command, m.head.moment())
	out.Code = Keyed(decided.Code)
	answer := &keyedAnswer{outcome: KeyedOutcome{RetryAfter: int64(decided.RetryAfter), Changed: decided.Changed}}
	out.Keyed = &answer.outcome
	after := before
	if decided.Changed {
		checkpoint := c.command.Kind == keyed.Checkpoint && decided.Code == keyed.OK
		if after, err = m.changeKeyed(tx, before, next, checkpoint); err != nil {
			return err
		}
	}
	if next.Live(m.head.time) {
		answer.set(after)
	}
	return nil
}

func (e *keyedEntry) record() *keyed.Record {
	if e == nil {
		return nil
	}
	return &e.Record
}

func (e *keyedEntry) public(id KeyedID) *KeyedRecord {
	return &KeyedRecord{ID: id, Record: e.Record, responseAt: e.responseAt, checkpointAt: e.checkpointAt}
}

// setKeyedKey makes m.keyedKey that of an identity, and m.principalLength how
// much of it is its principal's.
func (m *Machine) setKeyedKey(id *keyedID) {
	m.keyedKey = appendKeyedKey(m.keyedKey[:0], id.organization, id.vault, id.principal, id.namespace, id.key)
	m.principalLength = 2 + len(id.organization) + len(id.vault) + 2 + len(id.principal)
}

// changeKeyed stores what a record has become, which is not nil, and returns its entry until the next
// command. Checkpoint tells that the command has brought a new checkpoint.
func (m *Machine) changeKeyed(tx Tx, before *keyedEntry, next *keyed.Record, checkpoint bool) (*keyedEntry, error) {
	created := before == nil
	if err := m.countPending(before.record(), next); err != nil {
		return nil, err
	}
	m.noteChanged(m.keyedKey, before.record(), next)
	if created {
		m.keyedBefore = keyedEntry{}
		before = &m.keyedBefore
		if err := m.countKeys(tx, m.keyedKey[:m.principalLength], 1); err != nil {
			return nil, err
		}
	}
	after := &m.keyedAfter
	*after = keyedEntry{
		Record: *next, indexed: before.indexed, responseAt: before.responseAt, checkpointAt: before.checkpointAt,
	}
	if err := m.reattach(tx, before, after, checkpoint); err != nil {
		return nil, err
	}
	// An entry of the expiry index may be too early, so that a renewal need not move it. One that would be too late
	// is moved.
	if due := next.Due(m.head.moment()); created || due < before.indexed {
		if err := m.indexKeyed(tx, after, due, created); err != nil {
			return nil, err
		}
	}
	m.scratch = after.append(m.scratch[:0])
	return after, tx.Put(TableKeyed, m.keyedKey, m.scratch)
}

// KeyedChange is what one command or eviction pass has done to a keyed record.
// It is for metrics and for Reserves that wait, and must not be used in a
// decision.
type KeyedChange struct {
	Key []byte // as KeyedID.TableKey gives it, until the next Apply
	// Before and After are the states, 0 where there was or is no record.
	Before, After keyed.State
	// TakenOver tells that the reservation has gone to another owner.
	TakenOver bool
	// Created is when the record was created, Unix nanoseconds of ledger time; 0 if it is gone.
	Created int64

	end int // of the key in Machine.changedKeys
}

// noteChanged notes a change; nil means no record.
func (m *Machine) noteChanged(key []byte, before, after *keyed.Record) {
	m.changedKeys = append(m.changedKeys, key...)
	c := KeyedChange{end: len(m.changedKeys)}
	if before != nil {
		c.Before = before.State
	}
	if after != nil {
		c.After, c.Created = after.State, after.Created
		c.TakenOver = c.Before == keyed.Pending && c.After == keyed.Pending && before.Token != after.Token
	}
	m.keyedChanges = append(m.keyedChanges, c)
}

// KeyedChanges calls visit for what the last Apply has done to keyed records, in order.
func (m *Machine) KeyedChanges(visit func(KeyedChange)) {
	from := 0
	for _, c := range m.keyedChanges {
		c.Key = m.changedKeys[from:c.end]
		visit(c)
		from = c.end
	}
}

// ChangedKeys calls visit for the keys, as KeyedID.TableKey gives them, of the
// keyed records that the last Apply has changed, for some more than once.
func (m *Machine) ChangedKeys(visit func(key string)) {
	m.KeyedChanges(func(c KeyedChange) { visit(string(c.Key)) })
}

// countPending counts the reservations that a change of a record begins or ends.
func (m *Machine) countPending(before, after *keyed.Record) error {
	was, is := before != nil && before.State == keyed.Pending, after != nil && after.State == keyed.Pending
	switch {
	case is && !was:
		m.head.pendingKeys++
	case was && !is && m.head.pendingKeys == 0:
		return fmt.Errorf("%w: a keyed record is pending, and none is counted", ErrCorrupt)
	case was && !is:
		m.head.pendingKeys--
	}
	return nil
}

// attach stores a response or checkpoint, and removes the one before. A long one
// stands under the index of the command, which is free because no command
// attaches two.
func (m *Machine) attach(tx Tx, old uint64, content []byte) (inline []byte, at uint64, err error) {
	if old != 0 {
		if err := tx.Delete(TableAttachments, appendIndexKey(nil, old)); err != nil {
			return nil, 0, err
		}
	}
	if len(content) <= maxInlineAttachment {
		return content, 0, nil
	}
	return nil, m.head.index, tx.Put(TableAttachments, appendIndexKey(nil, m.head.index), content)
}

// reattach stores the response and the checkpoint of an entry that has taken the place of another, where they differ.
func (m *Machine) reattach(tx Tx, before, after *keyedEntry, checkpoint bool) (err error) {
	if after.ResponseSize != before.ResponseSize || after.ResponseSum != before.ResponseSum {
		if after.Response, after.responseAt, err = m.attach(tx, before.responseAt, after.Response); err != nil {
			return err
		}
	}
	if after.CheckpointSize != before.CheckpointSize || checkpoint {
		after.Checkpoint, after.checkpointAt, err = m.attach(tx, before.checkpointAt, after.Checkpoint)
	}
	return err
}

// indexKeyed moves the entry of a record, whose key is m.keyedKey, in the expiry
// index.
func (m *Machine) indexKeyed(tx Tx, e *keyedEntry, due int64, created bool) error {
	if !created {
		m.key = appendExpiryKey(m.key[:0], expiryKeyed, e.indexed, m.keyedKey)
		if err := tx.Delete(TableExpiry, m.key); err != nil {
			return err
		}
	}
	e.indexed = due
	m.key = appendExpiryKey(m.key[:0], expiryKeyed, due, m.keyedKey)
	if created {
		return m.addExpiry(tx, m.key)
	}
	return m.putExpiry(tx, m.key)
}

// principalFull reports whether the principal of m.keyedKey has as many records as
// it may.
func (m *Machine) principalFull(r Reader, maxKeys uint64) (bool, error) {
	n, err := readCount(r, TablePrincipals, m.keyedKey[:m.principalLength])
	return n >= maxKeys, err
}

// countKeys adds to the number of a principal's records, or takes from it.
func (m *Machine) countKeys(tx Tx, principal []byte, delta int) error {
	n, err := readCount(tx, TablePrincipals, principal)
	if err != nil {
		return err
	}
	if less := uint64(max(0, -delta)); less > n {
		return fmt.Errorf("%w: principal %x has fewer keyed records than there are", ErrCorrupt, principal)
	}
	if n += uint64(delta); n == 0 {
		return tx.Delete(TablePrincipals, principal)
	}
	m.scratch = binary.AppendUvarint(m.scratch[:0], n)
	return tx.Put(TablePrincipals, principal, m.scratch)
}

// evictKeyed updates the records whose time has come, in the order of their keys: an ended lease becomes an unknown
// outcome, and an expired record is removed. The others return to the index under their true time.
func (m *Machine) evictKeyed(tx Tx, entries []expiryEntry) error {
	sortByKey(entries)
	at := m.head.moment()
	for _, e := range entries {
		before, err := loadKeyed(tx, e.key)
		if err == nil && before == nil {
			err = fmt.Errorf("%w: the expiry index has keyed record %x, which is not there", ErrCorrupt, e.key)
		}
		if err != nil {
			return err
		}
		if err := tx.Delete(TableExpiry, e.indexKey); err != nil {
			return err
		}
		next, kept := keyed.Expire(&before.Record, at)
		if err := m.countPending(&before.Record, next); err != nil {
			return err
		}
		if !kept {
			if err := m.removeKeyed(tx, e.key, before); err != nil {
				return err
			}
			continue
		}
		if next.State != before.State {
			m.noteChanged(e.key, &before.Record, next)
			m.digestEvent(digestTagKeyed, append(m.scratchKey(e.key), byte(next.State)))
		}
		after := *before
		after.Record = *next
		if err := m.reattach(tx, before, &after, false); err != nil {
			return err
		}
		m.keyedKey = append(m.keyedKey[:0], e.key...)
		if err := m.indexKeyed(tx, &after, next.Due(at), true); err != nil {
			return err
		}
		m.scratch = after.append(m.scratch[:0])
		if err := tx.Put(TableKeyed, e.key, m.scratch); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) scratchKey(key []byte) []byte {
	m.scratch = append(m.scratch[:0], key...)
	return m.scratch
}

// removeKeyed removes a record, whose entry in the expiry index is gone.
func (m *Machine) removeKeyed(tx Tx, key []byte, e *keyedEntry) error {
	for _, at := range []uint64{e.responseAt, e.checkpointAt} {
		if at != 0 {
			if err := tx.Delete(TableAttachments, appendIndexKey(nil, at)); err != nil {
				return err
			}
		}
	}
	principal, err := principalPart(key)
	if err != nil {
		return err
	}
	if err := m.countKeys(tx, principal, -1); err != nil {
		return err
	}
	if err := tx.Delete(TableKeyed, key); err != nil {
		return err
	}
	m.noteChanged(key, &e.Record, nil)
	m.evictions.Keys++
	m.digestEvent(digestTagKeyed, append(m.scratchKey(key), 0))
	return nil
}

// principalPart returns the leading bytes of a record's key that are its
// principal's.
func principalPart(key []byte) ([]byte, error) {
	_, rest, err := splitScope(key)
	if err != nil {
		return nil, err
	}
	d := decoder{rest: rest}
	if size := d.take(2); size != nil {
		d.take(uint64(binary.BigEndian.Uint16(size)))
	}
	if d.bad {
		return nil, fmt.Errorf("%w: key of a keyed record %x", ErrCorrupt, key)
	}
	return key[:len(key)-len(d.rest)], nil
}
