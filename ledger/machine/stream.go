package machine

import (
	"encoding/binary"
	"fmt"
	"slices"
)

const (
	streamVersion = 1
	// maxAttempts is how many OpenSession attempts of a stream are kept,
	// the current one included: a delayed copy of one of them is fenced rather
	// than taking the stream back.
	maxAttempts = 8
)

// stream is the record of one stream. Its receipts are in the blocks: the
// window holds no more than where each is found.
type stream struct {
	created  uint64 // ledger index of the command that created it
	session  uint64 // 0: none yet
	fenced   uint64 // the session before it, for a repeat of its OpenSession
	last     uint64
	lastSeen int64      // ledger time
	indexed  int64      // under which the expiry index has it, ≤ lastSeen
	attempts [][16]byte // of OpenSession, newest first
	window   window     // slot i is sequence last-i
}

// slot returns where the receipt of a sequence is, if it is in a window of the
// given size.
func (s *stream) slot(sequence, window uint64) (windowSlot, bool) {
	if sequence > s.last || s.last-sequence >= s.visible(window) {
		return windowSlot{}, false
	}
	return s.window.slot(s.last - sequence), true
}

// visible returns how many slots a window of the given size shows. A smaller
// window holds at once, also for streams that have not been written since.
func (s *stream) visible(window uint64) uint64 { return min(s.window.size, window) }

// push records the commit of sequence last+1.
func (s *stream) push(slot windowSlot, window uint64) {
	s.last++
	s.window.push(slot, window)
}

func (s *stream) pushAttempt(id [16]byte) {
	s.attempts = slices.Insert(s.attempts, 0, id)
	s.attempts = s.attempts[:min(len(s.attempts), maxAttempts)]
}

// append writes the record. What the head check of a cached answer needs
// comes first.
func (s *stream) append(dst []byte) []byte {
	dst = append(dst, streamVersion)
	dst = binary.AppendUvarint(dst, s.created)
	dst = binary.AppendUvarint(dst, s.session)
	dst = binary.AppendUvarint(dst, s.last)
	dst = binary.AppendUvarint(dst, s.window.size)
	dst = appendTime(dst, s.lastSeen)
	dst = appendTime(dst, s.indexed)
	dst = binary.AppendUvarint(dst, s.fenced)
	dst = append(dst, byte(len(s.attempts)))
	for i := range s.attempts {
		dst = append(dst, s.attempts[i][:]...)
	}
	return s.window.append(dst)
}

// decode fills s, reusing its slices.
func (s *stream) decode(b []byte) error {
	d := decoder{rest: b}
	n := s.decodeHead(&d)
	s.lastSeen, s.indexed = d.time(), d.time()
	s.fenced = d.uvarint()
	attempts := d.octet()
	if attempts > maxAttempts {
		d.fail()
	}
	s.attempts = s.attempts[:0]
	for range attempts {
		var id [16]byte
		copy(id[:], d.take(16))
		s.attempts = append(s.attempts, id)
	}
	s.window.decode(&d, n)
	return d.done("stream record")
}

// decodeHead reads what stands before the times and returns the size of the
// window.
func (s *stream) decodeHead(d *decoder) (windowSize uint64) {
	d.version(streamVersion)
	s.created, s.session, s.last = d.uvarint(), d.uvarint(), d.uvarint()
	return d.uvarint()
}

// decodeStreamLife reads from a record what eviction asks, and nothing else,
// because a pass meets far more streams than it has time to decode.
func decodeStreamLife(b []byte) (created uint64, lastSeen int64, err error) {
	var s stream
	d := decoder{rest: b}
	s.decodeHead(&d)
	lastSeen = d.time()
	if d.bad {
		return 0, 0, fmt.Errorf("%w: stream record", ErrCorrupt)
	}
	return s.created, lastSeen, nil
}

func (s *stream) state() StreamState {
	return StreamState{CreatedIndex: s.created, Session: s.session, Last: s.last, LastSeen: s.lastSeen}
}
