package machine

import (
	"bytes"
	"fmt"
	"slices"
)

func sortByIndex(txs []pendingAudit) {
	slices.SortFunc(txs, func(a, b pendingAudit) int {
		switch {
		case a.t.Index < b.t.Index:
			return -1
		case a.t.Index > b.t.Index:
			return 1
		}
		return 0
	})
}

// reportMissing reports what should be in a table and was not met there, in
// order, so that two audits of one state read the same.
func reportMissing[V any](a *auditor, name string, missing map[string]V) {
	keys := make([]string, 0, len(missing))
	for k := range missing {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		a.problem(fmt.Sprintf("%s %q", name, k), "it is missing: the blocks say that it is there")
	}
}

// chainHeads compares the heads of the chains with the blocks.
func (a *auditor) chainHeads() error {
	err := a.scan(TableScopes, "head of chain", func(k, v []byte) error {
		var head chainHead
		if err := head.decode(v); err != nil {
			return err
		}
		c, known := a.chains[string(k)]
		delete(a.chains, string(k))
		if !known && head.height > 0 && head.places[0].record <= a.sum.Dropped {
			return nil // all of its blocks have been dropped
		}
		c.learn(head.places, a.sum.Dropped)
		if head.height != c.height || head.hash != c.hash {
			return fmt.Errorf("it says height %d hash %s, the last block is %d with %s", head.height, head.hash,
				c.height, c.hash)
		}
		if !slices.Equal(head.places, c.places) {
			return fmt.Errorf("it says that the last blocks are at %v, they are at %v", head.places, c.places)
		}
		return nil
	})
	reportMissing(a, "head of chain", a.chains)
	return err
}

func (a *auditor) entityTable() error {
	err := a.scan(TableEntities, "entity", func(k, v []byte) error {
		a.sum.Entities++
		e, err := decodeEntity(v)
		if err != nil {
			return err
		}
		if e.expiresAt != 0 {
			a.entityEntries++
		}
		want, known := a.entities[string(k)]
		delete(a.entities, string(k))
		switch {
		case !known && e.version <= a.sum.Dropped && !a.knowsAbsent(a.removed, string(k)):
			return a.carriedValue(k, &e)
		case !known:
			return fmt.Errorf("no block has set it")
		case !want.matches(&e):
			return fmt.Errorf("it has version %d, the blocks say %d, or another value or time", e.version, want.version)
		}
		return nil
	})
	reportMissing(a, "entity", a.entities)
	return err
}

func (a *auditor) relationshipTable() error {
	err := a.scan(TableRelationships, "relationship", func(k, v []byte) error {
		a.sum.Relationships++
		d := decoder{rest: v}
		version := d.uvarint()
		if err := d.done("relationship record"); err != nil {
			return err
		}
		want, known := a.relationships[string(k)]
		delete(a.relationships, string(k))
		if !known && version <= a.sum.Dropped && !a.knowsAbsent(a.unrelated, string(k)) {
			return nil
		}
		if !known || version != want {
			return fmt.Errorf("it has version %d, the blocks say %d", version, want)
		}
		return nil
	})
	reportMissing(a, "relationship", a.relationships)
	return err
}

// streamTable checks every stream against its transactions, and the counts.
func (a *auditor) streamTable() error {
	perOrganization := map[string]uint64{}
	err := a.scan(TableStreams, "stream", func(k, v []byte) error {
		a.sum.Streams++
		a.streamEntries++
		scope, _, err := splitScope(k)
		if err != nil {
			return err
		}
		perOrganization[scope.Organization]++
		var s stream
		if err := s.decode(v); err != nil {
			return err
		}
		return a.stream(k, &s)
	})
	if err != nil {
		return err
	}
	if a.sum.Streams != a.head.streams {
		a.problem("number of streams", "the head says %d, there are %d", a.head.streams, a.sum.Streams)
	}
	err = a.scan(TableOrganizations, "organization", func(k, _ []byte) error {
		n, err := readCount(a.r, TableOrganizations, k)
		want := perOrganization[string(k)]
		delete(perOrganization, string(k))
		if err == nil && n != want {
			err = fmt.Errorf("it counts %d streams, there are %d", n, want)
		}
		return err
	})
	reportMissing(a, "organization", perOrganization)
	return err
}

func (a *auditor) stream(key []byte, s *stream) error {
	life, wrote := a.streams[s.created]
	unknown := !wrote && s.created <= a.sum.Dropped
	switch {
	case wrote && life.key != string(key):
		return fmt.Errorf("its creation index %d belongs to another stream", s.created)
	case s.last != life.last && !unknown:
		return fmt.Errorf("its last sequence is %d, the blocks say %d", s.last, life.last)
	case s.created == 0 || s.created > a.head.index || s.session > a.head.index:
		return fmt.Errorf("creation index %d or session %d lie beyond the ledger index", s.created, s.session)
	case s.indexed > max(s.lastSeen, a.head.timeSetBackFrom()) || s.lastSeen > a.latestTime():
		return fmt.Errorf("its times are out of order")
	case s.last > 0 && s.window.size == 0 || s.window.size > s.last:
		return fmt.Errorf("it has %d receipts for %d writes", s.window.size, s.last)
	}
	if err := s.window.check(); err != nil {
		return err
	}
	for i := range s.window.size {
		slot, sequence := s.window.slot(i), s.last-i
		if slot.index <= a.sum.Dropped && slot.index != 0 {
			break // as are all that follow
		}
		a.sum.Receipts++
		t, found, err := findTransaction(a.r, slot.index)
		switch {
		case err != nil:
			return err
		case !found || t.Sequence != sequence || t.CreatedIndex != s.created:
			return fmt.Errorf("the receipt of sequence %d is not at ledger index %d", sequence, slot.index)
		case slot.fingerprint != a.head.fingerprint(t.Key):
			return fmt.Errorf("the receipt of sequence %d has the fingerprint of another key", sequence)
		}
	}
	entry := appendExpiryKey(nil, expiryStream, s.indexed, key)
	b, err := a.r.Get(TableExpiry, entry)
	if err == nil && b == nil {
		err = fmt.Errorf("the expiry index does not have it at %d", s.indexed)
	}
	return err
}

// expiryTable checks that the expiry index has nothing but what the streams
// and entities ask for.
func (a *auditor) expiryTable() error {
	var streams, entities, records uint64
	err := a.scan(TableExpiry, "expiry entry", func(k, _ []byte) error {
		kind, unixNanos, key, err := splitExpiryKey(k)
		if err != nil {
			return err
		}
		switch kind {
		case expiryStream: // each stream has looked for its own
			streams++
			return nil
		case expiryKeyed: // as has each keyed record
			records++
			return nil
		case expiryEntity:
			entities++
		default:
			return fmt.Errorf("it is of unknown kind %d", kind)
		}
		b, err := a.r.Get(TableEntities, bytes.Clone(key))
		if err != nil {
			return err
		}
		if b == nil {
			return fmt.Errorf("there is no such entity")
		}
		e, err := decodeEntity(b)
		if err == nil && e.expiresAt != unixNanos {
			err = fmt.Errorf("the entity expires at %d", e.expiresAt)
		}
		return err
	})
	if streams != a.streamEntries {
		a.problem("expiry index", "it has %d streams, there are %d", streams, a.streamEntries)
	}
	if records != a.keyedEntries {
		a.problem("expiry index", "it has %d keyed records, there are %d", records, a.keyedEntries)
	}
	if entities != a.entityEntries {
		a.problem("expiry index", "it has %d entities, %d expire", entities, a.entityEntries)
	}
	return err
}
