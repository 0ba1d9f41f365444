package cluster

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/engine"
)

// TestTimeOfATerm: ledger time moves to the clock on which a majority of all voters agrees, whether or not that is this
// node's, and otherwise stays.
func TestTimeOfATerm(t *testing.T) {
	t.Parallel()
	const skew, day = engine.MaxClockSkew, 24 * time.Hour
	now := time.Now()
	at := func(ahead time.Duration) http.HandlerFunc { return beats(pulse{Clock: now.Add(ahead).UnixNano()}) }
	vouched := func(ahead time.Duration) http.HandlerFunc {
		return beats(pulse{Clock: now.Add(ahead).UnixNano(), AcceptClock: true})
	}
	garbage, failing := says(http.StatusOK, "noon"), says(http.StatusInternalServerError, "{}")
	type others = []http.HandlerFunc
	for _, test := range []struct {
		what   string
		others others
		want   time.Duration // of ledger time, relative to this node's clock
		err    error
	}{
		{"alone", nil, 0, nil},
		{"both agree", others{at(time.Second), at(time.Second)}, time.Second, nil},
		{"one agrees and one is away", others{at(skew / 2), nil}, 0, nil},
		{"one agrees and one is far ahead", others{at(skew / 2), at(100 * day)}, 0, nil},
		{"this one is far ahead", others{at(-day), at(-day - skew/2)}, -day - skew/2, nil},
		{"this one is behind", others{at(day), at(day + skew/2)}, day, nil},
		{"no two agree", others{at(-2 * skew), at(2 * skew)}, 0, errClocks},
		{"one does not agree and one is away", others{at(2 * skew), nil}, 0, errClocks},
		{"both are away", others{nil, nil}, 0, errClocks},
		{"one tells no number and one fails", others{garbage, failing}, 0, errClocks},
		{"the other of two does not agree", others{at(2 * skew)}, 0, errClocks},
		{"three of five agree", others{at(day), at(skew / 2), at(-day), at(skew / 2)}, skew / 2, nil},
		{"two and two of five agree", others{at(day), at(skew / 2), at(day), at(-day)}, 0, errClocks},
		{"two of four others agree and two are away", others{nil, at(skew / 2), nil, at(1)}, 1, nil},
		{"they agree on what is implausible", others{at(90 * day), at(90 * day)}, 0, datadir.ErrClock},
		{"and one of them vouches for it", others{vouched(90 * day), at(90 * day)}, 90 * day, nil},
		{"and only another one does", others{at(90 * day), at(90 * day), at(90 * day), vouched(180 * day)}, 0,
			datadir.ErrClock},
	} {
		f := newFake(t, voters(t, test.others...), nil).connect(t)
		f.now, f.time = now, now.Add(-2*day).UnixNano()
		err := f.moveTime()
		got, tolerance := time.Unix(0, f.time).Sub(now), 2*time.Second // of the requests
		if err != nil {
			got += 2 * day // it must stay
		}
		if !errors.Is(err, test.err) || (err == nil) != (test.err == nil) || (got-test.want).Abs() > tolerance {
			t.Errorf("%s: ledger time %v, %v, want %v, %v", test.what, got, err, test.want, test.err)
		}
	}
}

// TestLearnersClockDoesNotCount, because it does not vote.
func TestLearnersClockDoesNotCount(t *testing.T) {
	t.Parallel()
	wrong := beats(pulse{Clock: 1})
	m := voters(t, wrong, wrong)
	m.Voters, m.Learners = m.Voters[:1], []uint64{2, 3}
	must.Do(t, newFake(t, m, nil).connect(t).moveTime())
}

// TestLagIsShown: while ledger time lags, the status says why and by how much at most, the log says when it begins and
// ends, and both end with the term.
func TestLagIsShown(t *testing.T) {
	t.Parallel()
	now := time.Now()
	f := newFake(t, voters(t, beats(pulse{Clock: now.Add(time.Hour).UnixNano()}), nil), nil).connect(t)
	f.now, f.time = now, now.Add(-time.Minute).UnixNano()
	f.term.Store(7)
	why := f.moveTime()
	f.noteLag(6, why) // of a term that is over
	if s := f.Status(); s.Lagging != nil || s.MayLag != 0 {
		t.Errorf("%v, %v", s.Lagging, s.MayLag)
	}
	f.noteLag(7, why)
	f.noteLag(7, why)
	s := f.Status()
	if !errors.Is(s.Lagging, errClocks) || (s.MayLag-time.Hour-time.Minute).Abs() > 2*time.Second {
		t.Errorf("%v, %v", s.Lagging, s.MayLag)
	}
	i := slices.IndexFunc(s.Members, func(m Member) bool { return m.ID == 2 })
	if m := s.Members[i]; !m.Answers || (m.ClockAhead-time.Hour).Abs() > 2*time.Second {
		t.Errorf("node 2: %+v", m)
	}
	if m := s.Members[i+1]; m.Answers {
		t.Errorf("node 3 has no listener: %+v", m)
	}
	f.noteLag(7, nil)
	if s := f.Status(); s.Lagging != nil || s.MayLag != 0 {
		t.Errorf("%v, %v", s.Lagging, s.MayLag)
	}
	f.noteLag(7, why)
	f.pulses.endTerm()
	check.Is(t, f.Status().Lagging, nil)
	logged := f.logged.String()
	for text, want := range map[string]int{
		"ledger time lags": 2, "may lag by": 2, "does not lag any more": 1, "clock of another node differs": 1,
	} {
		if n := strings.Count(logged, text); n != want {
			t.Errorf("%q is logged %d times, want %d:\n%s", text, n, want, logged)
		}
	}
}

// TestSkewIsReportedOnce: a clock at the limit does not fill the log.
func TestSkewIsReportedOnce(t *testing.T) {
	t.Parallel()
	const limit = engine.MaxClockSkew
	var p pulses
	for i, step := range []struct {
		ahead           time.Duration
		changed, skewed bool
	}{
		{0, false, false}, {limit, false, false}, {-limit, false, false}, {-limit - 1, true, true},
		{-limit + 1, false, true}, {limit + 1, false, true}, {limit / 2, true, false}, {limit, false, false},
	} {
		changed, skewed := p.note(2, sighting{ahead: step.ahead})
		if changed != step.changed || skewed != step.skewed {
			t.Errorf("step %d: changed %v, skewed %v", i, changed, skewed)
		}
	}
}
