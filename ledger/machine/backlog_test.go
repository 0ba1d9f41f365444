package machine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// flood applies entries of writes that set so many entities, which expire a second later.
type flood struct {
	*fixture

	scope        Scope
	key          string // of an entity begins so
	commands     int    // of an entry; an entry is a second
	sets         int    // of a command
	sent, number int
}

func (l *flood) second() {
	l.now += second
	var commands [][]byte
	for range l.commands {
		w := operations("flood", uint64(l.sent+1), 0)
		w.Scope = l.scope
		for range l.sets {
			w.Operations = append(w.Operations, setUntil(fmt.Sprintf("%s%d", l.key, l.number), "", l.now+second))
			l.number++
		}
		l.sent++
		commands = append(commands, AppendWrite(nil, w))
	}
	for i, out := range l.entry(commands...) {
		must.Equal(l, out.Code, Committed, "write %d gave %v", l.sent-l.commands+i+1)
	}
}

func (l *flood) left() int { return len(l.mem.tables[TableEntities].keys) }

// Entities that expire leave the state as fast as clients set new ones, whatever the configuration and the keys are:
// a pass that has left something is followed by one that removes what was added since.
func TestBacklogDoesNotGrow(t *testing.T) {
	t.Parallel()
	long := Scope{strings.Repeat("o", MaxScopePart), strings.Repeat("v", MaxScopePart)}
	for _, test := range []struct {
		name            string
		interval, limit uint64
		flood           flood
		most            int // that are left at any time
	}{
		{"small writes", 1_000, 2_000, flood{scope: testScope, commands: 50, sets: 20}, 12_000},
		{"the smallest limit", 10, 1, flood{scope: testScope, commands: 5, sets: 20}, 6_000},
		{"the longest interval", 1_000_000, 1, flood{scope: testScope, commands: 5, sets: 100}, 6_000},
		{"writes of many long keys", 5, 2_000,
			flood{scope: long, key: strings.Repeat("k", MaxKeyBytes-10), commands: 1, sets: MaxOperations}, 4_000},
	} {
		config := testConfig()
		config.EvictionInterval, config.EvictionLimit = 1, 1
		f := newFixture(t, config)
		l := test.flood
		l.fixture = f
		l.second()
		l.second() // and so a pass that leaves something
		f.configure(ConfigUpdate{EvictionInterval: &test.interval, EvictionLimit: &test.limit})
		if !f.m.head.backlog {
			t.Fatalf("%s: there is no backlog", test.name)
		}
		for l.number < 3*test.most {
			if l.second(); l.left() > test.most {
				t.Fatalf("%s: %d entities are left after %d, want at most %d", test.name, l.left(), l.number, test.most)
			}
		}
		if l.left() == 0 {
			t.Errorf("%s: no entity is left, so that there was no backlog", test.name)
		}
		f.now += 2 * second
		f.configure(ConfigUpdate{EvictionLimit: new(uint64(maxEvictLimit))})
		for passes := 0; l.left() > 0; passes++ {
			if f.round(); passes > 20 {
				t.Fatalf("%s: %d entities are left for ever", test.name, l.left())
			}
		}
		check.Equal(t, len(audit(t, f.m, f.mem)), 0, "%s: %v", test.name)
	}
}

// A lasting backlog of one kind holds up no other one: each has a share of every pass.
func TestBacklogOfOneKindHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionInterval, config.EvictionLimit = 50, 2_000
	f := newFixture(t, config)
	l := flood{fixture: f, scope: Scope{Organization: "other"}, commands: 50, sets: 120}
	l.second()
	l.second()
	owner := reserveKey(testKeyedID(1), 1, f.now)
	token := f.keyed(owner, Keyed(keyed.Acquired)).Index
	done := ownKey(keyed.Complete, owner, token, nil)
	done.TTL = second
	f.keyed(done, Keyed(keyed.OK))
	f.commit(appendWrite("idle", 1, 0, "x"))
	f.commit(operations("c", 1, 0, setUntil("before the flood", "", f.now)))
	f.now += config.ClientTTL + 1_000*second
	passes, keys := f.m.evictions.Rounds, len(f.mem.tables[TableKeyed].keys)
	for range 3 {
		l.second()
	}
	if f.m.evictions.Rounds < passes+3 || !f.m.head.backlog {
		t.Fatalf("%d passes, and a backlog: %t", f.m.evictions.Rounds-passes, f.m.head.backlog)
	}
	if n := len(f.mem.tables[TableKeyed].keys); n != 0 || keys != 1 {
		t.Errorf("%d of %d keyed records are left behind entities that come faster than they go", n, keys)
	}
	if _, there := f.stream("idle"); there {
		t.Error("an idle stream is left")
	}
}

// What keeps a backlog from growing adds few passes to an entry, however many entities its writes set.
func TestPassesOfAnEntryAreBounded(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionInterval, config.EvictionLimit = 1_000_000, 1
	f := newFixture(t, config)
	l := flood{fixture: f, scope: testScope, commands: 4, sets: MaxOperations}
	l.second()
	f.now += second
	f.round()
	if !f.m.head.backlog {
		t.Fatal("there is no backlog")
	}
	l.key = strings.Repeat("k", 128-10) // 4,096 of them are 512 KiB, which is an entry
	for range 5 {
		before, added := f.m.evictions, f.m.head.added.work
		l.second()
		passes, removed := f.m.evictions.Rounds-before.Rounds, f.m.evictions.Entities-before.Entities
		if most := (added + 4*MaxOperations) / MaxPassWork; passes > most || removed > passes*MaxPassWork {
			t.Errorf("an entry had %d passes, at most %d, that removed %d entities", passes, most, removed)
		}
	}
}

// A clock that was a year ahead must not keep a key pending for a year, after an epoch has set the time back: its owner
// gets some seconds, and then its outcome is unknown as ever.
func TestEpochEndsLeasesOfAWrongClock(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	right := f.now
	before := reserveKey(testKeyedID(1), 1, f.now)
	f.keyed(before, Keyed(keyed.Acquired))
	f.now += 365 * 24 * 3_600 * second
	f.tick()
	pending, taken := reserveKey(testKeyedID(2), 2, f.now), reserveKey(testKeyedID(3), 3, f.now)
	taken.Policy = keyed.TakeOver
	token := f.keyed(pending, Keyed(keyed.Acquired)).Index
	f.keyed(taken, Keyed(keyed.Acquired))
	f.now = right + 100*second
	f.one(AppendEpoch(nil, testLedger+1, f.now))
	if k := f.record(pending.ID); k == nil || k.State != keyed.Pending {
		t.Errorf("right behind the epoch the record is %+v, want it pending", k)
	}
	f.elapse(int64(keyed.OutageGrace))
	if k := f.record(pending.ID); k == nil || k.State != keyed.Indeterminate {
		t.Errorf("the record is %+v, want its outcome unknown", k)
	}
	next := reserveKey(taken.ID, 4, f.now)
	next.Policy = keyed.TakeOver
	f.keyed(next, Keyed(keyed.Acquired))
	f.keyed(&KeyedCommand{ID: pending.ID, Actor: "a", Command: keyed.Command{
		Kind: keyed.Resolve, State: keyed.Rejected, Response: []byte("nothing was done"),
	}}, Keyed(keyed.OK))
	f.keyed(ownKey(keyed.Complete, pending, token, nil), Keyed(keyed.AlreadyCompleted))
	f.checkKeyed(3, 0)
}
