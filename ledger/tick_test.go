package ledger

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

// A ledger without writes still expires what is due, and proposes nothing once
// nothing is due.
func TestIdleLedgerExpires(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{idleInterval: time.Millisecond})
	lease := testWrite("c", 1, 1)
	lease.Operations = []machine.Operation{{
		Kind: machine.OpSetEntity, Key: []byte("lease"), Value: []byte("x"), ExpiresAt: l.clock.now() +
			int64(20*time.Millisecond),
	}}
	must.Equal(t, must.Get(l.Write(t.Context(), lease))(t).Code, machine.Committed)
	removed := func() bool { return l.Stats().Evictions.Entities == 1 }
	for blocks := l.Watch(t.Context(), lease.Scope, 2); !removed(); { // the pass commits the block
		for _, err := range blocks {
			must.Do(t, err)
			break
		}
	}
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		check.Is(t, check.Err(v.Entity(lease.Scope, "lease")), machine.ErrNotFound, "the entity is")
		due, err := v.Due(l.clock.now())
		if due {
			t.Error("something is due still")
		}
		return err
	}))
	check.Equal(t, l.dueTicks(time.Hour), 0, "%d ticks are due though nothing is")
}

// An idle stream is evicted as well, and a pass that is a million commands away
// is reached.
func TestIdleLedgerEvictsStreams(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), idleInterval: time.Millisecond,
		Config: machine.Config{EvictionInterval: 5_000}}
	l := must.Get(Open(t.Context(), o))(t)
	must.Equal(t, must.Get(l.Write(t.Context(), testWrite("c", 1, 1)))(t).Code, machine.Committed)
	must.Do(t, l.Close())
	o.Clock = func() time.Time { return time.Now().Add(25 * time.Hour) }
	l = must.Get(Open(t.Context(), o))(t)
	for done := false; !done; {
		must.Do(t, l.View(t.Context(), func(v machine.View) error {
			done = v.Streams() == 0
			return nil
		}))
	}
	must.Do(t, l.Close())
}

// A ledger that runs without a write for a month knows that it has run: the next
// start believes its clock.
func TestIdleLedgerKeepsItsTime(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{idleInterval: time.Hour})
	must.Equal(t, must.Get(l.Write(t.Context(), testWrite("c", 1, 1)))(t).Code, machine.Committed)
	index := func() (at uint64) {
		t.Helper()
		must.Do(t, l.View(t.Context(), func(v machine.View) error { at = v.Index(); return nil }))
		return at
	}
	before := index()
	l.tick() // it was not idle
	check.Equal(t, index(), before, "index %d after a tick without a cause")
	l.lastProposed.Add(-int64(presenceInterval))
	l.tick()
	check.Equal(t, index(), before+1, "index %d after a day of silence")
	l.tick()
	check.Equal(t, index(), before+1, "index %d after a second tick")
}

// A start with a clock that is far ahead is refused, unless it is accepted or
// the ledger has paused as long before.
func TestClockThatIsHardToBelieve(t *testing.T) {
	t.Parallel()
	began := time.Now()
	wall := began
	o := Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), Clock: func() time.Time { return wall }}
	sequence := uint64(0)
	start := func(at time.Time, accept bool) error {
		wall, o.AcceptClock = at, accept
		l, err := Open(t.Context(), o)
		if err != nil {
			return err
		}
		sequence++
		if out, err := l.Write(t.Context(), testWrite("c", sequence, 1)); err != nil || out.Code != machine.Committed &&
			out.Code != machine.SequenceGap {
			t.Error(out, err)
		}
		return l.Close()
	}
	const day = 24 * time.Hour
	for _, step := range []struct {
		name    string
		at      time.Duration
		accept  bool
		refused bool
	}{
		{"a new ledger", 0, false, false},
		{"29 days later", 29 * day, false, false},
		{"80 years later", 80 * 365 * day, false, true},
		{"again", 80 * 365 * day, false, true},
		{"31 days after the last command", 60*day + time.Hour, false, true},
		{"the same, accepted", 60*day + time.Hour, true, false},
		{"as long a pause again", 91 * day, false, false},
		{"a clock that is behind", 0, false, false},
	} {
		err := start(began.Add(step.at), step.accept)
		wrong, isClock := errors.AsType[*engine.ClockError](err)
		if isClock != step.refused || isClock != errors.Is(err, datadir.ErrClock) || err != nil && !isClock {
			t.Errorf("%s: %v", step.name, err)
		}
		if isClock && (!wrong.Wall.After(wrong.Ledger) ||
			!strings.Contains(err.Error(), wrong.Ledger.UTC().Format(time.DateOnly))) {
			t.Errorf("%s: the error names the wrong times: %v", step.name, err)
		}
	}
}
