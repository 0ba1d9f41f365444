package machine

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrNotCreated is returned when the first command of a ledger is not the one
// that creates it.
var ErrNotCreated = errors.New("the ledger has not been created")

// Machine applies log entries to the state. It belongs to one goroutine, or to
// whoever holds the storage's lock. After an error it must not be used again.
type Machine struct {
	head head

	// What the entry being applied has built so far.
	building map[string]*blockBuilder
	blocks   []*blockBuilder
	pending  []pendingTx
	spare    []*blockBuilder // of entries before

	// swept is, by kind, a key that no entry of the expiry index comes before;
	// nil when that is not known, as after a start.
	swept [2][]byte

	// evictions is no state: it begins at zero with each start.
	evictions Evictions

	// Buffers that are reused so that a write allocates little.
	write       writeCommand
	stream      stream
	streamKey   []byte
	scopeLength int
	key         []byte
	scratch     []byte
	transaction []byte // behind the prefix of a leaf
	digestInput []byte
	record      []byte
	changed     []byte
	versions    []uint64
	lastActor   string
	values      valueReader // of the conditions that are being checked
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
	m.head, err = decodeHead(b)
	return m, err
}

// Apply decides the commands of a log entry and changes the state. It returns
// one outcome for each command. Everything that one entry changes must reach
// the disk together.
func (m *Machine) Apply(tx Tx, entry []byte) ([]Outcome, error) {
	unixNanos, commands, err := DecodeEntry(entry)
	if err != nil {
		return nil, err
	}
	// Time never runs backwards, whatever a leader stamps.
	m.head.time = max(m.head.time, unixNanos)
	m.recycle()

	outcomes := make([]Outcome, len(commands))
	for i, command := range commands {
		if err := m.applyCommand(tx, command, &outcomes[i]); err != nil {
			return nil, fmt.Errorf("command at ledger index %d: %w", m.head.index, err)
		}
	}
	if err := m.finishBlocks(tx); err != nil {
		return nil, err
	}
	m.scratch = m.head.append(m.scratch[:0])
	return outcomes, tx.Put(TableMeta, headKey, m.scratch)
}

func (m *Machine) applyCommand(tx Tx, command []byte, out *Outcome) error {
	d := decoder{rest: command}
	kind := commandKind(d.octet())
	if !m.head.created() && kind != commandCreate {
		return ErrNotCreated
	}
	// A command may take more indexes than its own: one for every transaction
	// that expires entities.
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
	// The interval is read after the command has taken effect: the command may
	// be the one that changes it.
	if m.head.created() && m.head.index%m.head.config.EvictionInterval == 0 {
		return m.evict(tx)
	}
	return nil
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
	case commandUpdateConfig:
		update := decodeConfigUpdate(d)
		if err := d.done("configuration command"); err != nil {
			return nil, err
		}
		m.setConfig(m.head.config.with(&update), out)
		return nil, nil
	case commandCreate:
		id, seed, config := LedgerID(d.uint64()), d.uint64(), decodeConfig(d)
		if err := d.done("create command"); err != nil {
			return nil, err
		}
		return nil, m.applyCreate(id, seed, config, out)
	case commandEpoch:
		id := LedgerID(d.uint64())
		if err := d.done("epoch command"); err != nil {
			return nil, err
		}
		m.applyEpoch(id, out)
		return nil, nil
	default:
		return nil, fmt.Errorf("%w: command of unknown kind %d: it was written by a newer version", ErrCorrupt, kind)
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
// again.
func (m *Machine) applyEpoch(id LedgerID, out *Outcome) {
	m.head.index = epochStart(m.head.index, id)
	m.head.epochs = append(m.head.epochs, epoch{start: m.head.index, id: id})
	out.Code, out.Index = Committed, m.head.index
}

// epochStart returns the index at which the epoch of a ledger id begins. The
// old ledger would need 2^40 commands after the backup to come near it. The
// rest is as random as the id, because one backup may be restored twice, and
// both ledgers hand out sessions in much the same order.
func epochStart(index uint64, id LedgerID) uint64 {
	const step, jump = 1 << 32, 1 << 40
	return (index/step+1)*step + jump + uint64(id)%jump
}

// Tags keep the kinds of digest inputs apart.
const (
	digestTagCommand  byte = 1
	digestTagEviction byte = 2
	digestTagExpiry   byte = 3
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
