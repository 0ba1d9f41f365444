package machine

import (
	"errors"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/internal/format"
)

// A start with a clock that was years ahead expires what it should not. An epoch
// that sets the time back repairs what can be: what has expired stays expired,
// and everything else lives by the right time again.
func TestEpochSetsTimeBack(t *testing.T) {
	t.Parallel()
	config := testConfig()
	f := newFixture(t, config)
	right := f.now
	f.commit(operations("c", 1, 0, setUntil("short", "v", right+10*second), setUntil("long", "v", right+1_000*second)))
	wrong := right + 100_000_000*second
	f.now = wrong
	f.commit(operations("d", 1, 0, setUntil("later", "v", wrong+second)))
	if _, there := f.entity("long"); there {
		t.Fatal("an entity lives on in the far future")
	}
	f.one(AppendEpoch(nil, testLedger+1, right+second))
	f.now = right + second
	must.Equal(t, f.view().Time(), right+second, "ledger time is %d")
	for key, want := range map[string]bool{"short": false, "long": false, "later": true} {
		if _, there := f.entity(key); there != want {
			t.Errorf("%s is there: %t, want %t", key, there, want)
		}
	}
	f.commit(operations("d", 2, 0, provided(setUntil("long", "w", right+500*second),
		Condition{Kind: ConditionNotExists})))
	if _, there := f.entity("long"); !there {
		t.Error("an entity that was set again is absent")
	}
	// The stream that was last seen in the future is evicted after client_ttl from now.
	f.round()
	f.now += config.ClientTTL
	f.round()
	check.Equal(t, f.view().Streams(), 1, "%d streams, want the one that was written since")
	f.now++
	f.round()
	check.Equal(t, f.view().Streams(), 0, "%d streams, want none: it has been idle since the time was set back")
	check.Equal(t, len(audit(t, f.m, f.mem)), 0)
	if f.m.head.longestPause > 200*second {
		t.Errorf("the longest pause is %d s: it has the wrong clock's jump", f.m.head.longestPause/second)
	}
}

// The longest pause is the longest step of ledger time so far.
func TestLongestPause(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	for _, step := range []int64{3, 40, 5, -9, 7} {
		f.now += step * second
		f.one(AppendTick(nil))
	}
	f.reopen()
	if got := f.view().LongestPause(); got != 40*second {
		t.Errorf("the longest pause is %d s, want 40", got/second)
	}
}

// An entry whose proposer stood at another digest is refused, before it changes
// anything; one that refers to what the machine cannot know is not.
func TestDivergenceIsNoticed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	var stood []Check
	for i := range uint64(5) {
		stood = append(stood, f.m.Check())
		f.commit(appendWrite("c", i+1, 0, "x"))
	}
	apply := func(c Check) error {
		mem := f.mem.Clone()
		m := *f.m
		m.building = map[string]*blockBuilder{}
		header := EntryHeader{UnixNanos: f.now, Check: c}
		_, err := m.Apply(mem, AppendFramed(AppendEntryHeader(nil, header, 1), AppendTick(nil)))
		if err != nil {
			if table, key, differ := mem.Difference(f.mem); differ {
				t.Errorf("key %x of table %d changed", key, table)
			}
		}
		return err
	}
	for i, c := range stood {
		must.Do(t, apply(c), "%d entries back", 5-i)
		c.Digest++
		if err := apply(c); !errors.Is(err, ErrDiverged) || !strings.Contains(err.Error(), "ledger index") {
			t.Errorf("%d entries back, another digest: %v", 5-i, err)
		}
	}
	ahead := f.m.Check()
	ahead.Index++
	check.Is(t, apply(ahead), ErrDiverged, "an index that is not reached yet")
	f.entry(AppendTick(nil), AppendTick(nil))
	between := f.m.Check()
	between.Index--
	check.Is(t, apply(between), ErrDiverged, "an index at which no entry ends")
	old := stood[0]
	old.Digest++
	f.reopen() // a restart knows only where it begins
	must.Do(t, apply(old), "what was before the start")
	last := f.m.Check()
	last.Digest++
	check.Is(t, apply(last), ErrDiverged, "where the start begins")
}

// An entry and a state of another version are refused, with the version in the error.
func TestUnknownVersions(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	entry := AppendEntry(nil, f.now, AppendTick(nil))
	entry[0] = entryVersion + 1
	_, err := f.m.Apply(f.mem, entry)
	if !errors.Is(err, format.ErrVersion) || !strings.Contains(err.Error(), "has format version 2") {
		t.Errorf("an entry of the next version gave %v", err)
	}
	state := f.m.head.append(nil)
	state[0] = headVersion + 1
	check.Is(t, check.Err(decodeHead(state)), format.ErrVersion, "a state of the next version")
}

// Behind an epoch that sets ledger time back, the state of reservations that the clock that was ahead has seen is
// sound: of one that it made, and of one that it gave more time, because its jump counted as an outage.
func TestAuditAfterTimeWasSetBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	right := f.now
	f.keyed(reserveKey(testKeyedID(1), 1, f.now), Keyed(keyed.Acquired))
	f.now += 1_000_000 * second
	f.round()
	f.keyed(reserveKey(testKeyedID(2), 2, f.now), Keyed(keyed.Acquired))
	f.checkKeyed(2, 0)
	f.now = right + second
	f.one(AppendEpoch(nil, testLedger+1, f.now))
	f.checkKeyed(2, 0)
	f.elapse(1_000 * second)
	f.round()
	f.checkKeyed(2, 0)
}
