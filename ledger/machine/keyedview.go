package machine

import (
	"bytes"

	"github.com/seqledger/seqledger/internal/keyed"
)

// Keyed returns a record as it is at ledger time, without its long response and
// checkpoint; ErrNotFound when the key says nothing.
func (v View) Keyed(id *KeyedID) (*KeyedRecord, error) {
	e, err := loadKeyed(v.r, id.tableKey())
	if err != nil {
		return nil, err
	}
	return v.keyedRecord(*id, e)
}

func (id *KeyedID) tableKey() []byte {
	return appendKeyedKey(nil, id.Scope.Organization, id.Scope.Vault, id.Principal, id.Namespace, id.Key[:])
}

func (v View) keyedRecord(id KeyedID, e *keyedEntry) (*KeyedRecord, error) {
	now := e.record().At(v.head.moment())
	if now == nil {
		return nil, ErrNotFound
	}
	seen := *e
	seen.Record = *now
	return seen.public(id), nil
}

// AnswerKeyed decides a command from the state, if it would change nothing: then
// the log would answer the same at this moment. The view must be as fresh as every
// acknowledgement.
func (v View) AnswerKeyed(c *KeyedCommand) (out Outcome, answered bool, err error) {
	e, err := loadKeyed(v.r, c.ID.tableKey())
	if err != nil || e == nil {
		return out, false, err
	}
	next, decided := keyed.Transition(&e.Record, &c.Command, v.head.moment())
	if decided.Changed || !next.Live(v.head.time) {
		return out, false, nil
	}
	out.Code = codeOfKeyed(decided.Code)
	out.Keyed = &KeyedOutcome{RetryAfter: int64(decided.RetryAfter), Record: e.public(c.ID)}
	return out, true, nil
}

// AnswerKeyedWrite returns the receipt of a keyed write that has committed before,
// and false when the log must decide it.
func (v View) AnswerKeyedWrite(w *KeyedWrite, hash RequestHash) (r Receipt, answered bool, err error) {
	e, err := loadKeyed(v.r, w.ID.tableKey())
	if err != nil || !e.record().Live(v.head.time) || e.State != keyed.Written || e.Fingerprint.Digest != writtenDigest(hash) {
		return r, false, err
	}
	if r, err = v.ReceiptAt(e.Token); err != nil {
		return r, false, err
	}
	r.Replayed = true
	return r, true, nil
}

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

// maxKeyedScan bounds how many records one VisitKeyed steps over: what it skips
// counts, too.
const maxKeyedScan = 2_000

// VisitKeyed calls visit for the records of a scope, of one principal where that is
// not empty, and of one namespace of it where that is not nil, in the order of their
// keys, until visit returns false. It begins behind a key that an earlier visit got.
// If resume is not nil, the visit ended early, and goes on behind it.
func (v View) VisitKeyed(
	scope Scope, principal string, namespace *string, after []byte, visit func(key []byte, k *KeyedRecord) bool,
) (resume []byte, err error) {
	prefix := appendScopeKey(nil, scope)
	if principal != "" {
		prefix = appendPrincipalKey(nil, scope.Organization, scope.Vault, principal)
		if namespace != nil {
			prefix = append(append(prefix, byte(len(*namespace))), *namespace...)
		}
	}
	scanned := 0
	err = v.scan(TableKeyed, prefix, after, func(key, value []byte) (bool, error) {
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
		k, err := v.keyedRecord(id, e)
		if err == nil && !visit(bytes.Clone(key), k) {
			resume = nil
			return false, nil
		}
		return resume == nil, nil // a record that says nothing is stepped over
	})
	return resume, err
}

// Keys returns how many keyed records a principal has in a scope, those that are
// over and not yet removed included.
func (v View) Keys(scope Scope, principal string) (uint64, error) {
	return readCount(v.r, TablePrincipals, appendPrincipalKey(nil, scope.Organization, scope.Vault, principal))
}
