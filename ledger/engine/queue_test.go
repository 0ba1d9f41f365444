package engine

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// cut cuts an entry that is stored and answered at once.
func cut(e *Engine, most int) (spans []Span, commands, size int) {
	e.SetMostCommands(most)
	if spans, commands, size = e.Cut(); len(spans) > 0 {
		e.Stored(0)
		e.Woken()
	}
	return spans, commands, size
}

// A submission is spread over as many entries as the bounds ask for, in order.
func TestTakeKeepsEntriesSmall(t *testing.T) {
	t.Parallel()
	e := New(1<<40, MaxEntryCommands)
	submission := func(commands, size int) *Submission {
		s := new(Submission)
		for range commands {
			s.Add(Origin{}, make([]byte, size), 1)
		}
		e.Submit(s, false)
		return s
	}
	one, two, three := submission(3, 10), submission(5, 10), submission(2, MaxEntryBytes)
	type taken struct {
		s        *Submission
		from, to int
	}
	for i, want := range [][]taken{
		{{one, 0, 3}, {two, 0, 1}},
		{{two, 1, 5}},
		{{three, 0, 1}}, // larger than an entry: alone
		{{three, 1, 2}},
		nil,
	} {
		spans, commands, _ := cut(e, 4)
		n := 0
		for j, p := range spans {
			n += p.To - p.From
			if j >= len(want) || want[j] != (taken{p.Submission, p.From, p.To}) {
				t.Errorf("entry %d part %d is [%d,%d)", i, j, p.From, p.To)
			}
		}
		if len(spans) != len(want) || n != commands {
			t.Errorf("entry %d has %d spans and %d commands (%d counted)", i, len(spans), n, commands)
		}
	}
}

// from is where an actor's commands about the organization of the same name, or another, come from.
func from(actor, organization string) Origin {
	return Origin{machine.Scope{Organization: organization, Vault: "main"}, actor}
}

// queued is a submission of commands of these sizes.
func queued(o Origin, sizes ...int) *Submission {
	s := new(Submission)
	for _, size := range sizes {
		s.Add(o, make([]byte, size), 1)
	}
	return s
}

// A small write shares neither an entry nor the queue with the large writes of another tenant: each large one
// lets the small ones pass once.
func TestSmallWritesPassLargeOnes(t *testing.T) {
	t.Parallel()
	const small, large = 200, 4 << 20
	e := New(1<<40, MaxEntryCommands)
	names := map[*Submission]string{}
	add := func(name string, s *Submission) {
		names[s] = name
		e.Submit(s, false)
	}
	take := func(want ...string) {
		t.Helper()
		spans, commands, size := cut(e, MaxEntryCommands)
		var got []string
		n := 0
		for _, p := range spans {
			got = append(got, names[p.Submission])
			n += p.To - p.From
			if size > MaxEntryBytes && len(spans) > 1 {
				t.Errorf("%s shares an entry of %d bytes", got, size)
			}
		}
		if !slices.Equal(got, want) || n != commands {
			t.Errorf("took %q with %d commands (%d counted), want %q", got, n, commands, want)
		}
	}
	for range 3 {
		add("large", queued(from("bad", "bad"), large))
	}
	add("behind", queued(from("bad", "bad"), small))
	add("of its scope", queued(from("good", "bad"), small))
	add("of its actor", queued(from("bad", "good"), small))
	add("one", queued(from("new", "new"), small, small))
	add("other", queued(from("fair", "fair"), small))
	add("next", queued(from("new", "new"), small))
	take("one", "other", "next")
	add("late", queued(from("new", "new"), small))
	take("large")
	take("late")
	take("large")
	take("large") // nothing passes
	take("behind", "of its scope", "of its actor")
	take()

	add("large", queued(from("bad", "bad"), large))
	add("its", queued(from("good", "good"), large))
	add("after its", queued(from("good", "good"), small))
	add("small", queued(from("fair", "fair"), small))
	take("small")
	take("large")
	take("its")
	take("after its")

	// Nothing passes a change of the configuration, or commands of several scopes.
	change, several := queued(Origin{}, small), queued(from("good", "good"), small)
	change.Exclusive = true
	several.Add(from("good", "fair"), make([]byte, small), 1)
	for name, s := range map[string]*Submission{"change": change, "several": several} {
		add("large", queued(from("bad", "bad"), large))
		add(name, s)
		add("small", queued(from("ugly", "ugly"), small))
		take("large")
		if s.Exclusive {
			take(name)
			take("small")
		} else {
			take(name, "small")
		}
	}
}

// some is a submission of that many commands, with frames of that many bytes together.
func some(commands, bytes int) *Submission {
	s := &Submission{Frames: make([]byte, bytes)}
	for range commands {
		s.Commands = append(s.Commands, Command{End: bytes}) // the first has them all
	}
	return s
}

// Syncs are slow when the last ones have taken long, and much longer than the applies beside them.
func TestSyncPace(t *testing.T) {
	t.Parallel()
	e := New(1, 1)
	for _, step := range []struct {
		name string
		pace *pace
		n    int
		took time.Duration
		slow bool
	}{
		{"short syncs", &e.syncs, 100, slowSync / 2, false},
		{"one long sync", &e.syncs, 1, 2 * slowSync, false},
		{"long syncs", &e.syncs, 30, 2 * slowSync, true},
		{"short applies", &e.applies, 30, slowSync / 2, true},
		{"one long apply", &e.applies, 1, 2 * slowSync, true},
		{"long applies", &e.applies, 30, 2 * slowSync, false},
		{"syncs that are longer still", &e.syncs, 40, 5 * slowSync, true},
		{"the disk has recovered", &e.syncs, 60, slowSync / 2, false},
	} {
		for range step.n {
			step.pace.observe(step.took)
		}
		if e.syncsAreSlow() != step.slow {
			t.Errorf("%s: slow %t, want %t", step.name, !step.slow, step.slow)
		}
	}
}

// An entry waits until the one before is on the disk, and where syncs are slow until it is answered. A full one gains
// nothing by waiting, by its commands or by its bytes; one behind a large command, which small ones may pass, is not
// full. Beside two in flight there is no third.
func TestEntriesInFlight(t *testing.T) {
	t.Parallel()
	const limit = 100
	large := new(Submission)
	large.Add(Origin{}, make([]byte, largeCommand), 1)
	for _, test := range []struct {
		name      string
		slow      bool
		synced    bool
		waiting   []*Submission
		may       bool
		exclusive bool
	}{
		{name: "on the disk", synced: true, waiting: []*Submission{some(1, 1)}, may: true},
		{name: "not on the disk", waiting: []*Submission{some(1, 1)}},
		{name: "slow, on the disk", slow: true, synced: true, waiting: []*Submission{some(1, 1)}},
		{name: "full by its commands", slow: true, waiting: []*Submission{some(limit-1, 10), some(1, 1)}, may: true},
		{name: "nearly full", slow: true, waiting: []*Submission{some(limit-1, 10)}},
		{name: "full by its bytes", slow: true, waiting: []*Submission{some(3, MaxEntryBytes)}, may: true},
		{name: "nearly full by its bytes", slow: true, waiting: []*Submission{some(3, MaxEntryBytes-1)}},
		{name: "a large command in front", slow: true, waiting: []*Submission{large, some(limit, 10)}},
		{name: "beside an exclusive one", synced: true, exclusive: true, waiting: []*Submission{some(limit, 1)}},
	} {
		e := New(1<<40, limit)
		if test.slow {
			e.syncs = pace(2 * slowSync)
		}
		first := some(1, 1)
		first.Exclusive = test.exclusive
		if e.Submit(first, false) != Queued || !e.MayCut() {
			t.Fatalf("%s: the first entry may not be cut", test.name)
		}
		e.Cut()
		for _, s := range test.waiting {
			e.Submit(s, false)
		}
		if test.synced {
			e.Stored(time.Duration(e.syncs))
		}
		check.Equal(t, e.MayCut(), test.may, "%s: a second entry is in flight: %t: got %v", test.name, !test.may)
		if spans, _, _ := e.Cut(); (len(spans) > 0) != test.may {
			t.Errorf("%s: the second entry has %d spans", test.name, len(spans))
		}
		e.Submit(some(limit, 1), false)
		if e.Stored(0); test.may && e.MayCut() {
			t.Errorf("%s: a third entry is in flight", test.name)
		}
		e.Woken()
		if !e.MayCut() {
			t.Errorf("%s: no entry after the first is answered", test.name)
		}
	}
}

// What waits for room is admitted in its order, leaves when its caller does, and is turned away when the engine closes.
// What does not wait has a share of its own.
func TestRoom(t *testing.T) {
	t.Parallel()
	costs := func(cost int64) *Submission {
		s := some(1, 1)
		s.cost = cost
		return s
	}
	e := New(800, MaxEntryCommands)
	first, large, small, gone := costs(700), costs(500), costs(50), costs(60)
	for _, step := range []struct {
		s    *Submission
		wait bool
		want Admission
	}{
		{first, true, Queued}, {large, true, Waiting}, {gone, true, Waiting}, {small, true, Waiting},
		{costs(90), false, Queued}, // of the share
		{costs(11), false, Full},
	} {
		must.Equal(t, e.Submit(step.s, step.wait), step.want, "%d bytes: %d", step.s.cost)
	}
	if s, _ := e.Admitted(); s != nil || e.Bytes() != 790 || e.Submissions() != 2 {
		t.Errorf("%d bytes of %d submissions", e.Bytes(), e.Submissions())
	}
	if !e.Leave(gone) || e.Leave(gone) || e.Leave(first) {
		t.Error("only one that waits can leave, and once")
	}
	spans, _, _ := e.Cut()
	if answered := e.Decide(spans, make([]machine.Outcome, 2), nil, nil); len(answered) != 2 || e.Bytes() != 0 {
		t.Errorf("%d are answered, and %d bytes are left", len(answered), e.Bytes())
	}
	for _, want := range []*Submission{large, small} {
		if s, queued := e.Admitted(); s != want || !queued {
			t.Errorf("admitted %v, %t", s, queued)
		}
	}
	late := costs(700)
	e.Submit(late, true)
	e.Close()
	if s, queued := e.Admitted(); s != late || queued || e.Submit(costs(1), true) != Closed || e.Drained() {
		t.Error("a closed engine takes something, or is drained too early")
	}
	e.Woken()
	spans, _, _ = e.Cut()
	if e.Decide(spans, nil, errors.New("stopped"), nil); !e.Drained() {
		t.Errorf("%d bytes are left", e.Bytes())
	}
}

// The outcomes of an entry go to its submissions, which are answered with the last of their commands. An error of one
// part says that the outcome is unknown if another may be in the log.
func TestDecide(t *testing.T) {
	t.Parallel()
	refused := errors.New("never proposed")
	for _, test := range []struct {
		name    string
		entries [3]error // of two commands each: of one and two, of two alone, of two and three
		unknown bool
	}{
		{name: "all decided"},
		{name: "none proposed", entries: [3]error{refused, refused, refused}},
		{name: "the first part decided", entries: [3]error{nil, refused, refused}, unknown: true},
		{name: "the last part decided", entries: [3]error{refused, refused, nil}, unknown: true},
		{name: "one part unknown", entries: [3]error{refused, Unknown(refused), refused}, unknown: true},
	} {
		e := New(1<<20, 2)
		one, two, three := some(1, 1), some(4, 4), some(1, 1)
		two.AddReplay(machine.Outcome{Code: machine.Replayed}, 5)
		for _, s := range []*Submission{one, two, three} {
			s.cost = 1
			e.Submit(s, false)
		}
		var answered []*Submission
		for i, err := range test.entries {
			spans, commands, _ := e.Cut()
			outcomes := make([]machine.Outcome, commands)
			for j := range outcomes {
				outcomes[j].Index = uint64(2*i + j)
			}
			answered = e.Decide(spans, outcomes, err, answered)
			e.Stored(0)
			e.Woken()
		}
		if !slices.Equal(answered, []*Submission{one, two, three}) || e.Bytes() != 0 {
			t.Errorf("%s: %d are answered, %d bytes are left", test.name, len(answered), e.Bytes())
		}
		failed, unknown := test.entries != [3]error{}, errors.Is(two.Err, ErrOutcomeUnknown)
		if (two.Err != nil) != failed || unknown != test.unknown {
			t.Errorf("%s: %v", test.name, two.Err)
		}
		if two.Err == nil {
			var got []string
			for _, out := range two.Outcomes {
				got = append(got, fmt.Sprint(out.Index))
			}
			check.EqualSlices(t, got, []string{"1", "2", "3", "4", "0"}, "%s: outcomes %s", test.name)
		}
	}
}

// A caller leads if its submission is the only one on its way and the last entry had one command, and nothing is beside
// its entry.
func TestLead(t *testing.T) {
	t.Parallel()
	submit := func(e *Engine, exclusive bool) {
		s := &Submission{Exclusive: exclusive}
		s.Add(Origin{}, make([]byte, 10), 1)
		e.Submit(s, false)
	}
	for what, test := range map[string]struct {
		before func(e *Engine)
		leads  bool
	}{
		"the first": {func(e *Engine) { submit(e, false) }, true},
		"after some of one": {
			func(e *Engine) {
				submit(e, false)
				for range gathers {
					submit(e, false)
					cut(e, 9)
				}
				submit(e, false)
			}, false,
		},
		"after more of one": {
			func(e *Engine) {
				submit(e, false)
				for range gathers + 1 {
					submit(e, false)
					cut(e, 9)
				}
				submit(e, false)
			}, true,
		},
		"after an entry of one": {func(e *Engine) { submit(e, false); cut(e, 9); submit(e, false) }, true},
		"after an entry of two": {
			func(e *Engine) { submit(e, false); submit(e, false); cut(e, 9); submit(e, false) }, false,
		},
		"a change of configuration": {func(e *Engine) { submit(e, true) }, false},
		"behind another":            {func(e *Engine) { submit(e, false); submit(e, false) }, false},
		"beside an entry": {
			func(e *Engine) { submit(e, false); e.Cut(); e.Stored(0); submit(e, false) }, false,
		},
		"nothing": {func(*Engine) {}, false},
	} {
		e := New(1<<20, MaxEntryCommands)
		test.before(e)
		spans, commands, size := e.Lead()
		check.Equal(t, len(spans) == 1 && commands == 1 && size > 0, test.leads, "%s: %v", what)
		if !test.leads {
			continue
		}
		submit(e, false)
		if e.Stored(0); e.MayCut() {
			t.Errorf("%s: another entry may be beside it", what)
		}
		if e.Woken(); !e.MayCut() {
			t.Errorf("%s: what came meanwhile is stuck", what)
		}
	}
}
