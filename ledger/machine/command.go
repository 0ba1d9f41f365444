package machine

import (
	"encoding/binary"
	"fmt"
)

// commandKind is the first byte of a command. A number never gets a second meaning, because old logs must replay.
type commandKind byte

const (
	commandCreate       commandKind = 1
	commandWrite        commandKind = 2
	commandOpenSession  commandKind = 3
	commandUpdateConfig commandKind = 4
	commandEpoch        commandKind = 5
	commandTick         commandKind = 6
	commandKeyed        commandKind = 7
	commandKeyedWrite   commandKind = 8
)

// entryVersion is the version of a log entry's encoding.
const entryVersion = 1

// AppendCreate appends the first command of a ledger, which gives it its id and
// its configuration. Seed is random and stays within the ledger:
// the fingerprints of idempotency keys are made with it, so that no client can look
// for keys whose fingerprints agree.
func AppendCreate(dst []byte, id LedgerID, seed uint64, config Config) []byte {
	dst = append(dst, byte(commandCreate))
	dst = binary.BigEndian.AppendUint64(dst, uint64(id))
	dst = binary.BigEndian.AppendUint64(dst, seed)
	return appendConfig(dst, config)
}

// AppendWrite appends a write, which must be valid (see Write.Validate).
func AppendWrite(dst []byte, w *Write) []byte {
	return appendOperations(appendWriteHead(dst, w), w.Operations)
}

// appendWriteHead appends a write up to its operations.
func appendWriteHead(dst []byte, w *Write) []byte {
	dst = append(dst, byte(commandWrite))
	dst = appendBytes(dst, w.Scope.Organization)
	dst = appendBytes(dst, w.Scope.Vault)
	dst = appendBytes(dst, w.ClientID)
	dst = appendBytes(dst, w.Actor)
	dst = binary.AppendUvarint(dst, w.Session)
	dst = binary.AppendUvarint(dst, w.Sequence)
	return appendKey(dst, w.Key)
}

// AppendOpenSession appends an OpenSession, which must be valid.
func AppendOpenSession(dst []byte, o *OpenSession) []byte {
	dst = append(dst, byte(commandOpenSession))
	dst = appendBytes(dst, o.Scope.Organization)
	dst = appendBytes(dst, o.Scope.Vault)
	dst = appendBytes(dst, o.ClientID)
	dst = appendBytes(dst, o.Actor)
	dst = append(dst, o.AttemptID[:]...)
	return binary.AppendUvarint(dst, o.ExpectedSession)
}

// AppendUpdateConfig appends a change of the configuration. The machine checks
// the limits, because only it knows the fields that stay.
func AppendUpdateConfig(dst []byte, u *ConfigUpdate, actor string) []byte {
	dst = append(dst, byte(commandUpdateConfig))
	dst = appendBytes(dst, actor)
	for _, field := range u.fields() {
		if field == nil {
			dst = append(dst, 0)
			continue
		}
		dst = binary.AppendUvarint(append(dst, 1), *field)
	}
	return dst
}

// AppendEpoch appends the command that a restored ledger begins with: a new
// id for new transactions, an index beyond every one handed out before, and
// the end of every older session. Ledger time becomes unixNanos, which may be
// earlier than it was; 0 keeps it.
func AppendEpoch(dst []byte, id LedgerID, unixNanos int64) []byte {
	dst = append(dst, byte(commandEpoch))
	dst = binary.BigEndian.AppendUint64(dst, uint64(id))
	return appendTime(dst, unixNanos)
}

// AppendTick appends a command that changes nothing but ledger time and the
// count of commands, which brings the next eviction pass nearer.
func AppendTick(dst []byte) []byte { return append(dst, byte(commandTick)) }

// Check is a ledger index and the first eight bytes of the digest at it. An
// entry carries that of its proposer, and each node that applies the entry
// compares it with its own: a program or a node that decided otherwise
// stops there. The zero Check is none.
type Check struct{ Index, Digest uint64 }

// EntryHeader is what stands before the commands of a log entry.
type EntryHeader struct {
	UnixNanos int64 // of ledger time; the commands share it
	Check     Check
}

// AppendEntry appends a log entry without a check.
func AppendEntry(dst []byte, unixNanos int64, commands ...[]byte) []byte {
	dst = AppendEntryHeader(dst, EntryHeader{UnixNanos: unixNanos}, len(commands))
	for _, c := range commands {
		dst = AppendFramed(dst, c)
	}
	return dst
}

// AppendEntryHeader appends the header of an entry with the given number of commands. AppendFramed appends each of
// them.
func AppendEntryHeader(dst []byte, h EntryHeader, commands int) []byte {
	dst = appendTime(append(dst, entryVersion), h.UnixNanos)
	dst = binary.AppendUvarint(dst, h.Check.Index)
	dst = binary.BigEndian.AppendUint64(dst, h.Check.Digest)
	return binary.AppendUvarint(dst, uint64(commands))
}

// AppendFramed appends a command as a log entry contains it: its length, then its bytes.
func AppendFramed(dst, command []byte) []byte { return appendBytes(dst, command) }

// DecodeEntry takes a log entry apart. The commands alias the entry.
func DecodeEntry(entry []byte) (h EntryHeader, commands [][]byte, err error) {
	d := decoder{rest: entry}
	if err := d.formatVersion(entryVersion, "log entry"); err != nil {
		return h, nil, err
	}
	h.UnixNanos = d.time()
	h.Check = Check{Index: d.uvarint(), Digest: d.uint64()}
	n := d.uvarint()
	if n > uint64(len(d.rest)) { // every command has at least its length byte, so that a false count takes no memory
		d.fail()
	}
	if !d.bad {
		commands = make([][]byte, 0, n)
	}
	for range n {
		if d.bad {
			break
		}
		commands = append(commands, d.bytes())
	}
	if err := d.done("log entry"); err != nil {
		return EntryHeader{}, nil, err
	}
	if h.UnixNanos < 0 || n == 0 {
		return EntryHeader{}, nil, fmt.Errorf("%w: log entry without commands or time", ErrCorrupt)
	}
	return h, commands, nil
}

// writeCommand is a decoded write. Its slices alias the log entry.
type writeCommand struct {
	organization, vault []byte
	clientID, actor     []byte
	session, sequence   uint64
	key                 Key
	encodedOperations   []byte
	operations          []Operation
	// countLength is the length of the number of operations in encodedOperations; offsets are those of the
	// operations after it.
	countLength int
	offsets     []uint32
}

// decode fills c, reusing its slice of operations.
func (c *writeCommand) decode(d *decoder) {
	c.organization, c.vault = d.bytes(), d.bytes()
	c.clientID, c.actor = d.bytes(), d.bytes()
	c.session, c.sequence = d.uvarint(), d.uvarint()
	c.key = d.key()
	c.decodeOperations(d)
	// A longer part must not pass: it would make a key that reads as another scope's.
	if c.sequence == 0 || len(c.organization) > MaxScopePart || len(c.vault) > MaxScopePart {
		d.fail()
	}
}

// decodeOperations reads the operations, which end the command.
func (c *writeCommand) decodeOperations(d *decoder) {
	c.encodedOperations = d.rest
	clear(c.operations) // or operations past the new ones would keep an older entry in memory
	c.operations, c.offsets = decodeOperationsAt(d, c.operations[:0], c.offsets[:0])
	for i := range c.operations {
		if c.operations[i].Kind == OpExpireEntity {
			d.fail() // the machine alone expires entities
		}
	}
	c.countLength = uvarintLength(len(c.operations))
}

// release lets go of the entry that c was decoded from.
func (c *writeCommand) release() {
	clear(c.operations)
	*c = writeCommand{operations: c.operations[:0], offsets: c.offsets[:0]}
}

type openSessionCommand struct {
	organization, vault []byte
	clientID, actor     []byte
	attemptID           [16]byte
	expectedSession     uint64
}

func (c *openSessionCommand) decode(d *decoder) {
	c.organization, c.vault = d.bytes(), d.bytes()
	c.clientID, c.actor = d.bytes(), d.bytes()
	copy(c.attemptID[:], d.take(16))
	c.expectedSession = d.uvarint()
	if len(c.organization) > MaxScopePart || len(c.vault) > MaxScopePart {
		d.fail()
	}
}

func decodeConfigUpdate(d *decoder) (u ConfigUpdate) {
	d.bytes() // the actor stands there for readers of the log
	var values [7]*uint64
	for i := range values {
		switch d.octet() {
		case 0:
		case 1:
			v := d.uvarint()
			values[i] = &v
		default:
			d.fail()
		}
	}
	u.EvictionInterval, u.EvictionLimit = values[0], values[2]
	u.ReceiptWindow, u.MaxStreams, u.RetainBytes = values[3], values[4], values[6]
	u.ClientTTL, u.RetainBlocks = signed(values[1]), signed(values[5])
	return u
}

func signed(value *uint64) *int64 {
	if value == nil {
		return nil
	}
	v := int64(*value)
	return &v
}

// fields returns the fields in the order of the encoding.
func (u *ConfigUpdate) fields() [7]*uint64 {
	unsigned := func(value *int64) *uint64 {
		if value == nil {
			return nil
		}
		v := uint64(*value)
		return &v
	}
	return [7]*uint64{
		u.EvictionInterval, unsigned(u.ClientTTL), u.EvictionLimit, u.ReceiptWindow, u.MaxStreams,
		unsigned(u.RetainBlocks), u.RetainBytes,
	}
}
