package sim

import (
	"cmp"
	"math"
	"slices"

	"github.com/seqledger/seqledger/ledger/machine"
)

// changes are what one write does to entities and relationships, kept aside
// until all of its conditions have held.
type changes struct {
	m        *model
	scope    machine.Scope
	entities map[string]entity
	related  map[relation]bool
	versions []uint64
}

func newChanges(m *model, scope machine.Scope) *changes {
	return &changes{m: m, scope: scope, entities: map[string]entity{}, related: map[relation]bool{}}
}

// find returns an entity as conditions see it; version 0 means absent.
func (c *changes) find(key []byte) entity {
	e, ok := c.entities[string(key)]
	if !ok {
		e = c.m.entities[name{c.scope, string(key)}]
	}
	if e.gone || e.expiresAt != 0 && e.expiresAt <= c.m.time {
		return entity{}
	}
	return e
}

func (c *changes) operate(op *machine.Operation) machine.Code {
	e := c.find(op.Key)
	there := e.version != 0
	switch k := op.Condition; {
	case k.Kind == machine.ConditionNone, k.Kind == machine.ConditionNotExists && !there:
	case k.Kind == machine.ConditionNotExists:
		return machine.KeyExists
	case !there:
		return machine.KeyNotFound
	case k.Kind == machine.ConditionVersion && k.Version != e.version:
		return machine.VersionMismatch
	case k.Kind == machine.ConditionValueEquals && string(k.Value) != e.value:
		return machine.ValueMismatch
	}
	version := c.m.index
	r := relation{c.scope, string(op.Key), string(op.Relation), string(op.Subject)}
	related, touched := c.related[r]
	if !touched {
		related = c.m.related[r]
	}
	switch op.Kind {
	case machine.OpSetEntity:
		c.entities[string(op.Key)] = entity{value: string(op.Value), version: version, expiresAt: op.ExpiresAt}
	case machine.OpDeleteEntity:
		if !there {
			version = 0
		} else {
			c.entities[string(op.Key)] = entity{gone: true}
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

func (c *changes) keep() {
	for key, e := range c.entities {
		n := name{c.scope, key}
		delete(c.m.mortal, n)
		if e.gone {
			delete(c.m.entities, n)
			continue
		}
		c.m.entities[n] = e
		if e.expiresAt != 0 {
			c.m.mortal[n] = struct{}{}
		}
	}
	for r, there := range c.related {
		if there {
			c.m.related[r] = true
		} else {
			delete(c.m.related, r)
		}
	}
}

// pass is one eviction pass.
func (m *model) pass() {
	limit := int(m.config.EvictionLimit)
	if m.backlog {
		limit *= 10
		m.fired["pass after a backlog"]++
	}
	var due []name
	if m.oldest != math.MaxInt64 && m.time-m.oldest > m.config.ClientTTL {
		m.oldest = math.MaxInt64
		for n, s := range m.streams {
			m.oldest = min(m.oldest, s.indexed)
			if m.time-s.indexed > m.config.ClientTTL {
				due = append(due, n)
			}
		}
	}
	slices.SortFunc(due, func(a, b name) int {
		return cmp.Or(cmp.Compare(m.streams[a].indexed, m.streams[b].indexed), cmp.Compare(a.encoded(), b.encoded()))
	})
	m.backlog = len(due) > limit
	due = due[:min(len(due), limit)]
	for _, n := range due {
		s := m.streams[n]
		if m.time-s.lastSeen > m.config.ClientTTL {
			delete(m.streams, n)
			m.count[n.scope.Organization]--
			m.fired["stream evicted"]++
		} else {
			s.indexed = s.lastSeen
			m.fired["stream put back"]++
		}
	}
	m.expire(limit - len(due))
}

func (m *model) expire(limit int) {
	var due []name
	for n := range m.mortal {
		if m.entities[n].expiresAt <= m.time {
			due = append(due, n)
		}
	}
	slices.SortFunc(due, func(a, b name) int {
		return cmp.Or(cmp.Compare(m.entities[a].expiresAt, m.entities[b].expiresAt), cmp.Compare(a.encoded(), b.encoded()))
	})
	m.backlog = m.backlog || len(due) > limit
	due = due[:min(len(due), limit)]
	slices.SortFunc(due, func(a, b name) int { return cmp.Compare(a.encoded(), b.encoded()) })
	for i := 0; i < len(due); {
		var ops []machine.Operation
		scope := due[i].scope
		for ; i < len(due) && due[i].scope == scope && len(ops) < 1_000; i++ {
			ops = append(ops, machine.Operation{Kind: machine.OpExpireEntity, Key: []byte(due[i].id)})
			delete(m.entities, due[i])
			delete(m.mortal, due[i])
		}
		m.index++
		m.fired["entities expired"]++
		hash, _ := machine.HashOperations(nil, ops)
		m.transact(scope, machine.Receipt{Actor: "system:gc", RequestHash: hash}, ops)
	}
}
