package machine

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/rapidtest"
)

// meter counts what an apply asks of its storage.
type meter struct {
	*Memory

	gets, walks, writes int
	visited             int // keys that the walks were shown
}

func (m *meter) Get(table Table, key []byte) ([]byte, error) {
	m.gets++
	return m.Memory.Get(table, key)
}

func (m *meter) Ascend(table Table, from []byte, visit func(key, value []byte) bool) error {
	m.walks++
	return m.Memory.Ascend(table, from, func(key, value []byte) bool {
		m.visited++
		return visit(key, value)
	})
}

func (m *meter) Put(table Table, key, value []byte) error {
	m.writes++
	return m.Memory.Put(table, key, value)
}

func (m *meter) Delete(table Table, key []byte) error {
	m.writes++
	return m.Memory.Delete(table, key)
}

// costs is what an entry asks of its storage.
type costs struct{ gets, walks, visits, writes int }

// What the parts of an entry may cost at most.
var (
	entryCost = costs{writes: 1} // the head
	// stream, organization twice, chain; receipt; the same and expiry, height, record
	commandCost = costs{gets: 4, walks: 1, visits: 1, writes: 7}
	// entity, again when it is set; value; entity and expiry
	operationCost = costs{gets: 2, walks: 1, visits: 1, writes: 3}
	// of the expiry index for each kind, twice behind a backlog, and for streams in the future; a mark
	passCost = costs{walks: 8, visits: 8, writes: 1}
	// the marks, of which those are removed that the horizon passes
	retentionCost = costs{walks: 1, visits: 1 + maxMarksPassed, writes: maxMarksPassed}
	// the record twice, a count; entry, record, count, and a block for each scope
	unitCost = costs{gets: 3, visits: 1, writes: 5}
)

func (c *costs) add(n int, o costs) {
	c.gets, c.walks, c.visits, c.writes = c.gets+n*o.gets, c.walks+n*o.walks, c.visits+n*o.visits, c.writes+n*o.writes
}

// However commands, configurations and states are chosen, an entry asks no more
// of its storage than the commands in it, their operations and the bounded work
// of its passes allow.
func TestCostOfAnEntryIsBounded(t *testing.T) {
	t.Parallel()
	dearest, drawn := map[string]float64{}, map[string]int{}
	rapidtest.CheckUntil(t, func() string {
		for _, code := range []Code{Keyed(keyed.Acquired), Keyed(keyed.OK), TooManyKeys} {
			if drawn[code.String()] == 0 {
				return "no command on a key came to " + code.String()
			}
		}
		for _, what := range []string{"gets", "walks", "visits", "writes"} {
			if dearest[what] < 0.3 {
				return fmt.Sprintf("the dearest entry had %.2f of the bound of its %s", dearest[what], what)
			}
		}
		return ""
	}, func(t *rapid.T) {
		config := Config{
			EvictionInterval: pick[uint64](t, "interval", 1, 2, 7, 100), ClientTTL: second,
			EvictionLimit: pick[uint64](t, "limit", 1, 10, 200, 100_000), ReceiptWindow: pick[uint64](t, "window", 1,
				64, 1_024),
			MaxStreams:   1 << 20,
			RetainBlocks: pick(t, "retain", 0, 0, second, 5*second),
		}
		mem := &meter{Memory: NewMemory()}
		m := must.Get(Open(mem))(t)
		now := testStart
		added := 0 // since the last pass
		draw := costlyCommands{T: t, next: map[string]uint64{}, config: &config, drawn: drawn}
		apply := func(operations int, commands ...[]byte) []Outcome {
			before := m.evictions
			mem.gets, mem.walks, mem.visited, mem.writes = 0, 0, 0, 0
			out := must.Get(m.Apply(mem, AppendEntry(nil, now, commands...)))(t)
			passes := int(m.evictions.Rounds - before.Rounds)
			taken := int(m.evictions.Streams-before.Streams) + int(m.evictions.Entities-before.Entities) +
				int(m.evictions.Keys-before.Keys)
			// A pass may take as much as commands have added to the expiry index since the pass before: a stream or
			// a keyed record for each command, an entity for each operation.
			added += len(commands) + operations
			// What is put back counts as work, too, and is not counted by the machine.
			units := passes * min(int(config.EvictionLimit)*BacklogFactor, MaxPassWork)
			if passes > 0 {
				units, added = units+added, len(commands)+operations
			}
			if taken > units {
				t.Fatalf("%d passes took %d entries, at most %d", passes, taken, units)
			}
			bound := entryCost
			bound.add(len(commands), commandCost)
			bound.add(operations, operationCost)
			bound.add(passes, passCost)
			if config.RetainBlocks != 0 {
				bound.add(passes, retentionCost)
			}
			bound.add(units, unitCost)
			for what, of := range map[string][2]int{
				"gets": {mem.gets, bound.gets}, "walks": {mem.walks, bound.walks},
				"visits": {mem.visited, bound.visits}, "writes": {mem.writes, bound.writes},
			} {
				dearest[what] = max(dearest[what], float64(of[0])/float64(of[1]))
				if of[0] > of[1] {
					t.Fatalf("%d commands with %d operations, %d passes: %d %s, at most %d",
						len(commands), operations, passes, of[0], what, of[1])
				}
			}
			return out
		}
		apply(0, AppendCreate(nil, testLedger, 77, config))
		for range rapid.IntRange(1, 12).Draw(t, "entries") {
			var commands [][]byte
			operations := 0
			draw.now, draw.sent = now, nil
			for range rapid.IntRange(1, 30).Draw(t, "commands") {
				command, n := draw.command()
				commands, operations = append(commands, command), operations+n
			}
			draw.decided(apply(operations, commands...))
			now += pick[int64](t, "later", 0, 1, second/2, 3*second)
		}
	})
}

// costlyCommands draws commands of all kinds that do as much as they can.
type costlyCommands struct {
	*rapid.T

	now    int64
	next   map[string]uint64 // sequences
	config *Config           // with the largest limits that it had
	sent   []*KeyedCommand   // by place in the entry; nil for another command
	owned  []*KeyedCommand   // reservations, with their tokens
	drawn  map[string]int    // how many commands on keys came to each code
}

// command returns a command and how many operations it has.
func (c *costlyCommands) command() (command []byte, operations int) {
	var key *KeyedCommand
	defer func() { c.sent = append(c.sent, key) }()
	switch pick(c.T, "command", "write", "write", "write", "session", "config", "key", "key", "keyed write") {
	case "session":
		client := fmt.Sprint("s", rapid.IntRange(0, 30).Draw(c.T, "client"))
		attempt := [16]byte{rapid.ByteRange(1, 12).Draw(c.T, "attempt")}
		return AppendOpenSession(nil, &OpenSession{
			Scope: testScope, ClientID: client, Actor: "client:test", AttemptID: attempt,
		}), 0
	case "config":
		u := &ConfigUpdate{
			EvictionInterval: new(pick[uint64](c.T, "interval", 1, 7, 100)),
			EvictionLimit:    new(pick[uint64](c.T, "limit", 1, 200, 100_000)),
			ReceiptWindow:    new(pick[uint64](c.T, "window", 1, 64, 1_024)),
			RetainBlocks:     new(pick(c.T, "retain", 0, second)),
		}
		c.config.EvictionLimit = max(c.config.EvictionLimit, *u.EvictionLimit)
		c.config.RetainBlocks = max(c.config.RetainBlocks, *u.RetainBlocks)
		return AppendUpdateConfig(nil, u, "client:test"), 0
	case "key":
		key = c.onKey()
		return AppendKeyed(nil, key), 0
	case "keyed write":
		w := costlyWrite(c.T, map[string]uint64{}, c.now)
		return AppendKeyedWrite(nil, &KeyedWrite{
			ID: c.keyedID(), ClientID: w.ClientID, Actor: w.Actor, TTL: second, MaxKeys: 4, Operations: w.Operations,
		}), len(w.Operations)
	}
	w := costlyWrite(c.T, c.next, c.now)
	return AppendWrite(nil, w), len(w.Operations)
}

func (c *costlyCommands) keyedID() KeyedID {
	id := testKeyedID(rapid.ByteRange(0, 60).Draw(c.T, "key"))
	id.Principal = fmt.Sprint("user:", rapid.IntRange(0, 1).Draw(c.T, "principal"))
	return id
}

// onKey reserves a key, or sends another command for one that was reserved.
func (c *costlyCommands) onKey() *KeyedCommand {
	if len(c.owned) == 0 || rapid.IntRange(0, 2).Draw(c.T, "reserve") == 0 {
		r := reserveKey(c.keyedID(), rapid.ByteRange(1, 250).Draw(c.T, "attempt"), c.now)
		r.Lease, r.TTL, r.MaxKeys = pick(c.T, "lease", 1, second), second, 4
		r.Policy = keyed.Policy(rapid.IntRange(0, 1).Draw(c.T, "policy"))
		return r
	}
	of := rapid.SampledFrom(c.owned).Draw(c.T, "of")
	content := strings.Repeat("r", pick(c.T, "content", 0, maxInlineAttachment+1))
	command := ownKey(keyed.Kind(rapid.IntRange(2, 8).Draw(c.T, "kind")), of, of.Token, []byte(content))
	command.State, command.TTL = keyed.Committed, second
	return command
}

// decided takes note of the outcomes of an entry.
func (c *costlyCommands) decided(out []Outcome) {
	for i, sent := range c.sent {
		if sent == nil {
			continue
		}
		if c.drawn[out[i].Code.String()]++; out[i].Code == Keyed(keyed.Acquired) {
			owned := *sent
			owned.Token = out[i].Keyed.Record.Token
			c.owned = append(c.owned, &owned)
		}
	}
}

// costlyWrite draws a write that does as much as it can.
func costlyWrite(t *rapid.T, next map[string]uint64, now int64) *Write {
	w := operations(fmt.Sprint("c", rapid.IntRange(0, 60).Draw(t, "client")), 0, 0)
	w.Scope.Vault = fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "vault"))
	name := w.Scope.Vault + " " + w.ClientID
	w.Sequence = next[name] + 1
	switch pick(t, "sequence", "next", "next", "next", "old", "gap") {
	case "next":
		next[name]++
	case "old":
		w.Sequence = max(1, next[name]/2)
	case "gap":
		w.Sequence += 9
	}
	w.Key = testKey(rapid.ByteRange(0, 200).Draw(t, "key"))
	value := strings.Repeat("v", pick(t, "value", 1, 33, 2_000))
	for i := range pick(t, "operations", 1, 1, 10, 100) {
		key := fmt.Sprint(pick(t, "entity", "a", "b"), i)
		op := setUntil(key, value, now+pick[int64](t, "lifetime", 1, second/2, second))
		switch pick(t, "kind", "set", "set", "compare", "delete", "relate") {
		case "compare":
			op.Condition = Condition{Kind: ConditionValueEquals, Value: []byte(value)}
		case "delete":
			op = remove(key)
		case "relate":
			op = relate(key, "r", value[:1])
		}
		w.Operations = append(w.Operations, op)
	}
	return w
}
