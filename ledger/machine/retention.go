package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Retention bounds how much history is kept. The horizon is a ledger index: transactions before it are
// gone for every answer and every decision, on every node at the same index, whether their files are still there
// or not. It moves at eviction passes and never back.
//
// A pass must not look for the first transaction that is to be kept, because that would read old blocks
// from the disk while every write waits. So passes leave marks: an index, the ledger time there, and how
// many bytes of operations had been committed by then. The horizon moves from one mark to a later one. The
// distance of two marks is a 256th of what is to be kept, so that little more is kept than was asked for, and
// never less.

// The distance of two marks, in ledger time and in bytes, where a bound is set and where none is.
const (
	marksKept       = 256
	minMarkInterval = int64(1_000_000_000) // nanoseconds
	maxMarkInterval = 3600 * minMarkInterval
	minMarkBytes    = 64 << 10
	maxMarkBytes    = 64 << 20
)

// maxMarksPassed is how many marks the horizon passes at once.
const maxMarksPassed = 64

// retention is the part of the head that says what is kept.
type retention struct {
	horizon uint64 // the first ledger index that is kept; 0: all are
	dropped mark   // that the horizon stands at; zero: none
	marked  mark   // the last one; index is not kept
	bytes   uint64 // of the operations of all transactions
}

// mark is the moment of the history after a ledger index.
type mark struct {
	index uint64
	time  int64
	bytes uint64 // as retention.bytes was
}

func (r *retention) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, r.horizon)
	dst = binary.AppendUvarint(appendTime(dst, r.dropped.time), r.dropped.bytes)
	dst = binary.AppendUvarint(appendTime(dst, r.marked.time), r.marked.bytes)
	return binary.AppendUvarint(dst, r.bytes)
}

func (r *retention) decode(d *decoder) {
	r.horizon = d.uvarint()
	r.dropped.time, r.dropped.bytes = d.time(), d.uvarint()
	r.marked.time, r.marked.bytes = d.time(), d.uvarint()
	r.bytes = d.uvarint()
	if r.horizon > 0 {
		r.dropped.index = r.horizon - 1
	}
	if r.dropped.bytes > r.marked.bytes || r.marked.bytes > r.bytes {
		d.fail()
	}
}

// markPrefix begins the keys of marks in TableMeta.
var markPrefix = []byte("mark")

func appendMarkKey(dst []byte, index uint64) []byte {
	return appendIndexKey(append(dst, markPrefix...), index)
}

func (k *mark) append(dst []byte) []byte {
	return binary.AppendUvarint(appendTime(dst, k.time), k.bytes)
}

func decodeMark(key, value []byte) (k mark, err error) {
	d := decoder{rest: value}
	k.time, k.bytes = d.time(), d.uvarint()
	if len(key) != len(markPrefix)+8 {
		d.fail()
	} else {
		k.index = binary.BigEndian.Uint64(key[len(markPrefix):])
	}
	return k, d.done("mark of the history")
}

// visitMarks calls visit for the marks from an index on until it returns false.
func visitMarks(r Reader, from uint64, visit func(k mark) bool) error {
	var failed error
	err := r.Ascend(TableMeta, appendMarkKey(nil, from), func(key, value []byte) bool {
		if !bytes.HasPrefix(key, markPrefix) {
			return false
		}
		k, err := decodeMark(key, value)
		failed = err
		return err == nil && visit(k)
	})
	return firstErr(err, failed)
}

// markDue tells whether a pass at a ledger time leaves a mark.
func (h *head) markDue(now int64) bool {
	interval, size := maxMarkInterval, uint64(maxMarkBytes)
	if c := &h.config; c.RetainBlocks != 0 {
		interval = min(max(c.RetainBlocks/marksKept, minMarkInterval), maxMarkInterval)
	}
	if c := &h.config; c.RetainBytes != 0 {
		size = min(max(c.RetainBytes/marksKept, minMarkBytes), maxMarkBytes)
	}
	since := h.retention.bytes - h.retention.marked.bytes
	return since >= size || since > 0 && now-h.retention.marked.time >= interval
}

// passable tells whether everything up to a mark is too old or too much at a ledger time.
func (h *head) passable(k *mark, now int64) bool {
	c := &h.config
	return c.RetainBlocks != 0 && now-k.time > c.RetainBlocks ||
		c.RetainBytes != 0 && h.retention.bytes-k.bytes >= c.RetainBytes
}

// retain leaves a mark if it is time for one, and moves the horizon. It follows each pass.
func (m *Machine) retain(tx Tx) error {
	h := &m.head
	if h.markDue(h.time) {
		if err := m.putMark(tx); err != nil {
			return err
		}
	}
	if h.config.RetainBlocks == 0 && h.config.RetainBytes == 0 {
		return nil
	}
	var passed [maxMarksPassed]mark
	n := 0
	// From the horizon on, because a store may have to step over every mark that was deleted before.
	err := visitMarks(tx, h.retention.horizon, func(k mark) bool {
		if n == len(passed) || !h.passable(&k, h.time) {
			return false
		}
		passed[n] = k
		n++
		return true
	})
	if err != nil || n == 0 {
		return err
	}
	for i := range passed[:n] {
		m.key = appendMarkKey(m.key[:0], passed[i].index)
		if err := tx.Delete(TableMeta, m.key); err != nil {
			return err
		}
	}
	h.retention.dropped = passed[n-1]
	h.retention.horizon = passed[n-1].index + 1
	return nil
}

func (m *Machine) putMark(tx Tx) error {
	h := &m.head
	h.retention.marked = mark{index: h.index, time: h.time, bytes: h.retention.bytes}
	m.key = appendMarkKey(m.key[:0], h.index)
	m.scratch = h.retention.marked.append(m.scratch[:0])
	return tx.Put(TableMeta, m.key, m.scratch)
}

// setMarksBack gives the marks of a time that has not come yet a new one: what was written at a wrong time
// counts as written now.
func (m *Machine) setMarksBack(tx Tx, now int64) error {
	r := &m.head.retention
	r.marked.time, r.dropped.time = min(r.marked.time, now), min(r.dropped.time, now)
	var later []mark
	err := visitMarks(tx, r.horizon, func(k mark) bool {
		if k.time > now {
			later = append(later, k)
		}
		return true
	})
	for i := 0; i < len(later) && err == nil; i++ {
		later[i].time = now
		m.key = appendMarkKey(m.key[:0], later[i].index)
		m.scratch = later[i].append(m.scratch[:0])
		err = tx.Put(TableMeta, m.key, m.scratch)
	}
	return err
}

// slot is stream.slot of a receipt that counts: one in the window and not before the horizon.
func (h *head) slot(s *stream, sequence uint64) (windowSlot, bool) {
	slot, ok := s.slot(sequence, h.config.ReceiptWindow)
	return slot, ok && slot.index >= h.retention.horizon
}

// retentionDue tells whether a pass at a ledger time would leave a mark that is asked for, or move the
// horizon. Without it the history of an idle ledger would not grow old.
func (v View) retentionDue(unixNanos int64) (due bool, err error) {
	c := &v.head.config
	if c.RetainBlocks == 0 && c.RetainBytes == 0 {
		return false, nil
	}
	if v.head.markDue(unixNanos) {
		return true, nil
	}
	err = visitMarks(v.r, v.head.retention.horizon, func(k mark) bool {
		due = v.head.passable(&k, unixNanos)
		return false
	})
	return due, err
}

// Retained tells how much history is kept.
type Retained struct {
	Horizon Horizon
	// Since is the ledger time, in Unix nanoseconds, before which everything that is gone was
	// committed; 0 if nothing is.
	Since int64
	Bytes uint64 // of the operations that are kept
}

// Retained returns how much history is kept.
func (v View) Retained() Retained {
	r := &v.head.retention
	return Retained{Horizon: v.head.horizon(), Since: r.dropped.time, Bytes: r.bytes - r.dropped.bytes}
}

// Horizon is where the history that is kept begins. The zero Horizon is that of a ledger that keeps all.
type Horizon struct {
	index  uint64
	epochs []epoch // they are only ever appended to
}

// Equal tells whether two horizons of one ledger are the same.
func (h Horizon) Equal(o Horizon) bool { return h.index == o.index && len(h.epochs) == len(o.epochs) }

// Index returns the first ledger index that is kept; 0 if all are.
func (h Horizon) Index() uint64 { return h.index }

// Horizon returns where the history begins that the state has.
func (v View) Horizon() Horizon { return v.head.horizon() }

func (h *head) horizon() Horizon {
	return Horizon{h.retention.horizon, h.epochs[:len(h.epochs):len(h.epochs)]}
}

// GoneError is returned for what retention has dropped.
type GoneError struct {
	Horizon uint64 // the first ledger index that is kept
	// FirstHeight is the first block that is kept of Scope, one more than the last if there is none. It is
	// 0 if the question was not about the blocks of a scope.
	FirstHeight uint64
	Scope       Scope
}

// Error says from where on there is something.
func (e *GoneError) Error() string {
	if e.FirstHeight == 0 {
		return fmt.Sprintf("what was committed before ledger index %d is no longer kept", e.Horizon)
	}
	return fmt.Sprintf("the blocks of %s before height %d are no longer kept (nor is anything before ledger index %d)",
		e.Scope, e.FirstHeight, e.Horizon)
}

// check returns a *GoneError for an index before the horizon.
func (h Horizon) check(index uint64) error {
	if index < h.index {
		return &GoneError{Horizon: h.index}
	}
	return nil
}

// checkID is check for the index in a transaction id. An id of another ledger is of no
// transaction that there ever was.
func (h Horizon) checkID(id TxID) error {
	ledger, index := id.Parts()
	if index >= h.index {
		return nil
	}
	of := head{epochs: h.epochs}
	if index < h.epochs[0].start || of.ledgerIDAt(index) != ledger {
		return ErrNotFound
	}
	return h.check(index)
}

// ErrDropped is the error of a Reader that is asked for blocks that have been dropped since it was
// made. They lie before the horizon of the newest state.
var ErrDropped = errors.New("the blocks have been dropped")

// ErrChanged is returned for a value that is no longer kept, because its entity has been set or removed since the view
// that found it. The caller can read the entity again.
var ErrChanged = errors.New("the entity has changed while it was read")
