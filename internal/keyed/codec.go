package keyed

import (
	"encoding/binary"
	"errors"
)

// ErrEncoding is returned for bytes that are not the encoding of a record.
var ErrEncoding = errors.New("keyed record does not decode")

const recordVersion = 1

// Append appends the encoding of the record. A record has only one encoding:
//
//	u8 1 | u8 state | u8 algorithm | 32 digest | uv token | 16 attempt | u8 policy | uv attempts |
//	u64 lease end | u64 lease set | u64 valid until | u64 ttl | u64 forget after |
//	u64 created | u64 completed | u64 expires |
//	uv checkpoint size | bytes checkpoint | uv response size | 32 response sum | bytes response |
//	uv n | n × (16 attempt | u64 until)
//
// uv is a minimal unsigned varint, bytes is a uv length and that many bytes, words are
// big-endian.
func (r *Record) Append(dst []byte) []byte {
	dst = append(dst, recordVersion, byte(r.State), r.Fingerprint.Algorithm)
	dst = append(dst, r.Fingerprint.Digest[:]...)
	dst = binary.AppendUvarint(dst, r.Token)
	dst = append(dst, r.AttemptID[:]...)
	dst = append(dst, byte(r.Policy))
	dst = binary.AppendUvarint(dst, r.Attempts)
	for _, t := range r.times() {
		dst = binary.BigEndian.AppendUint64(dst, uint64(*t))
	}
	dst = binary.AppendUvarint(dst, r.CheckpointSize)
	dst = append(binary.AppendUvarint(dst, uint64(len(r.Checkpoint))), r.Checkpoint...)
	dst = binary.AppendUvarint(dst, r.ResponseSize)
	dst = append(dst, r.ResponseSum[:]...)
	dst = append(binary.AppendUvarint(dst, uint64(len(r.Response))), r.Response...)
	dst = binary.AppendUvarint(dst, uint64(len(r.Past)))
	for _, p := range r.Past {
		dst = append(dst, p.ID[:]...)
		dst = binary.BigEndian.AppendUint64(dst, uint64(p.Until))
	}
	return dst
}

// times returns the times and spans of a record in the order of its encoding.
func (r *Record) times() [8]*int64 {
	return [...]*int64{
		&r.LeaseEnd, &r.LeaseSet, &r.ValidUntil, &r.TTL, &r.ForgetAfter, &r.Created, &r.Completed, &r.Expires,
	}
}

// Decode reads a record. Its checkpoint and response alias b.
func Decode(b []byte) (*Record, error) {
	r := new(Record)
	if err := r.Decode(b); err != nil {
		return nil, err
	}
	return r, nil
}

// Decode reads a record into r. After an error the contents of r are undefined. Its checkpoint and response alias b.
func (r *Record) Decode(b []byte) error {
	d := decoder{rest: b}
	if d.octet() != recordVersion {
		return ErrEncoding
	}
	*r = Record{State: State(d.octet())}
	r.Fingerprint.Algorithm = d.octet()
	d.copy(r.Fingerprint.Digest[:])
	r.Token = d.uvarint()
	d.copy(r.AttemptID[:])
	r.Policy, r.Attempts = Policy(d.octet()), d.uvarint()
	for _, t := range r.times() {
		*t = d.time()
	}
	r.CheckpointSize, r.Checkpoint = d.uvarint(), d.bytes()
	r.ResponseSize = d.uvarint()
	d.copy(r.ResponseSum[:])
	r.Response = d.bytes()
	n := d.uvarint()
	if n > MaxPastAttempts+1 {
		return ErrEncoding
	}
	for range n {
		var p PastAttempt
		d.copy(p.ID[:])
		p.Until = d.time()
		r.Past = append(r.Past, p)
	}
	if d.bad || len(d.rest) > 0 || r.State < Released || r.State > Expired || r.Policy > TakeOver {
		return ErrEncoding
	}
	return nil
}

// decoder reads an encoding. The first error sticks.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) take(n uint64) []byte {
	if d.bad || n > uint64(len(d.rest)) {
		d.bad = true
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) copy(dst []byte) { copy(dst, d.take(uint64(len(dst)))) }

func (d *decoder) octet() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	// If the last byte were 0, the number would have a second, shorter encoding.
	if n <= 0 || n > 1 && d.rest[n-1] == 0 {
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// bytes returns nil for an empty value, as records do.
func (d *decoder) bytes() []byte {
	if b := d.take(d.uvarint()); len(b) > 0 {
		return b
	}
	return nil
}

// time reads a time, which is never negative.
func (d *decoder) time() int64 {
	b := d.take(8)
	if b == nil {
		return 0
	}
	t := int64(binary.BigEndian.Uint64(b))
	d.bad = d.bad || t < 0
	return t
}
