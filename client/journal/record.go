package journal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Name names a stream, as the ledger does.
type Name struct {
	// Organization and Vault are the scope; Vault is empty for the organization itself.
	Organization, Vault string
	// ClientID is the stream's client id.
	ClientID string
}

// Kind is the type of a record.
type Kind uint8

// The kinds of records. The numbers are part of the file format.
const (
	// kindStream gives a stream the number that the other records use.
	kindStream Kind = 1
	// KindHead replaces the stream's Head.
	KindHead Kind = 2
	// KindWrite adds a write that is about to be sent.
	KindWrite Kind = 3
	// KindSettled records that the first unsettled write is committed.
	KindSettled Kind = 4
	// KindAcknowledged removes a settled write with a tag.
	KindAcknowledged Kind = 5
	// KindDropped removes an unsettled write and all later ones, because they were not executed.
	// The number of the first is free again.
	KindDropped Kind = 6
	// kindRemembered removes the settled write with a tag, if any, and keeps
	// the tag in use for a time. A File makes one of a KindAcknowledged.
	kindRemembered Kind = 7
)

// Head is the state of a stream without its writes.
type Head struct {
	// Ledger is the id of the ledger that knows the session, 0 before the first session.
	Ledger uint64
	// Session numbers the writes, 0 before the first.
	Session uint64
	// Attempt is the attempt_id of an OpenSession that may be under way: 16 bytes, or empty.
	Attempt []byte
	// NextID is the ID of the next write.
	NextID uint64
	// NextSequence is the sequence of the next write, 0 before the first session.
	NextSequence uint64
}

// Record is one change of a stream. Which fields count depends on Kind.
type Record struct {
	// Kind is required.
	Kind Kind
	// Head is set for a KindHead.
	Head Head
	// ID names a write within its stream in the journal and is never reused. A sequence may be,
	// because an evicted stream starts again at 1. A new write has the ID Head.NextID.
	ID uint64
	// Sequence, Key, Tag and Request are set for a KindWrite. Request is opaque to the journal.
	Sequence uint64
	Key, Tag string
	Request  []byte
	// Reserve is how many bytes to keep free for Receipt, so that recording an outcome never fails with ErrFull.
	Reserve int
	// Receipt is set for a KindSettled. It is opaque to the journal and kept only for a write with a tag.
	Receipt []byte

	tag Tag // of a kindRemembered
}

// appendStream encodes the record that numbers a stream.
func appendStream(b []byte, number uint64, name Name) []byte {
	start := len(b)
	b = append(b, byte(kindStream))
	b = binary.AppendUvarint(b, number)
	b = appendText(b, name.Organization)
	b = appendText(b, name.Vault)
	b = appendText(b, name.ClientID)
	return prefixLength(b, start)
}

// appendRecord encodes r with its length before it.
func appendRecord(b []byte, number uint64, r *Record) []byte {
	start := len(b)
	b = append(b, byte(r.Kind))
	b = binary.AppendUvarint(b, number)
	switch r.Kind {
	case KindHead:
		b = binary.AppendUvarint(b, r.Head.Ledger)
		b = binary.AppendUvarint(b, r.Head.Session)
		b = appendText(b, string(r.Head.Attempt))
		b = binary.AppendUvarint(b, r.Head.NextID)
		b = binary.AppendUvarint(b, r.Head.NextSequence)
	case KindWrite:
		b = binary.AppendUvarint(b, r.ID)
		b = binary.AppendUvarint(b, r.Sequence)
		b = binary.AppendUvarint(b, uint64(r.Reserve))
		b = appendText(b, r.Key)
		b = appendText(b, r.Tag)
		b = append(b, r.Request...)
	case KindSettled:
		b = binary.AppendUvarint(b, r.ID)
		b = append(b, r.Receipt...)
	case kindRemembered:
		b = binary.AppendUvarint(b, uint64(max(0, r.tag.Acknowledged.Unix())))
		b = appendText(b, r.tag.Name)
	default: // KindAcknowledged, KindDropped
		b = binary.AppendUvarint(b, r.ID)
	}
	return prefixLength(b, start)
}

// lengthBytes is the size of the length before a record. It is fixed, because the length is
// only known after the record has been encoded in place.
const lengthBytes = 4

// prefixLength stores the length of what was appended since start.
func prefixLength(b []byte, start int) []byte {
	n := len(b) - start
	b = append(b, 0, 0, 0, 0)
	copy(b[start+lengthBytes:], b[start:start+n])
	binary.LittleEndian.PutUint32(b[start:], uint32(n))
	return b
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// decoded is a decoded record with the number of its stream.
type decoded struct {
	number uint64
	name   Name // of a kindStream
	Record
}

var errShort = errors.New("a record ends in the middle")

// decodeGroup reads the records of one group. What it returns shares no memory with body.
func decodeGroup(body []byte) ([]decoded, error) {
	var records []decoded
	for len(body) > 0 {
		if len(body) < lengthBytes {
			return nil, errShort
		}
		n := binary.LittleEndian.Uint32(body)
		body = body[lengthBytes:]
		if uint64(n) > uint64(len(body)) {
			return nil, errShort
		}
		r, err := decodeRecord(body[:n])
		if err != nil {
			return nil, err
		}
		records = append(records, r)
		body = body[n:]
	}
	return records, nil
}

// decodeRecord decodes one record and refuses everything that appendRecord would not have written.
func decodeRecord(b []byte) (decoded, error) {
	p := parser{rest: b}
	var r decoded
	r.Kind = Kind(p.byte())
	r.number = p.uvarint()
	switch r.Kind {
	case kindStream:
		r.name = Name{p.text(), p.text(), p.text()}
	case KindHead:
		r.Head.Ledger, r.Head.Session = p.uvarint(), p.uvarint()
		if attempt := p.text(); attempt != "" {
			r.Head.Attempt = []byte(attempt)
		}
		r.Head.NextID, r.Head.NextSequence = p.uvarint(), p.uvarint()
		if n := len(r.Head.Attempt); n != 0 && n != attemptBytes {
			return r, fmt.Errorf("an attempt_id of %d bytes, want %d", n, attemptBytes)
		}
	case KindWrite:
		r.ID, r.Sequence = p.uvarint(), p.uvarint()
		reserve := p.uvarint()
		if reserve > maxReserve {
			return r, fmt.Errorf("a write that reserves %d bytes", reserve)
		}
		r.Reserve = int(reserve)
		r.Key, r.Tag = p.text(), p.text()
		r.Request = p.remainder()
	case KindSettled:
		r.ID = p.uvarint()
		r.Receipt = p.remainder()
	case KindAcknowledged, KindDropped:
		r.ID = p.uvarint()
	case kindRemembered:
		seconds := p.uvarint()
		r.tag.Name = p.text()
		if seconds > maxSeconds || r.tag.Name == "" {
			return r, fmt.Errorf("a remembered tag of %d bytes, acknowledged at second %d", len(r.tag.Name), seconds)
		}
		r.tag.Acknowledged = time.Unix(int64(seconds), 0)
	default:
		return r, fmt.Errorf("a record of the unknown kind %d", r.Kind)
	}
	switch {
	case p.err != nil:
		return r, p.err
	case len(p.rest) > 0:
		return r, fmt.Errorf("%d bytes too many in a record of kind %d", len(p.rest), r.Kind)
	}
	return r, nil
}

const (
	attemptBytes = 16
	maxReserve   = 1 << 20
	maxSeconds   = 1 << 40 // far beyond any clock, and within what a time can hold
)

// parser reads fields from the front of a record. After the first error it returns zeros.
type parser struct {
	rest []byte
	err  error
}

func (p *parser) byte() byte {
	if p.err != nil || len(p.rest) == 0 {
		p.err = errShort
		return 0
	}
	b := p.rest[0]
	p.rest = p.rest[1:]
	return b
}

func (p *parser) uvarint() uint64 {
	if p.err != nil {
		return 0
	}
	v, n := binary.Uvarint(p.rest)
	if n <= 0 {
		p.err = errShort
		return 0
	}
	if n > 1 && p.rest[n-1] == 0 {
		// One value has one encoding, so that what was read is what was written.
		p.err = errors.New("a number with leading zeros")
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *parser) text() string {
	n := p.uvarint()
	if p.err == nil && n > uint64(len(p.rest)) {
		p.err = errShort
	}
	if p.err != nil {
		return ""
	}
	s := string(p.rest[:n])
	p.rest = p.rest[n:]
	return s
}

func (p *parser) remainder() []byte {
	if p.err != nil || len(p.rest) == 0 {
		return nil
	}
	b := append([]byte(nil), p.rest...)
	p.rest = nil
	return b
}

// String returns the name for messages.
func (n Name) String() string {
	scope := n.Organization
	if n.Vault != "" {
		scope += "/" + n.Vault
	}
	return fmt.Sprintf("%s, client id %q", scope, n.ClientID)
}

func (n Name) compare(other Name) int {
	return cmp.Or(cmp.Compare(n.Organization, other.Organization),
		cmp.Compare(n.Vault, other.Vault), cmp.Compare(n.ClientID, other.ClientID))
}
