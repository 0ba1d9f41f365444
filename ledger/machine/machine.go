package machine

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/seqledger/seqledger/internal/keyed"
)

// ErrNotCreated is returned when the first command of a ledger is not the one
// that creates it.
var ErrNotCreated = errors.New("the ledger has not been created")

// ErrDiverged is returned when a log entry says that its proposer stood at
// another digest than this machine at the same index, because then the same history
// was decided in two ways.
var ErrDiverged = errors.New("this program or this state differs from the one that wrote the log")

// Machine applies log entries to the state. It belongs to one goroutine, or to
// the goroutine that holds the storage's lock. After an error it must not be used again.
type Machine struct {
	head head

	// What is committed and in no closed block yet.
	building map[string]*blockBuilder
	blocks   []*blockBuilder
	pending  []pendingTx
	gathered int             // bytes of the bodies
	spare    []*blockBuilder // empty

	committed []Scope // of the blocks that the entry has closed
	// changedKeys are the concatenated keys of the keyed records that the entry has changed. keyedChanges has the end
	// of each, and the change.
	changedKeys  []byte
	keyedChanges []KeyedChange

	// passed is where the machine stood after each of the last entries, oldest
	// first. The check of a later entry is compared with it, so that a node
	// whose state differs from the proposer's stops.
	passed []Check

	// Differs, unless it is nil, is told of an entry whose check is not where this machine stood, by the goroutine
	// that applies the entry; a nil return applies the entry all the same. Without it such an entry is an error.
	Differs func(err error) error

	// cursor is, by kind, a key that no entry of the expiry index comes before;
	// nil when that is not known, as after a start.
	cursor cursors

	// evictions is no state, and must not be used in a decision: it begins at zero with
	// each start.
	evictions Evictions

	// Buffers that are reused so that a write allocates little.
	write       writeCommand
	stream      stream
	streamKey   []byte
	scopeLength int
	keyed       keyedCommand
	keyedWrite  keyedWriteCommand
	keyedKey    []byte
	// keyedBefore and keyedAfter are the entry that a keyed command finds and leaves.
	keyedBefore, keyedAfter keyedEntry
	// principalLength is how much of keyedKey is its principal's.
	principalLength int
	key             []byte
	scratch         []byte
	transaction     []byte
	leaf            []byte // of it, after its prefix
	digestInput     []byte
	record          []byte
	changed         []byte
	versions        []uint64
	lastActor       string
	values          valueReader // of the conditions that are being checked
}

// Open loads the head of the state, which is empty before the ledger is
// created.
func Open(r Reader) (*Machine, error) {
	m := &Machine{building: map[string]*blockBuilder{}}
	b, err := r.Get(TableMeta, headKey)
	if err != nil {
		return nil, err
	}
	if b == nil {
		return m, nil
	}
	if m.head, err = decodeHead(b); err == nil {
		m.passed = append(m.passed, m.head.check())
	}
	return m, err
}

// Apply decides the commands of a log entry and changes the state. It returns
// one outcome for each command. Everything that one entry changes must reach
// the disk together.
func (m *Machine) Apply(tx Tx, entry []byte) ([]Outcome, error) {
	header, commands, err := DecodeEntry(entry)
	if err != nil {
		return nil, err
	}
	if err := m.compare(header); err != nil && (m.Differs == nil || m.Differs(err) != nil) {
		return nil, err
	}
	m.head.advance(header.UnixNanos)
	m.committed, m.changedKeys, m.keyedChanges = m.committed[:0], m.changedKeys[:0], m.keyedChanges[:0]
	m.trim()

	outcomes := make([]Outcome, len(commands))
	for i, command := range commands {
		if err := m.applyCommand(tx, command, &outcomes[i]); err != nil {
			return nil, fmt.Errorf("command at ledger index %d: %w", m.head.index, err)
		}
	}
	if err := m.closeBlocks(tx); err != nil {
		return nil, err
	}
	m.pass(m.head.check())
	m.scratch = m.head.append(m.scratch[:0])
	return outcomes, tx.Put(TableMeta, headKey, m.scratch)
}

// maxPassed is how many entries back a check is compared. It is enough because
// a proposer is no more entries ahead of what it has applied than it has in
// flight.
const maxPassed = 64

// pass notes where the machine stands after an entry.
func (m *Machine) pass(c Check) {
	if len(m.passed) == maxPassed {
		copy(m.passed, m.passed[1:])
		m.passed = m.passed[:maxPassed-1]
	}
	m.passed = append(m.passed, c)
}

// compare compares the header of an entry with where the machine stood. It
// passes over a position from before Open, because passed begins there.
func (m *Machine) compare(h EntryHeader) error {
	c := h.Check
	if c == (Check{}) {
		return nil
	}
	if c.Index > m.head.index {
		return fmt.Errorf("%w: the log entry was proposed at ledger index %d, the state stands at %d",
			ErrDiverged, c.Index, m.head.index)
	}
	if len(m.passed) == 0 || c.Index < m.passed[0].Index {
		return nil
	}
	for _, p := range slices.Backward(m.passed) {
		switch {
		case p.Index != c.Index:
		case p.Digest != c.Digest:
			return fmt.Errorf("%w: at ledger index %d the digest begins with %016x, the log says %016x",
				ErrDiverged, c.Index, p.Digest, c.Digest)
		default:
			return nil
		}
	}
	return fmt.Errorf("%w: the log entry was proposed at ledger index %d, where no entry ends", ErrDiverged, c.Index)
}

// Check returns where the machine stands.
func (m *Machine) Check() Check {
	if !m.head.created() {
		return Check{}
	}
	return m.head.check()
}

// Header returns the header of the next entry that is proposed, without its time.
func (m *Machine) Header() EntryHeader { return EntryHeader{Check: m.Check()} }

// maxBuffer is the largest capacity, in bytes, of a buffer that is kept for the next entry, so that the memory of one
// large write is not held.
const maxBuffer = 1 << 20

// trim drops large buffers and references to the previous entry.
func (m *Machine) trim() {
	for _, buffer := range []*[]byte{&m.scratch, &m.transaction, &m.leaf, &m.digestInput, &m.record, &m.changedKeys} {
		if cap(*buffer) > maxBuffer {
			*buffer = nil
		}
	}
	m.write.release()
	m.keyedWrite.write.release()
}

func (m *Machine) applyCommand(tx Tx, command []byte, out *Outcome) error {
	d := decoder{rest: command}
	kind := commandKind(d.octet())
	if !m.head.created() && kind != commandCreate {
		return ErrNotCreated
	}
	// The margin is wide, because a command may take more indexes than its own: one for
	// every transaction that expires entities.
	if m.head.index >= maxLedgerIndex-maxEvictLimit || kind == commandEpoch && m.head.index >= maxLedgerIndex-1<<42 {
		return errors.New("the ledger index is exhausted")
	}
	m.head.index++
	out.Index = m.head.index

	leaf, err := m.dispatch(tx, kind, &d, out)
	if err != nil {
		return err
	}
	m.digestCommand(command, out, leaf)
	if err := m.closeLongBlocks(tx); err != nil {
		return err
	}
	if !m.passDue() {
		return nil
	}
	if err := m.evict(tx); err != nil {
		return err
	}
	return m.retain(tx)
}

// dispatch decides one command. It returns the leaf hash of the transaction
// that it committed, if any.
func (m *Machine) dispatch(tx Tx, kind commandKind, d *decoder, out *Outcome) (leaf *Hash, err error) {
	switch kind {
	case commandWrite:
		m.write.decode(d)
		if err := d.done("write command"); err != nil {
			return nil, err
		}
		return m.applyWrite(tx, &m.write, out)
	case commandOpenSession:
		var c openSessionCommand
		c.decode(d)
		if err := d.done("session command"); err != nil {
			return nil, err
		}
		return nil, m.applyOpenSession(tx, &c, out)
	case commandKeyedWrite, commandKeyed:
		return m.dispatchKeyed(tx, kind, d, out)
	default:
		return nil, m.dispatchRare(tx, kind, d, out)
	}
}

// dispatchKeyed decides what belongs to a key and not to a stream.
func (m *Machine) dispatchKeyed(tx Tx, kind commandKind, d *decoder, out *Outcome) (*Hash, error) {
	if kind == commandKeyedWrite {
		m.keyedWrite.decode(d)
		if err := d.done("keyed write command"); err != nil {
			return nil, err
		}
		return m.applyKeyedWrite(tx, &m.keyedWrite, out)
	}
	m.keyed.decode(d)
	if err := d.done("keyed command"); err != nil {
		return nil, err
	}
	return nil, m.applyKeyed(tx, &m.keyed, out)
}

// dispatchRare decides the commands that commit no transaction and come rarely.
func (m *Machine) dispatchRare(tx Tx, kind commandKind, d *decoder, out *Outcome) error {
	switch kind {
	case commandCreate:
		id, seed, config := LedgerID(d.uint64()), d.uint64(), decodeConfig(d)
		if err := d.done("create command"); err != nil {
			return err
		}
		return m.applyCreate(id, seed, config, out)
	case commandUpdateConfig:
		update := decodeConfigUpdate(d)
		if err := d.done("configuration command"); err != nil {
			return err
		}
		m.setConfig(m.head.config.with(&update), out)
		return nil
	case commandEpoch:
		id, unixNanos := LedgerID(d.uint64()), d.time()
		if err := d.done("epoch command"); err != nil {
			return err
		}
		return m.applyEpoch(tx, id, unixNanos, out)
	case commandTick:
		out.Code = Committed
		return d.done("tick command")
	default:
		return fmt.Errorf("%w: command of unknown kind %d", ErrCorrupt, kind)
	}
}

func (m *Machine) applyCreate(id LedgerID, seed uint64, config Config, out *Outcome) error {
	if m.head.created() {
		out.Code, out.Field = InvalidArgument, &FieldError{"ledger", "has been created already"}
		return nil
	}
	if err := config.Validate(); err != nil {
		return fmt.Errorf("%w: create command: %w", ErrCorrupt, err)
	}
	m.head.seed = seed
	m.head.epochs = []epoch{{start: m.head.index, id: id}}
	m.head.beginTree(0, 0)
	m.head.retention.marked.time = m.head.time
	m.setConfig(config, out)
	return nil
}

func (m *Machine) setConfig(config Config, out *Outcome) {
	if err := config.Validate(); err != nil {
		out.Code = InvalidArgument
		_ = errors.As(err, &out.Field)
	} else {
		out.Code = Committed
		m.head.config = config
	}
	out.Config = m.head.config
}

// applyEpoch begins the life of a restored ledger. The index jumps, so that
// none that was handed out after the backup was taken is ever handed out
// again. A time that is not 0 becomes ledger time, whatever that was: it is how
// a ledger that was once started with a wrong clock gets a right one.
func (m *Machine) applyEpoch(tx Tx, id LedgerID, unixNanos int64, out *Outcome) error {
	// The rows of a record go from its first index to its last.
	if err := m.closeBlocks(tx); err != nil {
		return err
	}
	m.head.beginTree(m.head.ledgerID(), m.head.index-1)
	m.head.index = epochStart(m.head.index, id)
	begun := epoch{start: m.head.index, id: id}
	if unixNanos != 0 {
		if unixNanos < m.head.time {
			begun.timeBefore, m.head.longestPause = m.head.time, 0
			if err := m.setMarksBack(tx, unixNanos); err != nil {
				return err
			}
			// Leases that the earlier clock set end by this one.
			m.head.leaseFloor, m.head.floorSet = unixNanos+int64(keyed.OutageGrace), m.head.time+1
		}
		m.head.time = unixNanos
	}
	m.head.epochs = append(m.head.epochs, begun)
	out.Code, out.Index = Committed, m.head.index
	return nil
}

// epochStart returns the index at which the epoch of a ledger id begins. The
// old ledger would need 2^40 commands after the backup to come near it. The
// rest is as random as the id, because one backup may be restored twice, and
// both ledgers hand out sessions in much the same order.
func epochStart(index uint64, id LedgerID) uint64 {
	const step, jump = 1 << 32, 1 << 40
	return (index/step+1)*step + jump + uint64(id)%jump
}

// Tags keep the kinds of digest inputs apart: without them an eviction could
// have the bytes of a command, and two different histories one digest, which
// must never be.
const (
	digestTagCommand  byte = 1
	digestTagEviction byte = 2
	digestTagExpiry   byte = 3
	digestTagKeyed    byte = 4
)

// digestCommand moves the running digest on: over the command, its time, its
// outcome and the transaction that came of it. Block coordinates are left out,
// because they depend on how commands were grouped into log entries.
func (m *Machine) digestCommand(command []byte, out *Outcome, leaf *Hash) {
	b := append(m.digestInput[:0], m.head.digest[:]...)
	b = append(b, digestTagCommand)
	b = appendIndexKey(b, m.head.index)
	b = appendTime(b, m.head.time)
	b = append(b, byte(out.Code))
	b = binary.AppendUvarint(b, out.Receipt.Index)
	b = binary.AppendUvarint(b, out.Stream.Session)
	if leaf != nil {
		b = append(b, leaf[:]...)
	}
	b = append(b, command...)
	m.head.digest = sha256.Sum256(b)
	m.digestInput = b
}

// digestEvent moves the digest on over something that no command asked for.
func (m *Machine) digestEvent(tag byte, detail []byte) {
	b := append(m.digestInput[:0], m.head.digest[:]...)
	b = append(b, tag)
	b = appendIndexKey(b, m.head.index)
	b = appendTime(b, m.head.time)
	b = append(b, detail...)
	m.head.digest = sha256.Sum256(b)
	m.digestInput = b
}
