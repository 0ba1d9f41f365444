package machine

import "bytes"

// The listings of the state. Each visits keys in their order and is cut so that no View
// lasts too long; what it returns is where the next one begins.

// NamedStream is a stream with its name.
type NamedStream struct {
	Scope    Scope
	ClientID string
	StreamState
}

// VisitStreams calls visit for the streams whose encoded key is
// greater than after, in the order of their keys, until visit returns false.
// With a scope it visits that scope alone. The key that visit gets is what a
// next page begins after.
func (v View) VisitStreams(scope *Scope, after []byte, visit func(key []byte, s NamedStream) bool) error {
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
		return visit(bytes.Clone(key), NamedStream{streamScope, string(clientID), s.state()}), nil
	})
}

// scan visits the keys with the prefix that come after a key.
func (v View) scan(table Table, prefix, after []byte, visit func(k, value []byte) (bool, error)) error {
	from := prefix
	if len(after) > 0 && bytes.Compare(after, prefix) >= 0 {
		from = append(bytes.Clone(after), 0) // the next possible key
	}
	var failed error
	err := v.r.Ascend(table, from, func(k, value []byte) bool {
		if outside(k, prefix) {
			return false
		}
		more, err := visit(k, value)
		failed = err
		return more && err == nil
	})
	if err == nil {
		err = failed
	}
	return err
}

// Entity is a key with a value in one scope.
type Entity struct {
	Key       string
	Value     []byte
	Version   uint64 // ledger index of the last set
	ExpiresAt int64  // Unix nanoseconds of ledger time, 0 for never
}

// Entity returns an entity, or ErrNotFound.
func (v View) Entity(scope Scope, key string) (Entity, error) {
	b, err := v.r.Get(TableEntities, append(appendScopeKey(nil, scope), key...))
	if err != nil {
		return Entity{}, err
	}
	if b == nil {
		return Entity{}, ErrNotFound
	}
	e, err := decodeEntity(b)
	if err != nil {
		return Entity{}, err
	}
	if v.head.entityExpired(&e) {
		return Entity{}, ErrNotFound
	}
	return (&valueReader{r: v.r}).entity(&e, key)
}

// entity makes a copy with the value, wherever that is.
func (v *valueReader) entity(e *entity, key string) (Entity, error) {
	value, err := v.read(e, []byte(key), -1)
	return Entity{Key: key, Value: bytes.Clone(value), Version: e.version, ExpiresAt: e.expiresAt}, err
}

// EntityRef is an entity of which the value may still have to be read, with
// [View.ReadValue].
type EntityRef struct {
	Entity

	record  entity // with inBlock, if the value has not been read
	missing bool
}

// maxExpiredScan bounds how many expired entities one visit steps over, which takes
// some 0.25 µs for each: eviction may be far behind, and applying waits while a view
// lasts.
const maxExpiredScan = 2_000

// VisitEntityRefs calls visit for the entities of a scope whose keys begin with
// prefix and are greater than after, in the order of their keys, until visit
// returns false. If resume is not empty, the visit ended early, and goes on with
// resume as after. It reads no values that are in blocks: how long it takes depends
// on the number of the entities alone, and on the bytes of the values that it has.
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
	err = v.scan(TableEntities, from, afterKey, func(k, value []byte) (bool, error) {
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
		ref := EntityRef{Entity: Entity{Key: key, Version: e.version, ExpiresAt: e.expiresAt}}
		if e.inBlock != 0 {
			ref.record, ref.missing = e, true
		} else {
			ref.Value = bytes.Clone(e.value)
		}
		return visit(ref), nil
	})
	return resume, err
}

// maxFetched bounds how many bytes of blocks one VisitEntities reads values from,
// because applying waits meanwhile.
const maxFetched = 8 << 20

// VisitEntities is VisitEntityRefs with all values, wherever they are.
func (v View) VisitEntities(scope Scope, prefix, after string, visit func(Entity) bool) (resume string, err error) {
	values, enough := valueReader{r: v.r}, ""
	var failed error
	resume, err = v.VisitEntityRefs(scope, prefix, after, func(ref EntityRef) bool {
		if failed = ref.read(&values); failed != nil || !visit(ref.Entity) {
			return false
		}
		if values.fetched > maxFetched {
			enough = ref.Key
		}
		return enough == ""
	})
	if enough != "" {
		resume = enough
	}
	return resume, firstErr(err, failed)
}

// ReadValue reads the value of an entity unless it is there. It may run in a
// later View than the one that the entity is from.
func (v View) ReadValue(ref *EntityRef) error { return ref.read(&valueReader{r: v.r}) }

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

// VisitRelationships calls visit for the relationships of a scope, of one
// resource and one relation of it where these are not empty, that come after a
// key, in a stable order, until visit returns false. The key that visit gets
// is what a next page begins after.
func (v View) VisitRelationships(
	scope Scope, resource, relation string, after []byte, visit func(key []byte, r Relationship) bool,
) error {
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
	return v.scan(TableRelationships, prefix, after, func(k, _ []byte) (bool, error) {
		r, err := splitRelationship(k[len(scopeKey):])
		if err != nil {
			return false, err
		}
		return visit(bytes.Clone(k[len(scopeKey):]), r), nil
	})
}
