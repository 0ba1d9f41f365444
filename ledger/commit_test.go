package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/internal/decide"
	"github.com/seqledger/seqledger/ledger/machine"
)

var testScope = machine.Scope{Organization: "acme", Vault: "main"}

func openTest(t *testing.T, o Options) *Ledger {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	o.Logger = slog.New(slog.DiscardHandler)
	l, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func testWrite(client string, sequence uint64, payload int) *machine.Write {
	return &machine.Write{
		Scope: testScope, ClientID: client, Actor: "system:test", Sequence: sequence,
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: make([]byte, payload)}},
	}
}

// A submission is spread over as many entries as the bounds ask for, in order.
func TestTakeKeepsEntriesSmall(t *testing.T) {
	t.Parallel()
	var q queue
	submission := func(commands, size int) *Submission {
		s := new(Submission)
		for range commands {
			s.add(make([]byte, size), 1)
		}
		q.add(s, decide.MaxEntryCommands)
		return s
	}
	one, two, three := submission(3, 10), submission(5, 10), submission(2, decide.MaxEntryBytes)
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
		spans, commands, _ := q.take(4)
		n := 0
		for j, p := range spans {
			n += p.to - p.from
			if j >= len(want) || want[j] != (taken{p.submission, p.from, p.to}) {
				t.Errorf("entry %d part %d is [%d,%d)", i, j, p.from, p.to)
			}
		}
		if len(spans) != len(want) || n != commands {
			t.Errorf("entry %d has %d spans and %d commands (%d counted)", i, len(spans), n, commands)
		}
	}
}

// from is where an actor's commands about the organization of the same name, or another, come from.
func from(actor, organization string) origin {
	return origin{machine.Scope{Organization: organization, Vault: "main"}, actor}
}

// queued is a submission of commands of these sizes.
func queued(o origin, sizes ...int) *Submission {
	s := new(Submission)
	for _, size := range sizes {
		s.addFrom(o, make([]byte, size), 1)
	}
	return s
}

// A small write shares neither an entry nor the queue with the large writes of another tenant: each large one
// lets the small ones pass once.
func TestSmallWritesPassLargeOnes(t *testing.T) {
	t.Parallel()
	const small, large = 200, 4 << 20
	var q queue
	names := map[*Submission]string{}
	add := func(name string, s *Submission) {
		names[s] = name
		q.add(s, decide.MaxEntryCommands)
	}
	take := func(want ...string) {
		t.Helper()
		spans, commands, size := q.take(decide.MaxEntryCommands)
		var got []string
		n := 0
		for _, p := range spans {
			got = append(got, names[p.submission])
			n += p.to - p.from
			if size > decide.MaxEntryBytes && len(spans) > 1 {
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
	change, several := queued(origin{}, small), queued(from("good", "good"), small)
	change.exclusive = true
	several.addFrom(from("good", "fair"), make([]byte, small), 1)
	for name, s := range map[string]*Submission{"change": change, "several": several} {
		add("large", queued(from("bad", "bad"), large))
		add(name, s)
		add("small", queued(from("ugly", "ugly"), small))
		take("large")
		if s.exclusive {
			take(name)
			take("small")
		} else {
			take(name, "small")
		}
	}
}

// However the queue is cut into entries, each command is taken once, a scope's and an actor's
// commands stay in their order, and a change of the configuration stays where it is.
func TestTakeKeepsOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type place struct {
			s    *Submission
			from int
		}
		var q queue
		var all []*Submission
		var taken []place
		sizes := rapid.SampledFrom([]int{10, 200, 3_000, largeCommand - 4, largeCommand, 300 << 10, 2 << 20})
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "take") {
				limit := rapid.IntRange(1, 9).Draw(t, "limit")
				spans, commands, size := q.take(limit)
				if commands > limit || size > decide.MaxEntryBytes && commands > 1 {
					t.Fatalf("an entry has %d commands of %d bytes", commands, size)
				}
				for _, p := range spans {
					for i := p.from; i < p.to; i++ {
						taken = append(taken, place{p.submission, i})
					}
				}
				continue
			}
			name := rapid.SampledFrom([]string{"a", "b", "c"})
			s := queued(from(name.Draw(t, "actor"), name.Draw(t, "organization")),
				rapid.SliceOfN(sizes, 1, 5).Draw(t, "sizes")...)
			if kind := rapid.IntRange(0, 9).Draw(t, "kind"); kind == 0 {
				s = queued(origin{}, 10)
				s.exclusive = true
			} else if kind == 1 {
				s.origin = origin{}
			}
			all = append(all, s)
			q.add(s, decide.MaxEntryCommands)
		}
		for len(q.items) > 0 {
			spans, _, _ := q.take(7)
			for _, p := range spans {
				for i := p.from; i < p.to; i++ {
					taken = append(taken, place{p.submission, i})
				}
			}
		}
		at := map[place]int{}
		for i, p := range taken {
			if _, again := at[p]; again {
				t.Fatal("a command was taken twice")
			}
			at[p] = i
		}
		for i, s := range all {
			for j := range s.commands {
				if _, ok := at[place{s, j}]; !ok {
					t.Fatal("a command was not taken")
				}
				if j > 0 && at[place{s, j}] < at[place{s, j - 1}] {
					t.Fatal("a submission's commands were turned round")
				}
			}
			for _, later := range all[i+1:] {
				fixed := s.origin == origin{} || later.origin == origin{} || s.origin.ordered(later.origin)
				if fixed && at[place{later, 0}] < at[place{s, len(s.commands) - 1}] {
					t.Fatalf("%+v passed %+v", later.origin, s.origin)
				}
			}
		}
	})
}

// What is spread over entries is answered as one.
func TestSubmissionOverManyEntries(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{Config: machine.Config{EvictionInterval: 7, EvictionLimit: 100_000}})
	const n = 500
	if bound := l.entryCommands.Load(); bound != 7 {
		t.Fatalf("an entry may have %d commands, want 7: one pass", bound)
	}
	writes := make([]*machine.Write, n)
	for i := range writes {
		writes[i] = testWrite(fmt.Sprint("c", i%3), uint64(i/3)+1, 10)
	}
	if out, err := l.Write(t.Context(), testWrite("c0", 1, 10)); err != nil || out.Code != machine.Committed {
		t.Fatal(out, err) // the first of them is a retry
	}
	before := l.Stats().Entries
	s, err := l.Submit(t.Context(), commandsOf(t, writes...))
	if err != nil {
		t.Fatal(err)
	}
	outcomes, err := s.Wait(t.Context())
	if err != nil || len(outcomes) != n {
		t.Fatal(len(outcomes), err)
	}
	for i, out := range outcomes {
		want := machine.Committed
		if i == 0 {
			want = machine.Replayed
		}
		if out.Code != want || out.Receipt.Sequence != writes[i].Sequence {
			t.Errorf("outcome %d is %s of sequence %d, want %s of %d", i, out.Code, out.Receipt.Sequence, want,
				writes[i].Sequence)
		}
	}
	if entries := l.Stats().Entries - before; entries < n/21 {
		t.Errorf("%d entries for %d commands, want at least %d", entries, n, n/21)
	}
	limit := uint64(100)
	if _, err := l.UpdateConfig(t.Context(), &machine.ConfigUpdate{EvictionLimit: &limit}, "a"); err != nil {
		t.Fatal(err)
	}
	if bound := l.entryCommands.Load(); bound != 35 {
		t.Errorf("after the change an entry may have %d commands, want 35: five small passes", bound)
	}
}

// A stream that waits for room must not shut single commands out, and a budget
// that is used up refuses them.
func TestUnaryShareOfTheQueue(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{QueueBytes: minQueueBytes})
	if err := l.budget.Acquire(t.Context(), minQueueBytes); err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() { // ends when the budget is given back; joined by the receive
		s, err := l.Submit(t.Context(), commandsOf(t, testWrite("stream", 1, 10)))
		if err == nil {
			_, err = s.Wait(t.Context())
		}
		waits <- err
	}()
	if out, err := l.Write(t.Context(), testWrite("c", 1, 10)); err != nil || out.Code != machine.Committed {
		t.Errorf("a single write while a stream waits: %s %v", out.Code, err)
	}
	if err := l.unaryBudget.Acquire(t.Context(), minQueueBytes/unaryShare); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Write(t.Context(), testWrite("c", 2, 10)); !errors.Is(err, ErrQueueFull) {
		t.Errorf("with nothing left: %v, want ErrQueueFull", err)
	}
	l.unaryBudget.Release(minQueueBytes / unaryShare)
	l.budget.Release(minQueueBytes)
	if err := <-waits; err != nil {
		t.Errorf("the stream that waited: %v", err)
	}
}

// commandsOf encodes valid writes.
func commandsOf(t testing.TB, writes ...*machine.Write) []machine.Command {
	t.Helper()
	commands, err := machine.Commands(writes...)
	if err != nil {
		t.Fatal(err)
	}
	return commands
}

func TestSubmissionLimits(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	var field *machine.FieldError
	many := make([]*machine.Write, maxSubmissionCommands+1)
	for i := range many {
		many[i] = testWrite("c", uint64(i)+1, 0)
	}
	if s, err := l.Submit(t.Context(), commandsOf(t, many...)); !errors.As(err, &field) || s != nil {
		t.Errorf("too many writes: %v", err)
	}
	if s, err := l.Submit(t.Context(), make([]machine.Command, 1)); !errors.As(err, &field) || s != nil {
		t.Errorf("a command that was not encoded: %v", err)
	}
	large := make([]*machine.Write, 13)
	for i := range large {
		large[i] = testWrite("c", uint64(i)+1, 1<<20)
	}
	if s, err := l.Submit(t.Context(), commandsOf(t, large...)); !errors.As(err, &field) || s != nil {
		t.Errorf("too many bytes: %v", err)
	}
	s, err := l.Submit(t.Context(), commandsOf(t, large[:11]...))
	if err != nil {
		t.Fatal(err)
	}
	if outcomes, err := s.Wait(t.Context()); err != nil || outcomes[10].Code != machine.Committed {
		t.Errorf("just small enough: %v", err)
	}
}

// Scopes without a waiter are dropped.
func TestWatchersAreBounded(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 1_000 {
		for range l.Watch(ctx, machine.Scope{Organization: fmt.Sprint("o", i)}, 1) {
		}
	}
	if n := len(l.watchers.waiting); n != 0 {
		t.Errorf("%d scopes are remembered after the last watcher left", n)
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	var c clock
	c.learn(5, time.Now(), false)
	for _, wall := range []time.Time{
		{}, time.Unix(-1, 0), time.Unix(0, 0), time.Date(9_999, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Unix(0, math.MaxInt64),
	} {
		_, err := c.set(wall, 0, true)
		if refused := wall.Year() > decide.LastYear; refused != (err != nil) {
			t.Errorf("wall clock %s: %v", wall, err)
		}
		if err == nil && c.now() < 5 {
			t.Errorf("wall clock %s: ledger time runs backwards", wall)
		}
	}
}

// A failure of the storage answers everything that waits, with an outcome that
// is unknown, and nothing after it.
func TestFailureAnswersEverything(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	cause := errors.New("the disk is gone")
	if out, err := l.Write(t.Context(), testWrite("c", 1, 10)); err != nil || out.Code != machine.Committed {
		t.Fatal(out, err)
	}
	l.fail(cause)
	<-l.Failed()
	_, err := l.Write(t.Context(), testWrite("c", 2, 10))
	if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrFailed) || !errors.Is(err, cause) {
		t.Errorf("write after the failure: %v", err)
	}
	if err := l.View(t.Context(), func(machine.View) error { return nil }); !errors.Is(err, cause) {
		t.Errorf("read after the failure: %v", err)
	}
	for _, err := range l.Watch(t.Context(), testScope, 2) {
		if !errors.Is(err, cause) {
			t.Errorf("watch after the failure: %v", err)
		}
	}
	if err := l.Close(); err != nil && !errors.Is(err, cause) {
		t.Errorf("close: %v", err)
	}
	// What was acknowledged is there.
	l = openTest(t, Options{Dir: l.options.Dir})
	if out, err := l.Write(t.Context(), testWrite("c", 1, 10)); err != nil || out.Code != machine.Replayed {
		t.Errorf("after a restart: %s %v", out.Code, err)
	}
}

// Calls whose contexts end leave their commands behind, in memory that other calls take up again. None of these
// may get the answer, or write the command, of another.
func TestAnswersStayWithTheirCalls(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	const callers, writes = 16, 50
	var ended atomic.Int64
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			name := fmt.Sprint("client-", caller)
			mayEnd := caller%2 == 0 // once for each write, so that the commands left behind are few
			for sequence := uint64(1); sequence <= writes; {
				w := testWrite(name, sequence, 10+caller)
				// By the length of the value, another for each caller.
				want, _ := machine.HashOperations(nil, w.Operations)
				ctx, cancel := context.WithCancel(t.Context())
				if mayEnd {
					go cancel() // before, beside or after the answer; it ends by itself
				}
				out, err := l.Write(ctx, w)
				cancel()
				switch {
				case errors.Is(err, context.Canceled):
					ended.Add(1)
					mayEnd = false
					continue // the same write learns what became of it
				case err != nil:
					t.Errorf("%s: write %d: %v", name, sequence, err)
					return
				case out.Receipt.Sequence != sequence || out.Receipt.RequestHash != want:
					t.Errorf("%s: write %d: the receipt is of write %d of another client", name, sequence,
						out.Receipt.Sequence)
					return
				}
				sequence, mayEnd = sequence+1, caller%2 == 0
			}
		})
	}
	group.Wait()
	if ended.Load() == 0 {
		t.Error("no call ended before its answer: this test shows nothing")
	}
}

// The error of a submission that is spread over entries never says that nothing
// was proposed when a part of it may be in the log.
func TestErrorOfASubmissionInParts(t *testing.T) {
	t.Parallel()
	elsewhere, lost := error(&cluster.NotLeaderError{}), unknown(errors.New("lost"))
	for _, test := range []struct {
		name    string
		spans   []error // nil: decided
		unknown bool
	}{
		{"all refused", []error{elsewhere, elsewhere}, false},
		{"decided, then refused", []error{nil, elsewhere}, true},
		{"refused, then decided", []error{elsewhere, nil}, true},
		{"lost, then refused", []error{lost, elsewhere}, true},
		{"refused, then lost", []error{elsewhere, lost}, true},
	} {
		s := new(Submission)
		for range test.spans {
			s.add([]byte("x"), 1)
		}
		for i, err := range test.spans {
			p := span{s, i, i + 1}
			if err != nil {
				p.fail(err)
			} else {
				p.setOutcomes(make([]machine.Outcome, 1))
			}
		}
		if got := errors.Is(s.err, ErrOutcomeUnknown); got != test.unknown || s.err == nil {
			t.Errorf("%s: %v, want an unknown outcome: %v", test.name, s.err, test.unknown)
		}
	}
}
