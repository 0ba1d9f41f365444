package machine

import (
	"encoding/binary"
	"fmt"
)

// commandKind is the first byte of a command. A new meaning is a new number,
// for ever, because old logs must replay.
type commandKind byte

const (
	commandCreate       commandKind = 1
	commandWrite        commandKind = 2
	commandOpenSession  commandKind = 3
	commandUpdateConfig commandKind = 4
	commandEpoch        commandKind = 5
)

const entryVersion = 1

// AppendCreate appends the first command of a ledger, which gives it its id
// and its configuration. Seed is random and stays within the ledger: the marks
// of idempotency keys are made with it, so that no client can look for keys
// whose marks agree.
func AppendCreate(dst []byte, id LedgerID, seed uint64, config Config) []byte {
	dst = append(dst, byte(commandCreate))
	dst = binary.BigEndian.AppendUint64(dst, uint64(id))
	dst = binary.BigEndian.AppendUint64(dst, seed)
	return appendConfig(dst, config)
}

// AppendWrite appends a write, which must be valid (see Write.Validate).
func AppendWrite(dst []byte, w *Write) []byte {
	dst = append(dst, byte(commandWrite))
	dst = appendBytes(dst, w.Scope.Organization)
	dst = appendBytes(dst, w.Scope.Vault)
	dst = appendBytes(dst, w.ClientID)
	dst = appendBytes(dst, w.Actor)
	dst = binary.AppendUvarint(dst, w.Session)
	dst = binary.AppendUvarint(dst, w.Sequence)
	dst = appendKey(dst, w.Key)
	return appendOperations(dst, w.Operations)
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
// the end of every older session.
func AppendEpoch(dst []byte, id LedgerID) []byte {
	dst = append(dst, byte(commandEpoch))
	return binary.BigEndian.AppendUint64(dst, uint64(id))
}

// AppendEntry appends a log entry: commands that share one time, in Unix
// nanoseconds of ledger time.
func AppendEntry(dst []byte, unixNanos int64, commands ...[]byte) []byte {
	dst = AppendEntryHeader(dst, unixNanos, len(commands))
	for _, c := range commands {
		dst = AppendFramed(dst, c)
	}
	return dst
}

// AppendEntryHeader appends what stands before the commands of a log entry:
// so that many proposals, framed by those who make them, need only be copied.
func AppendEntryHeader(dst []byte, unixNanos int64, commands int) []byte {
	dst = append(dst, entryVersion)
	dst = appendTime(dst, unixNanos)
	return binary.AppendUvarint(dst, uint64(commands))
}

// AppendFramed appends a command as it stands in a log entry, behind its
// length.
func AppendFramed(dst, command []byte) []byte { return appendBytes(dst, command) }

// DecodeEntry takes a log entry apart. The commands alias the entry.
func DecodeEntry(entry []byte) (unixNanos int64, commands [][]byte, err error) {
	d := decoder{rest: entry}
	d.version(entryVersion)
	unixNanos = d.time()
	n := d.uvarint()
	if n > uint64(len(d.rest)) { // every command has at least its length byte
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
		return 0, nil, err
	}
	if unixNanos < 0 || n == 0 {
		return 0, nil, fmt.Errorf("%w: log entry without commands or time", ErrCorrupt)
	}
	return unixNanos, commands, nil
}

// writeCommand is a decoded write. Its slices alias the log entry.
type writeCommand struct {
	organization, vault []byte
	clientID, actor     []byte
	session, sequence   uint64
	key                 Key
	encodedOperations   []byte
	operations          []Operation
}

// decode fills c, reusing its slice of operations.
func (c *writeCommand) decode(d *decoder) {
	c.organization, c.vault = d.bytes(), d.bytes()
	c.clientID, c.actor = d.bytes(), d.bytes()
	c.session, c.sequence = d.uvarint(), d.uvarint()
	c.key = d.key()
	c.encodedOperations = d.rest
	c.operations = decodeOperations(d, c.operations[:0])
	for i := range c.operations {
		if c.operations[i].Kind == OpExpireEntity {
			d.fail() // the machine alone expires entities
		}
	}
	// A longer part would make a key that reads as another scope's.
	if c.sequence == 0 || len(c.organization) > MaxScopePart || len(c.vault) > MaxScopePart {
		d.fail()
	}
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
	d.bytes() // the actor, for those who read the log
	var values [5]*uint64
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
	u.ReceiptWindow, u.MaxStreams = values[3], values[4]
	if values[1] != nil {
		ttl := int64(*values[1])
		u.ClientTTL = &ttl
	}
	return u
}

// fields returns the fields in the order of the encoding.
func (u *ConfigUpdate) fields() [5]*uint64 {
	var ttl *uint64
	if u.ClientTTL != nil {
		v := uint64(*u.ClientTTL)
		ttl = &v
	}
	return [5]*uint64{u.EvictionInterval, ttl, u.EvictionLimit, u.ReceiptWindow, u.MaxStreams}
}
