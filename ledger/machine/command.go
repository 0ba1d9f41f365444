package machine

import (
	"encoding/binary"
	"fmt"
)

// commandKind is the first byte of a command. A new meaning is a new number,
// for ever, because old logs must replay.
type commandKind byte

const (
	commandCreateLevel1 commandKind = 1 // ledgers of level 1 began with it
	commandWrite        commandKind = 2
	commandOpenSession  commandKind = 3
	commandUpdateLevel2 commandKind = 4 // as commandUpdateConfig, without retention
	commandEpochLevel1  commandKind = 5 // as commandEpoch, but keeps ledger time
	commandTick         commandKind = 6
	commandEpoch        commandKind = 7
	commandRaiseLevel   commandKind = 8
	commandCreateLevel2 commandKind = 9 // as commandCreate, without retention
	commandKeyed        commandKind = 10
	commandKeyedWrite   commandKind = 11
	commandUpdateConfig commandKind = 12
	commandCreate       commandKind = 13
)

// Level is the newest format level: the set of commands, and of constants that
// decide or shape state, that this program knows. A ledger has one level. It is
// part of the state and rises by a command alone, so that every entry of a log
// is decided by the rules that it was decided by first. Level 5 decides as level
// 4 does: at it, all nodes of a cluster have a join token.
const Level = 5

// The versions of a log entry's header.
const (
	entryVersion1 = 1 // without a check
	entryVersion2 = 2 // of ledgers up to level 3, without the level
	entryVersion  = 3
)

// AppendCreate appends the first command of a ledger, which gives it its id,
// its configuration and its level. Seed is random and stays within the ledger:
// the fingerprints of idempotency keys are made with it, so that no client can look
// for keys whose fingerprints agree.
func AppendCreate(dst []byte, id LedgerID, seed uint64, config Config) []byte {
	dst = append(dst, byte(commandCreate))
	dst = binary.BigEndian.AppendUint64(dst, uint64(id))
	dst = binary.BigEndian.AppendUint64(dst, seed)
	dst = appendConfig(dst, config)
	return binary.AppendUvarint(dst, Level)
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

// AppendRaiseLevel appends the command that moves a ledger to a newer level.
func AppendRaiseLevel(dst []byte, level uint64) []byte {
	return binary.AppendUvarint(append(dst, byte(commandRaiseLevel)), level)
}

// Check is a ledger index and the first eight bytes of the digest at it. An
// entry carries that of its proposer, and each node that applies the entry
// compares it with its own: a program or a node that decided otherwise
// stops there. The zero Check is none.
type Check struct{ Index, Digest uint64 }

// EntryHeader is what stands before the commands of a log entry.
type EntryHeader struct {
	UnixNanos int64 // of ledger time; the commands share it
	// Level is the format level that the proposer had applied. 0 stands for any up to 3, whose headers do not have it.
	Level uint64
	Check Check
}

// AppendEntry appends a log entry without a check.
func AppendEntry(dst []byte, unixNanos int64, commands ...[]byte) []byte {
	dst = AppendEntryHeader(dst, EntryHeader{UnixNanos: unixNanos}, len(commands))
	for _, c := range commands {
		dst = AppendFramed(dst, c)
	}
	return dst
}

// AppendEntryHeader appends the header of an entry of so many commands, each of
// which follows as AppendFramed writes it.
func AppendEntryHeader(dst []byte, h EntryHeader, commands int) []byte {
	if h.Level > 3 {
		dst = binary.AppendUvarint(append(dst, entryVersion), h.Level)
	} else { // programs that know level 3 read these
		dst = append(dst, entryVersion2)
	}
	dst = appendTime(dst, h.UnixNanos)
	dst = binary.AppendUvarint(dst, h.Check.Index)
	dst = binary.BigEndian.AppendUint64(dst, h.Check.Digest)
	return binary.AppendUvarint(dst, uint64(commands))
}

// AppendFramed appends a command as it stands in a log entry, behind its
// length.
func AppendFramed(dst, command []byte) []byte { return appendBytes(dst, command) }

// DecodeEntry takes a log entry apart. The commands alias the entry.
func DecodeEntry(entry []byte) (h EntryHeader, commands [][]byte, err error) {
	d := decoder{rest: entry}
	version := d.octet()
	if version > entryVersion {
		return h, nil, fmt.Errorf("%w: log entry of version %d: it was written by a newer version", ErrCorrupt, version)
	}
	if version == entryVersion {
		if h.Level = d.uvarint(); h.Level <= 3 {
			d.fail()
		}
		if h.Level > Level {
			return h, nil, fmt.Errorf("%w: log entry of format level %d, this program knows up to %d: "+
				"it was written by a newer version", ErrCorrupt, h.Level, Level)
		}
	}
	h.UnixNanos = d.time()
	if version > entryVersion1 {
		h.Check = Check{Index: d.uvarint(), Digest: d.uint64()}
	}
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
	// countLength is how many bytes of encodedOperations the number of operations
	// takes, and offsets is where each operation begins behind it.
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
	clear(c.operations) // otherwise what stays behind the new ones would keep an older entry in memory
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

// decodeConfigUpdate reads so many of the fields.
func decodeConfigUpdate(d *decoder, fields int) (u ConfigUpdate) {
	d.bytes() // the actor stands there for readers of the log
	var values [7]*uint64
	for i := range values[:fields] {
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
