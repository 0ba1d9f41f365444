package machine

import "bytes"

// The listings of the state. Each visits keys in their order and is cut so that no View
// lasts too long; what it returns is where the next one begins. A caller bounds how many keys it is
// shown, and a listing how many it steps over: those that are due and those that are deleted, which
// the storage steps over until a checkpoint has removed them.

// BoundedReader is a Reader in which keys that are deleted take time.
type BoundedReader interface {
	Reader
	// AscendBounded is Ascend that ends once it has skipped the given number of deleted keys. Then resume is the
	// last of them, and the rest of the keys follow it; otherwise it is nil.
	AscendBounded(table Table, from []byte, deleted int, visit func(key, value []byte) bool) (resume []byte, err error)
}

// maxDeletedScan bounds how many deleted keys one listing steps over. Each takes up to half a microsecond, and
// applying waits meanwhile.
const maxDeletedScan = 1_000

// ascendBounded is Ascend that is bounded where deleted keys take time.
func (v View) ascendBounded(
	table Table, from []byte, visit func(key, value []byte) bool,
) (resume []byte, err error) {
	if r, ok := v.r.(BoundedReader); ok {
		return r.AscendBounded(table, from, maxDeletedScan, visit)
	}
	return nil, v.r.Ascend(table, from, visit)
}

// NamedStream is a stream with its name.
type NamedStream struct {
	Scope    Scope
	ClientID string
	StreamState

	Newest uint64 // the ledger index of the newest receipt, 0 for none; see [Blocks.ReceiptAt]
}

// VisitStreams calls visit for the streams whose encoded key is greater than after, in the order of their keys, until
// visit returns false. With a scope it visits only that scope. The next page begins after the key that visit got. If
// resume is not nil, the visit ended early and continues with resume as after.
func (v View) VisitStreams(
	scope *Scope, after []byte, visit func(key []byte, s NamedStream) bool,
) (resume []byte, err error) {
	var prefix []byte
	if scope != nil {
		prefix = appendScopeKey(nil, *scope)
	}
	return v.scan(TableStreams, prefix, after, func(key, value []byte) (bool, error) {
		streamScope, clientID, err := splitScope(key)
		if err != nil {
			return false, err
		}
		var s stream
		if err := s.decode(value); err != nil {
			return false, err
		}
		named := NamedStream{Scope: streamScope, ClientID: string(clientID), StreamState: s.state()}
		if s.visible(v.head.config.ReceiptWindow) > 0 {
			named.Newest = s.window.slot(0).index
		}
		if named.Newest < v.head.retention.horizon {
			named.Newest = 0
		}
		return visit(bytes.Clone(key), named), nil
	})
}

// scan visits the keys with the prefix that are greater than after. If resume is not nil, it ended early and continues
// with resume as after.
func (v View) scan(
	table Table, prefix, after []byte, visit func(k, value []byte) (bool, error),
) (resume []byte, err error) {
	from := prefix
	if len(after) > 0 && bytes.Compare(after, prefix) >= 0 {
		from = nextKey(after)
	}
	var failed error
	resume, err = v.ascendBounded(table, from, func(k, value []byte) bool {
		if outside(k, prefix) {
			return false
		}
		more, err := visit(k, value)
		failed = err
		return more && err == nil
	})
	if resume != nil && outside(resume, prefix) {
		resume = nil
	}
	return resume, firstErr(err, failed)
}

// nextKey returns the next possible key.
func nextKey(key []byte) []byte { return append(bytes.Clone(key), 0) }

// Entity is a key with a value in one scope.
type Entity struct {
	Key       string
	Value     []byte
	Version   uint64 // ledger index of the last set
	ExpiresAt int64  // Unix nanoseconds of ledger time, 0 for never
}

// Entity returns an entity, or ErrNotFound.
func (v View) Entity(scope Scope, key string) (Entity, error) {
	ref, err := v.EntityRef(scope, key)
	if err == nil {
		err = v.ReadValue(&ref)
	}
	return ref.Entity, err
}

// EntityRef returns an entity of which the value may still have to be read, or ErrNotFound.
func (v View) EntityRef(scope Scope, key string) (EntityRef, error) {
	b, err := v.r.Get(TableEntities, append(appendScopeKey(nil, scope), key...))
	if err != nil {
		return EntityRef{}, err
	}
	if b == nil {
		return EntityRef{}, ErrNotFound
	}
	e, err := decodeEntity(b)
	if err != nil {
		return EntityRef{}, err
	}
	if v.head.entityExpired(&e) {
		return EntityRef{}, ErrNotFound
	}
	return e.ref(key), nil
}

// ref copies an entity, without a value that is in its block.
func (e *entity) ref(key string) EntityRef {
	ref := EntityRef{Entity: Entity{Key: key, Version: e.version, ExpiresAt: e.expiresAt}}
	if e.inBlock {
		ref.record, ref.missing = *e, true
	} else {
		ref.Value = bytes.Clone(e.value)
	}
	return ref
}

// entity makes a copy with the value, wherever that is.
func (v *valueReader) entity(e *entity, key string) (Entity, error) {
	value, err := v.read(e, []byte(key), -1)
	return Entity{Key: key, Value: bytes.Clone(value), Version: e.version, ExpiresAt: e.expiresAt}, err
}

// EntityRef is an entity of which the value may still have to be read, with
// [Blocks.ReadValue].
type EntityRef struct {
	Entity

	record  entity // with inBlock, if the value has not been read
	missing bool
}

// HasValue reports whether the value has been read.
func (ref *EntityRef) HasValue() bool { return !ref.missing }

// maxExpiredScan bounds how many expired entities a visit skips, at about 0.25 µs each: there may be a large backlog,
// and applying waits for views.
const maxExpiredScan = 2_000

// VisitEntityRefs calls visit for the entities of a scope whose keys begin with prefix and are greater than after, in
// the order of their keys, until visit returns false. If resume is not empty, the visit ended early and continues with
// resume as after. It does not read values in blocks, so its duration does not depend on them.
func (v View) VisitEntityRefs(
	scope Scope, prefix, after string, visit func(EntityRef) bool,
) (resume string, err error) {
	scopeKey := appendScopeKey(nil, scope)
	from := append(bytes.Clone(scopeKey), prefix...)
	var afterKey []byte
	if after != "" {
		afterKey = append(bytes.Clone(scopeKey), after...)
	}
	expired := 0
	deleted, err := v.scan(TableEntities, from, afterKey, func(k, value []byte) (bool, error) {
		e, err := decodeEntity(value)
		if err != nil {
			return false, err
		}
		key := string(k[len(scopeKey):])
		if v.head.entityExpired(&e) {
			if expired++; expired == maxExpiredScan {
				resume = key
			}
			return expired < maxExpiredScan, nil
		}
		return visit(e.ref(key)), nil
	})
	if deleted != nil {
		resume = string(deleted[len(scopeKey):])
	}
	return resume, err
}

// ReadValue reads the value of an entity unless it has been read. The error is ErrChanged if the entity has been set or
// removed since the view that found it, and the value is no longer kept.
func (b Blocks) ReadValue(ref *EntityRef) error {
	return ref.read(&valueReader{r: b.r, later: b.later, horizon: b.horizon.index})
}

func (ref *EntityRef) read(values *valueReader) error {
	if !ref.missing {
		return nil
	}
	found, err := values.entity(&ref.record, ref.Key)
	ref.Entity, ref.missing = found, err != nil
	return err
}

// Relationship says that Subject has Relation to Resource.
type Relationship struct{ Resource, Relation, Subject string }

// VisitRelationships calls visit for the relationships of a scope, of one resource and one relation unless these are
// empty, that follow a key, in a stable order, until visit returns false. The next page begins after the key that visit
// got. If resume is not nil, the visit ended early and continues with resume as after.
func (v View) VisitRelationships(
	scope Scope, resource, relation string, after []byte, visit func(key []byte, r Relationship) bool,
) (resume []byte, err error) {
	scopeKey := appendScopeKey(nil, scope)
	prefix := bytes.Clone(scopeKey)
	if resource != "" {
		prefix = appendRelationshipParts(prefix, []byte(resource))
		if relation != "" {
			prefix = appendRelationshipParts(prefix, []byte(relation))
		}
	}
	if len(after) > 0 {
		after = append(bytes.Clone(scopeKey), after...)
	}
	resume, err = v.scan(TableRelationships, prefix, after, func(k, _ []byte) (bool, error) {
		r, err := splitRelationship(k[len(scopeKey):])
		if err != nil {
			return false, err
		}
		return visit(bytes.Clone(k[len(scopeKey):]), r), nil
	})
	if resume != nil {
		resume = resume[len(scopeKey):]
	}
	return resume, err
}
