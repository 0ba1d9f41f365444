package ledgermodel

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Expired reports whether an entity is absent though its record may be there.
func (m *Model) Expired(e Entity) bool {
	return e.ExpiresAt != 0 && (e.ExpiresAt <= m.Time || slices.ContainsFunc(m.epochs, func(past epoch) bool {
		return past.start > e.Version && past.timeBefore >= e.ExpiresAt
	}))
}

// changes are what one write does to entities and relationships. They are kept
// apart from the model until all of its conditions have held, because a refused
// write must not change anything.
type changes struct {
	m        *Model
	scope    machine.Scope
	entities map[string]Entity
	related  map[Relation]bool
	versions []uint64
	added    int // entries that the expiry index gets
}

func newChanges(m *Model, scope machine.Scope) *changes {
	return &changes{m: m, scope: scope, entities: map[string]Entity{}, related: map[Relation]bool{}}
}

// find returns an entity as conditions see it; version 0 means absent.
func (c *changes) find(key []byte) Entity {
	e, ok := c.entities[string(key)]
	if !ok {
		e = c.m.Entities[Name{c.scope, string(key)}]
	}
	if e.gone || c.m.Expired(e) {
		return Entity{}
	}
	return e
}

// indexed returns the time under which the expiry index has a key, 0 for none. Until a pass it has what has expired.
func (c *changes) indexed(key []byte) int64 {
	if e, ok := c.entities[string(key)]; ok {
		return e.ExpiresAt // 0 if it is gone
	}
	return c.m.Entities[Name{c.scope, string(key)}].ExpiresAt
}

// operate applies one operation, and returns the code of its condition if that
// fails.
func (c *changes) operate(op *machine.Operation) machine.Code {
	e := c.find(op.Key)
	there := e.Version != 0
	switch k := op.Condition; {
	case k.Kind == machine.ConditionNone, k.Kind == machine.ConditionNotExists && !there:
	case k.Kind == machine.ConditionNotExists:
		return machine.KeyExists
	case !there:
		return machine.KeyNotFound
	case k.Kind == machine.ConditionVersion && k.Version != e.Version:
		return machine.VersionMismatch
	case k.Kind == machine.ConditionValueEquals && string(k.Value) != e.Value:
		return machine.ValueMismatch
	}
	version := c.m.Index
	r := Relation{c.scope, string(op.Key), string(op.Relation), string(op.Subject)}
	related, touched := c.related[r]
	if !touched {
		related = c.m.Related[r]
	}
	switch op.Kind {
	case machine.OpSetEntity:
		if op.ExpiresAt != 0 && op.ExpiresAt != c.indexed(op.Key) {
			c.added++
		}
		c.entities[string(op.Key)] = Entity{Value: string(op.Value), Version: version, ExpiresAt: op.ExpiresAt}
	case machine.OpDeleteEntity:
		if !there { // the record of an expired one waits for its pass
			version = 0
		} else {
			c.entities[string(op.Key)] = Entity{gone: true}
		}
	case machine.OpCreateRelationship, machine.OpDeleteRelationship:
		wanted := op.Kind == machine.OpCreateRelationship
		if related == wanted {
			version = 0
		}
		c.related[r] = wanted
	}
	c.versions = append(c.versions, version)
	return 0
}

// tryOperations applies operations. When a condition fails, the outcome says which.
func (m *Model) tryOperations(scope machine.Scope, ops []machine.Operation, out *machine.Outcome) *changes {
	c := newChanges(m, scope)
	for i := range ops {
		if code := c.operate(&ops[i]); code != 0 {
			out.Code, out.OperationIndex, out.EntityKey = code, i, ops[i].Key
			out.CurrentVersion = c.find(ops[i].Key).Version
			break
		}
	}
	return c
}

func (c *changes) keep() {
	for range c.added {
		c.m.grow(1)
	}
	for key, e := range c.entities {
		n := Name{c.scope, key}
		delete(c.m.mortal, n)
		if e.gone {
			delete(c.m.Entities, n)
			continue
		}
		c.m.Entities[n] = e
		if e.ExpiresAt != 0 {
			c.m.mortal[n] = struct{}{}
		}
	}
	for r, there := range c.related {
		if there {
			c.m.Related[r] = true
		} else {
			delete(c.m.Related, r)
		}
	}
}

// pass is one eviction pass: streams that have been idle, then streams that an
// epoch has left in the future, then entities, then keys.
func (m *Model) pass() {
	indexed := func(n Name) int64 { return m.Streams[n].indexed }
	putBack := func(s *Stream) {
		s.LastSeen = min(s.LastSeen, m.Time)
		s.indexed = s.LastSeen
		m.oldest, m.newest = min(m.oldest, s.indexed), max(m.newest, s.indexed)
	}
	idle, ahead := m.dueStreams()
	var entities []Name
	for n := range m.mortal {
		if m.Entities[n].ExpiresAt <= m.Time {
			entities = append(entities, n)
		}
	}
	keys := m.dueKeys()
	room := m.rooms(len(idle), len(ahead), len(entities), len(keys))
	first := func(n int, due []Name, at func(Name) int64) []Name { return firstOf(n, due, at, Name.encoded) }
	for _, n := range first(room[0], idle, indexed) {
		if s := m.Streams[n]; m.Time-s.LastSeen > m.Config.ClientTTL {
			delete(m.Streams, n)
			m.streamsOf[n.Scope.Organization]--
			m.Fired["stream evicted"]++
		} else {
			putBack(s)
			m.Fired["stream put back"]++
		}
	}
	for _, n := range first(room[1], ahead, indexed) {
		putBack(m.Streams[n])
		m.Fired["stream brought back"]++
	}
	m.expire(first(room[2], entities, func(n Name) int64 { return m.Entities[n].ExpiresAt }))
	at := func(id machine.KeyedID) int64 { return m.Keys[id].indexed }
	for _, id := range firstOf(room[3], keys, at, func(id machine.KeyedID) string { return encodedKey(&id) }) {
		m.passKey(id)
	}
}

// firstOf returns what comes first by its time and then its key.
func firstOf[N any](n int, due []N, at func(N) int64, key func(N) string) []N {
	slices.SortFunc(due, func(a, b N) int {
		return cmp.Or(cmp.Compare(at(a), at(b)), cmp.Compare(key(a), key(b)))
	})
	return due[:n]
}

// rooms returns how many of each kind a pass takes, given how many are due. All of them are small, so that the bound of
// its work does not matter.
func (m *Model) rooms(due ...int) []int {
	left := int(m.Config.EvictionLimit)
	room := make([]int, len(due))
	fill := func(left int) (rest int) {
		for i := range due {
			more := min(left, due[i]-room[i])
			room[i], left = room[i]+more, left-more
		}
		return left
	}
	if m.Backlog {
		m.Fired["pass after a backlog"]++
		left = max(10*left, m.added)
		fill(left)
		inOrder := slices.Clone(room)
		share := left / len(due)
		for i := range due {
			room[i] = min(due[i], share)
			left -= room[i]
		}
		fill(left)
		if !slices.Equal(room, inOrder) {
			m.Fired["share of a pass"]++
		}
	} else {
		fill(left)
	}
	if !slices.Equal(room, due) {
		m.Fired["limit left something"]++
	}
	m.Backlog = !slices.Equal(room, due)
	return room
}

// dueStreams returns the streams whose entry in the expiry index is due, and those
// whose entry is in the future.
func (m *Model) dueStreams() (idle, ahead []Name) {
	if (m.oldest == math.MaxInt64 || m.Time-m.oldest <= m.Config.ClientTTL) && m.newest <= m.Time {
		return nil, nil
	}
	m.oldest, m.newest = math.MaxInt64, math.MinInt64
	for n, s := range m.Streams {
		m.oldest, m.newest = min(m.oldest, s.indexed), max(m.newest, s.indexed)
		switch {
		case m.Time-s.indexed > m.Config.ClientTTL:
			idle = append(idle, n)
		case s.indexed > m.Time:
			ahead = append(ahead, n)
		}
	}
	return idle, ahead
}

// expire removes entities, and records that as transactions.
func (m *Model) expire(due []Name) {
	slices.SortFunc(due, func(a, b Name) int { return cmp.Compare(a.encoded(), b.encoded()) })
	for i := 0; i < len(due); {
		var ops []machine.Operation
		scope := due[i].Scope
		for ; i < len(due) && due[i].Scope == scope && len(ops) < 1_000; i++ {
			ops = append(ops, machine.Operation{Kind: machine.OpExpireEntity, Key: []byte(due[i].ID)})
			delete(m.Entities, due[i])
			delete(m.mortal, due[i])
		}
		m.Index++
		m.Fired["entities expired"]++
		hash, _ := machine.HashOperations(nil, ops)
		m.transact(scope, machine.Receipt{Actor: "system:gc", RequestHash: hash}, ops)
	}
}

// SameReceipt reports whether two receipts are equal in every field.
func SameReceipt(a, b *machine.Receipt) bool {
	return a.LedgerID == b.LedgerID && a.Sequence == b.Sequence && a.Session == b.Session && a.Index == b.Index &&
		a.BlockHeight == b.BlockHeight && a.Position == b.Position && a.CommittedAt == b.CommittedAt &&
		a.Actor == b.Actor && a.RequestHash == b.RequestHash && a.Key == b.Key && a.Replayed == b.Replayed &&
		slices.Equal(a.Versions, b.Versions)
}

// Differ says how an outcome differs from the one that is wanted; nothing when it
// does not.
func Differ(got, want *machine.Outcome) string {
	field := func(out *machine.Outcome) string {
		if out.Field == nil {
			return ""
		}
		return out.Field.Field
	}
	same := got.Code == want.Code && got.Index == want.Index && got.CreatedIndex == want.CreatedIndex &&
		got.Last == want.Last && got.Session == want.Session && got.CommittedSequence == want.CommittedSequence &&
		got.OperationIndex == want.OperationIndex && bytes.Equal(got.EntityKey, want.EntityKey) &&
		got.CurrentVersion == want.CurrentVersion && got.PreviousSession == want.PreviousSession &&
		got.Stream == want.Stream && got.Config == want.Config && field(got) == field(want) &&
		SameReceipt(&got.Receipt, &want.Receipt) && !differOfKey(got.Keyed, want.Keyed)
	if same {
		return ""
	}
	return fmt.Sprintf("gave %s\n  %+v%s\nwant %s\n  %+v%s", got.Code, *got, describeKey(got.Keyed), want.Code, *want,
		describeKey(want.Keyed))
}
