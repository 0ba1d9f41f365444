package machine

import (
	"errors"
	"fmt"
)

// View reads the state as of one ledger index. It is valid as long as the
// Reader that it was made from. What its methods return is copied and stays
// valid.
type View struct {
	Blocks

	head   *head
	cursor *cursors // see Machine.cursor
}

// View returns a view of the state that the machine stands at. The caller
// keeps Apply from running meanwhile.
func (m *Machine) View(r Reader) View {
	return View{Blocks: Blocks{r: r, horizon: m.head.horizon()}, head: &m.head, cursor: &m.cursor}
}

// Created reports whether the ledger has been created.
func (v View) Created() bool { return v.head.created() }

// Index returns the ledger index.
func (v View) Index() uint64 { return v.head.index }

// Time returns the ledger time in Unix nanoseconds.
func (v View) Time() int64 { return v.head.time }

// LongestPause returns the longest step of ledger time so far, in nanoseconds.
func (v View) LongestPause() int64 { return v.head.longestPause }

// CommandsToPass returns how many commands are missing to the next eviction
// pass, at least 1.
func (v View) CommandsToPass() uint64 {
	c, interval := v.head, v.head.config.EvictionInterval
	return interval - min(c.sincePass, interval-1)
}

// Due reports whether an eviction pass at a ledger time would find anything.
// Without it an idle ledger would write a tick to its log for nothing.
func (v View) Due(unixNanos int64) (bool, error) {
	for kind, before := range []int64{
		expiryStream: unixNanos - v.head.config.ClientTTL, expiryEntity: unixNanos + 1, expiryKeyed: unixNanos + 1,
	} {
		due := false
		var failed error
		from, any := v.cursor.from(byte(kind))
		if !any {
			continue
		}
		err := v.r.Ascend(TableExpiry, from, func(k, _ []byte) bool {
			entryKind, t, _, err := splitExpiryKey(k)
			due, failed = err == nil && entryKind == byte(kind) && t < before, err
			return false
		})
		if err := firstErr(err, failed); err != nil || due {
			return due, err
		}
	}
	return v.retentionDue(unixNanos)
}

// Digest returns the running digest at Index.
func (v View) Digest() Hash { return v.head.digest }

// Streams returns the number of streams in all organizations.
func (v View) Streams() uint64 { return v.head.streams }

// Config returns the replicated configuration.
func (v View) Config() Config { return v.head.config }

// LedgerID returns the id that new transactions bear. The ledger must have
// been created.
func (v View) LedgerID() LedgerID { return v.head.ledgerID() }

// ParentIDs returns the ids that the ledger had before it was restored or recovered, the latest first.
func (v View) ParentIDs() (ids []LedgerID) {
	for i := len(v.head.epochs) - 2; i >= 0; i-- {
		ids = append(ids, v.head.epochs[i].id)
	}
	return ids
}

// TxIDAt returns the id of the transaction that took an index.
func (v View) TxIDAt(index uint64) TxID { return NewTxID(v.head.ledgerIDAt(index), index) }

// ErrNotFound is returned for what is not in the ledger.
var ErrNotFound = errors.New("not found")

// Stream returns where a stream stands, and false when there is none.
func (v View) Stream(scope Scope, clientID string) (StreamState, bool, error) {
	s, found, err := v.stream(scope, clientID)
	return s.state(), found, err
}

func (v View) stream(scope Scope, clientID string) (s stream, found bool, err error) {
	b, err := v.r.Get(TableStreams, append(appendScopeKey(nil, scope), clientID...))
	if err != nil || b == nil {
		return stream{}, false, err
	}
	return s, true, s.decode(b)
}

// InWindow reports whether a write is a retry that the state may answer: its
// session is the stream's, and its sequence is in the window. It returns the
// creation index, which tells two lives of a stream apart. Buffer is scratch
// space; pass what is returned to the next call.
func (v View) InWindow(buffer []byte, w *Write) (scratch []byte, createdIndex uint64, ok bool, err error) {
	buffer = append(appendScopeKey(buffer[:0], w.Scope), w.ClientID...)
	b, err := v.r.Get(TableStreams, buffer)
	if err != nil || b == nil {
		return buffer, 0, false, err
	}
	var s stream
	d := decoder{rest: b}
	size := min(s.decodeHead(&d), v.head.config.ReceiptWindow)
	if d.bad {
		return buffer, 0, false, fmt.Errorf("%w: stream record", ErrCorrupt)
	}
	ok = w.Session == s.session && (w.Session == 0 || w.Session >= v.head.epochStart()) &&
		w.Sequence <= s.last && s.last-w.Sequence < size
	if ok && s.created < v.head.retention.horizon { // else no receipt of it is before the horizon
		if err := s.decode(b); err != nil {
			return buffer, 0, false, err
		}
		_, ok = v.head.slot(&s, w.Sequence)
	}
	return buffer, s.created, ok, nil
}

// Replay returns the receipt that the log would answer a write with that is
// InWindow, and false when the log would refuse it.
func (v View) Replay(w *Write, hash RequestHash) (r Receipt, ok bool, err error) {
	s, found, err := v.stream(w.Scope, w.ClientID)
	if err != nil || !found {
		return r, false, err
	}
	slot, ok := v.head.slot(&s, w.Sequence)
	if !ok {
		return r, false, nil
	}
	if r, err = readWindowReceipt(v.r, &s, slot, w.Sequence); err != nil {
		return r, false, err
	}
	r.Replayed = true
	return r, r.Answers(w.Key, hash), nil
}

// Answers reports whether the receipt is the answer to a request with its
// sequence that bears a key and a hash: rule 4.
func (r *Receipt) Answers(key Key, hash RequestHash) bool {
	return r.RequestHash == hash && (r.Key == key || !r.Key.Present || !key.Present)
}

// SessionExpired reports whether a write of the session would be answered with
// SESSION_EXPIRED (rule 1).
func (v View) SessionExpired(s StreamState, found bool, session uint64) bool {
	return session != 0 && (!found || session > s.Session || session < v.head.epochStart())
}

// ReceiptIndexes returns the ledger indexes of the receipts of a stream that are
// in the window, newest first, at most limit, of sequences lower than below; 0
// means all. [Blocks.ReceiptAt] reads the receipts themselves, at any later moment.
func (v View) ReceiptIndexes(scope Scope, clientID string, below uint64, limit int) ([]uint64, error) {
	s, found, err := v.stream(scope, clientID)
	if err != nil || !found {
		return nil, err
	}
	var indexes []uint64
	for i := range s.visible(v.head.config.ReceiptWindow) {
		index := s.window.slot(i).index
		if len(indexes) == limit || index < v.head.retention.horizon {
			break
		}
		if below == 0 || s.last-i < below {
			indexes = append(indexes, index)
		}
	}
	return indexes, nil
}

// ReceiptAt returns the receipt of the transaction that took an index, or a *GoneError.
func (b Blocks) ReceiptAt(index uint64) (Receipt, error) {
	if err := b.horizon.check(index); err != nil {
		return Receipt{}, err
	}
	l, found, err := locate(b.r, index)
	if err != nil {
		return Receipt{}, err
	}
	if !found {
		return Receipt{}, fmt.Errorf("%w: no receipt at ledger index %d", ErrCorrupt, index)
	}
	return l.stored.receipt(l.header.Height)
}

func firstErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
