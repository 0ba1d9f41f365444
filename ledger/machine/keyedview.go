package machine

import (
	"bytes"

	"github.com/seqledger/seqledger/internal/keyed"
)

// momentAt is the moment of a command that the next log entry would bear if it
// were stamped with a time.
func (v View) momentAt(unixNanos int64) keyed.Moment {
	next := *v.head
	next.advance(unixNanos)
	next.index++
	return next.moment()
}

// Keyed returns a record as of a ledger time, without a long response or checkpoint. It returns ErrNotFound if the key
// is free.
func (v View) Keyed(id *KeyedID, unixNanos int64) (*KeyedRecord, error) {
	e, err := loadKeyed(v.r, id.TableKey())
	if err != nil {
		return nil, err
	}
	return v.keyedRecord(*id, e, unixNanos)
}

// TableKey returns the key of the record in the state.
func (id *KeyedID) TableKey() []byte { return id.AppendTableKey(nil) }

// AppendTableKey appends the key of the record in the state.
func (id *KeyedID) AppendTableKey(dst []byte) []byte {
	return appendKeyedKey(dst, id.Scope.Organization, id.Scope.Vault, id.Principal, id.Namespace, id.Key[:])
}

func (v View) keyedRecord(id KeyedID, e *keyedEntry, unixNanos int64) (*KeyedRecord, error) {
	now := e.record().At(v.momentAt(unixNanos))
	if now == nil {
		return nil, ErrNotFound
	}
	seen := *e
	seen.Record = *now
	if now.State == keyed.Expired { // what it had is there until a command or a pass removes it
		seen.responseAt, seen.checkpointAt = 0, 0
	}
	return seen.public(id), nil
}

// AnswerKeyed decides a command from the state, if it would change nothing: then
// the log would answer the same in an entry that is stamped with this time. The view
// must be as fresh as every acknowledgement.
func (v View) AnswerKeyed(c *KeyedCommand, unixNanos int64) (out Outcome, answered bool, err error) {
	e, err := loadKeyed(v.r, c.ID.TableKey())
	if err != nil || e == nil {
		return out, false, err
	}
	at := v.momentAt(unixNanos)
	next, decided := keyed.Transition(&e.Record, &c.Command, at)
	if decided.Changed || !next.Live(at.Now) {
		return out, false, nil
	}
	out.Code = Keyed(decided.Code)
	answer := &keyedAnswer{outcome: KeyedOutcome{RetryAfter: int64(decided.RetryAfter)}}
	answer.set(e)
	out.Keyed = &answer.outcome
	return out, true, nil
}

// AnswerKeyedWrite returns the receipt of a keyed write that has committed before,
// and false when the log must decide it. For the time see AnswerKeyed.
func (v View) AnswerKeyedWrite(w *KeyedWrite, hash RequestHash, unixNanos int64) (r Receipt, answered bool, err error) {
	e, err := loadKeyed(v.r, w.ID.TableKey())
	if err != nil || !e.record().Live(max(unixNanos, v.head.time)) || e.State != keyed.Written ||
		e.Fingerprint.Digest != writtenDigest(hash) || e.Token < v.head.retention.horizon {
		return r, false, err
	}
	if r, err = v.ReceiptAt(e.Token); err != nil {
		return r, false, err
	}
	r.Replayed = true
	return r, true, nil
}

// HasAttachments reports whether the record has put a long response or checkpoint
// aside.
func (k *KeyedRecord) HasAttachments() bool { return k.responseAt != 0 || k.checkpointAt != 0 }

// ReadAttachments reads a long response and checkpoint into the record, which may
// be from an earlier View. Whole is false when one of them is gone since, because
// the record has changed.
func (v View) ReadAttachments(k *KeyedRecord) (whole bool, err error) {
	for _, a := range []struct {
		at      uint64
		content *[]byte
	}{{k.responseAt, &k.Response}, {k.checkpointAt, &k.Checkpoint}} {
		if a.at == 0 {
			continue
		}
		b, err := v.r.Get(TableAttachments, appendIndexKey(nil, a.at))
		if err != nil || b == nil {
			return false, err
		}
		*a.content = bytes.Clone(b)
	}
	return true, nil
}

// maxKeyedScan bounds how many records one VisitKeyed steps over. What it skips
// counts, too, because applying waits for it.
const maxKeyedScan = 500

// VisitKeyed calls visit for the records of a scope, of one principal unless that is empty, and of one of its
// namespaces unless that is nil, in the order of their keys, until visit returns false. It begins after a key that an
// earlier visit got. If resume is not nil, the visit ended early and continues with resume as after.
func (v View) VisitKeyed(
	scope Scope, principal string, namespace *string, after []byte, unixNanos int64,
	visit func(key []byte, k *KeyedRecord) bool,
) (resume []byte, err error) {
	prefix := appendScopeKey(nil, scope)
	if principal != "" {
		prefix = appendPrincipalKey(nil, scope.Organization, scope.Vault, principal)
		if namespace != nil {
			prefix = append(append(prefix, byte(len(*namespace))), *namespace...)
		}
	}
	scanned := 0
	deleted, err := v.scan(TableKeyed, prefix, after, func(key, value []byte) (bool, error) {
		id, err := splitKeyedKey(key)
		if err != nil {
			return false, err
		}
		e, err := decodeKeyed(bytes.Clone(value))
		if err != nil {
			return false, err
		}
		if scanned++; scanned == maxKeyedScan {
			resume = bytes.Clone(key)
		}
		if namespace != nil && id.Namespace != *namespace {
			return resume == nil, nil
		}
		k, err := v.keyedRecord(id, e, unixNanos)
		if err == nil && !visit(bytes.Clone(key), k) {
			resume = nil
			return false, nil
		}
		return resume == nil, nil // a record of a free key is skipped
	})
	if deleted != nil {
		resume = deleted
	}
	return resume, err
}

// PendingKeys returns how many keyed records are reserved.
func (v View) PendingKeys() uint64 { return v.head.pendingKeys }

// VisitReservations calls visit for the reservations among the first records of the table, with the time of their
// creation, until it has found all of them or read most records.
func (v View) VisitReservations(most int, visit func(key []byte, created int64)) error {
	missing := v.PendingKeys()
	for after, more := []byte(nil), missing > 0; more; more = after != nil {
		var err error
		after, err = v.scan(TableKeyed, nil, after, func(key, value []byte) (bool, error) {
			e, err := decodeKeyed(value)
			if err != nil {
				return false, err
			}
			if e.State == keyed.Pending {
				visit(key, e.Created)
				missing--
			}
			most--
			return missing > 0 && most > 0, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// VisitKeyedStates calls visit for at most most records after a key, in the order of their keys. The next visit
// continues with resume as after; it is nil at the end.
func (v View) VisitKeyedStates(
	after []byte, most int, visit func(key []byte, s keyed.State),
) (resume []byte, err error) {
	var last []byte
	deleted, err := v.scan(TableKeyed, nil, after, func(key, value []byte) (bool, error) {
		if most--; most < 0 {
			resume = last
			return false, nil
		}
		e, err := decodeKeyed(value)
		if err != nil {
			return false, err
		}
		visit(key, e.State)
		last = append(last[:0], key...)
		return true, nil
	})
	if deleted != nil {
		resume = deleted
	}
	return resume, err
}

// Keys returns how many keyed records a principal has in a scope, those that are
// over and not yet removed included.
func (v View) Keys(scope Scope, principal string) (uint64, error) {
	return readCount(v.r, TablePrincipals, appendPrincipalKey(nil, scope.Organization, scope.Vault, principal))
}
