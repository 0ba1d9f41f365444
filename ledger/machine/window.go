package machine

import (
	"encoding/binary"
	"fmt"
)

// window finds the receipts of a stream's last writes, newest first. Every
// write decodes one, adds a slot and encodes it again, so that it is kept as
// it is stored: fingerprints and deltas are copied and cut, not taken apart.
type window struct {
	size         uint64 // slots
	fingerprints []byte // 4 bytes a slot
	deltas       []byte // a varint a slot: the newest one's index, then how much smaller each next is
}

// windowSlot finds the receipt of one sequence.
type windowSlot struct {
	index uint64 // ledger index of the transaction
	// fingerprint is a digest of the idempotency key, 0 for a write without one. It
	// is kept so that keys that are not there need no look into blocks; a block decides
	// whether a key with the same fingerprint is the same key.
	fingerprint uint32
}

const fingerprintBytes = 4

// fingerprint returns the fingerprint of slot i, which must be below size.
func (w *window) fingerprint(i uint64) uint32 {
	return binary.BigEndian.Uint32(w.fingerprints[i*fingerprintBytes:])
}

// slot returns slot i, which must be below size. Places that make no sense give
// an index at which no receipt is found, so that a damaged window is an error
// and never a wrong receipt.
func (w *window) slot(i uint64) windowSlot {
	index, rest := uint64(0), w.deltas
	for j := uint64(0); j <= i; j++ {
		delta, n := binary.Uvarint(rest)
		if n <= 0 {
			return windowSlot{fingerprint: w.fingerprint(i)}
		}
		if rest = rest[n:]; j == 0 {
			index = delta
		} else {
			index -= delta
		}
	}
	return windowSlot{index, w.fingerprint(i)}
}

// push adds the newest slot and drops the oldest ones beyond a limit.
func (w *window) push(s windowSlot, limit uint64) {
	var front [2 * binary.MaxVarintLen64]byte
	deltas := binary.AppendUvarint(front[:0], s.index)
	rest := w.deltas
	if w.size > 0 {
		newest, n := binary.Uvarint(rest)
		if n > 0 { // otherwise slot finds nothing, as before
			rest = rest[n:]
			deltas = binary.AppendUvarint(deltas, s.index-newest)
		}
	}
	w.deltas = prepend(w.deltas, rest, deltas)
	var fingerprint [fingerprintBytes]byte
	binary.BigEndian.PutUint32(fingerprint[:], s.fingerprint)
	w.fingerprints = prepend(w.fingerprints, w.fingerprints, fingerprint[:])
	for w.size++; w.size > limit; w.size-- {
		w.fingerprints = w.fingerprints[:len(w.fingerprints)-fingerprintBytes]
		w.deltas = dropLast(w.deltas)
	}
}

// prepend returns front and rest in the memory of buffer, of which rest is a
// part.
func prepend(buffer, rest, front []byte) []byte {
	n := len(front) + len(rest)
	if cap(buffer) < n {
		return append(append(make([]byte, 0, 2*n), front...), rest...)
	}
	buffer = buffer[:n]
	copy(buffer[len(front):], rest) // copy moves what overlaps
	copy(buffer, front)
	return buffer
}

// dropLast cuts the last varint off: in all but its last byte the high bit is
// set.
func dropLast(varints []byte) []byte {
	n := len(varints) - 1
	for n > 0 && varints[n-1] >= 0x80 {
		n--
	}
	return varints[:max(n, 0)]
}

func (w *window) append(dst []byte) []byte {
	return append(append(dst, w.fingerprints...), w.deltas...)
}

// decode copies a window of a known size, which is the rest of a stream's
// record. Only check reports whether its deltas make sense.
func (w *window) decode(d *decoder, size uint64) {
	if size > maxWindow {
		d.fail()
		return
	}
	w.size = size
	w.fingerprints = append(w.fingerprints[:0], d.take(size*fingerprintBytes)...)
	w.deltas = append(w.deltas[:0], d.rest...)
	if uint64(len(w.deltas)) < size || size == 0 && len(w.deltas) > 0 {
		d.fail()
	}
	d.rest = nil
}

// check returns an error unless the deltas are one minimal number a slot.
func (w *window) check() error {
	d := decoder{rest: w.deltas}
	for range w.size {
		d.uvarint()
	}
	if err := d.done("window"); err != nil {
		return fmt.Errorf("deltas of the receipts: %w", err)
	}
	return nil
}
