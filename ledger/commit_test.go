package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

var testScope = machine.Scope{Organization: "acme", Vault: "main"}

func openTest(t *testing.T, o Options) *Ledger {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	o.Logger = slog.New(slog.DiscardHandler)
	l := must.Get(Open(t.Context(), o))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func testWrite(client string, sequence uint64, payload int) *machine.Write {
	return &machine.Write{
		Scope: testScope, ClientID: client, Actor: "system:test", Sequence: sequence,
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: make([]byte, payload)}},
	}
}

// What is spread over entries is answered as one.
func TestSubmissionOverManyEntries(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{Config: machine.Config{EvictionInterval: 7, EvictionLimit: 100_000}})
	const n = 500
	must.Equal(t, l.mostCommands(), 7, "an entry may have %d commands, want 7: one pass")
	writes := make([]*machine.Write, n)
	for i := range writes {
		writes[i] = testWrite(fmt.Sprint("c", i%3), uint64(i/3)+1, 10)
	}
	// the first of them is a retry
	must.Equal(t, must.Get(l.Write(t.Context(), testWrite("c0", 1, 10)))(t).Code, machine.Committed)
	before := l.Stats().Entries
	s := must.Get(l.Submit(t.Context(), commandsOf(t, writes...)))(t)
	outcomes := must.Get(s.Wait(t.Context()))(t)
	must.Equal(t, len(outcomes), n)
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
	must.Get(l.UpdateConfig(t.Context(), &machine.ConfigUpdate{EvictionLimit: &limit}, "a"))(t)
	check.Equal(t, l.mostCommands(), 35, "after the change an entry may have %d commands, want 35: five small passes")
}

// A full queue refuses what does not wait. What waits for room is decided once there is some, and a wait that ends
// before proposes nothing.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	apply, created := make(chan struct{}), make(chan struct{}, 1)
	l := openTest(t, Options{QueueBytes: minQueueBytes, ObserveApply: func() func() {
		select {
		case created <- struct{}{}: // the command that creates the ledger
		case <-apply:
		}
		return func() {}
	}})
	write := func(client string, sequence uint64, size int) []machine.Command {
		return commandsOf(t, testWrite(client, sequence, size))
	}
	var queued []*Submission
	for size := 1 << 20; size > 10; size /= 8 {
		for sequence := uint64(1); ; sequence++ {
			s, err := l.SubmitNow(t.Context(), write(fmt.Sprint("c", size), sequence, size))
			if errors.Is(err, ErrQueueFull) {
				break
			}
			must.Do(t, err)
			queued = append(queued, s)
		}
	}
	if _, err := l.Write(t.Context(), testWrite("c", 1, 1)); !errors.Is(err, ErrQueueFull) {
		t.Errorf("a single write: %v, want ErrQueueFull", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := l.Submit(ended, write("c", 1, 1)); !errors.Is(err, ErrQueueFull) || errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("a wait that has ended: %v, want ErrQueueFull", err)
	}
	waits := make(chan error, 1)
	go func() { // ends when there is room; joined by the receive
		s, err := l.Submit(t.Context(), write("stream", 1, 10))
		if err == nil {
			_, err = s.Wait(t.Context())
		}
		waits <- err
	}()
	close(apply)
	for _, s := range queued {
		must.Get(s.Wait(t.Context()))(t)
	}
	must.Do(t, <-waits, "the stream that waited")
	check.Equal(t, l.Stats().QueuedBytes, 0, "%d bytes are queued in an idle ledger")
}

// An entry is in flight until all of its callers but the last are woken, so that the next one has what they come back
// with.
func TestAnEntryIsInFlightUntilItsCallersAreWoken(t *testing.T) {
	t.Parallel()
	other := openTest(t, Options{})
	// Without a commit loop. The log of the other refuses the entry, and its callers are woken all the same.
	l := &Ledger{
		cluster: other.cluster,
		pipeline: pipeline{
			engine: engine.New(1<<20, engine.MaxEntryCommands), cutDue: make(chan struct{}, 1),
			inFlight: make(chan inflightEntry),
		},
	}
	l.answering.Go(l.answerLoop) // ends below
	defer l.answering.Wait()
	defer close(l.inFlight)
	submit := func() *Submission {
		s := newSubmission(true)
		s.done = make(chan struct{}) // without room, so that the loop waits until each caller receives
		s.engine.Add(engine.Origin{}, []byte("x"), 1)
		l.engine.Submit(&s.engine, false)
		return s
	}
	callers := []*Submission{submit(), submit(), submit()}
	for range 2 { // the second time with one caller
		spans, _, _ := l.engine.Cut()
		next := submit() // an entry is due as soon as none is in flight
		l.inFlight <- inflightEntry{other.log.ProposeIn(other.cluster.Term()+1, []byte("never in the log")), spans}
		last := len(callers) - 1
		for i, s := range callers[:last] {
			select {
			case <-l.cutDue:
				t.Fatalf("nothing is in flight, and %d callers are not woken", len(callers)-i)
			case <-s.done:
			}
		}
		<-l.cutDue
		<-callers[last].done
		callers = []*Submission{next}
	}
}

// commandsOf encodes valid writes.
func commandsOf(t testing.TB, writes ...*machine.Write) []machine.Command {
	t.Helper()
	commands := must.Get(machine.Commands(writes...))(t)
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
	s := must.Get(l.Submit(t.Context(), commandsOf(t, large[:11]...)))(t)
	check.Equal(t, must.Get(s.Wait(t.Context()))(t)[10].Code, machine.Committed, "just small enough: %v")
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
	check.Equal(t, len(l.watchers.waiting), 0, "%d scopes are remembered after the last watcher left")
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
		check.Equal(t, wall.Year() > engine.LastYear, err != nil, "wall clock %s: %v: %v", wall, err)
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
	must.Equal(t, must.Get(l.Write(t.Context(), testWrite("c", 1, 10)))(t).Code, machine.Committed)
	l.fail(cause)
	<-l.Failed()
	_, err := l.Write(t.Context(), testWrite("c", 2, 10))
	if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrFailed) || !errors.Is(err, cause) {
		t.Errorf("write after the failure: %v", err)
	}
	check.Is(t, l.View(t.Context(), func(machine.View) error { return nil }), cause, "read after the failure")
	for _, err := range l.Watch(t.Context(), testScope, 2) {
		check.Is(t, err, cause, "watch after the failure")
	}
	if err := l.Close(); err != nil && !errors.Is(err, cause) {
		t.Errorf("close: %v", err)
	}
	// What was acknowledged is there.
	l = openTest(t, Options{Dir: l.options.Dir})
	check.Equal(t, must.Get(l.Write(t.Context(), testWrite("c", 1, 10)))(t).Code, machine.Replayed,
		"after a restart: %s")
}

// A caller leads only on a node that has no others, and without a deadline.
func TestMayLead(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if !l.mayLead(t.Context()) || l.mayLead(ctx) {
		t.Error("a node without others: it must lead without a deadline, and not with one")
	}
	if (&Ledger{options: Options{Cluster: new(cluster.Options)}}).mayLead(t.Context()) {
		t.Error("it leads in a cluster")
	}
}

// A caller with a deadline does not lead, because it would have to wait for a disk that hangs.
func TestCallerWithADeadlineDoesNotLead(t *testing.T) {
	t.Parallel()
	var hangs atomic.Bool
	released := make(chan struct{})
	l := openTest(t, Options{ObserveApply: func() func() {
		if hangs.Load() {
			<-released
		}
		return func() {}
	}})
	hangs.Store(true)
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	_, err := l.Write(ctx, testWrite("c", 1, 10))
	close(released)
	if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want that the outcome is unknown", err)
	}
	check.Equal(t, must.Get(l.Write(t.Context(), testWrite("c", 1, 10)))(t).Receipt.Sequence, 1, "again: %+v")
}

// A submission that is alone is decided when SubmitHere returns, and Submit leaves it to the loops.
func TestSubmitHere(t *testing.T) {
	t.Parallel()
	var loops atomic.Int64 // entries that were not applied by this goroutine
	l := openTest(t, Options{ObserveApply: func() func() {
		stack := make([]byte, 16<<10)
		if !strings.Contains(string(stack[:runtime.Stack(stack, false)]), ").SubmitHere(") {
			loops.Add(1)
		}
		return func() {}
	}})
	for sequence := range uint64(40) {
		commands := commandsOf(t, testWrite("c", sequence+1, 10))
		before, submit := loops.Load(), l.SubmitHere
		if sequence%4 == 3 {
			submit = l.Submit
		}
		s := must.Get(submit(t.Context(), commands))(t)
		must.Equal(t, must.Get(s.Wait(t.Context()))(t)[0].Receipt.Sequence, sequence+1)
		if sequence%4 == 3 && loops.Load() == before {
			t.Error("Submit committed in the goroutine of its caller")
		}
	}
	if loops.Load() > 30 { // a goroutine of the ledger's own may read the state meanwhile
		t.Errorf("the loops applied %d of 40 entries, and only 10 were left to them", loops.Load())
	}
}

// Calls whose contexts end leave their commands behind, in memory that other calls take up again. None of these
// may get the answer, or write the command, of another.
func TestAnswersStayWithTheirCalls(t *testing.T) {
	t.Parallel()
	// Otherwise a caller that leads may have its answer before anything else runs.
	l := openTest(t, Options{ObserveApply: func() func() { runtime.Gosched(); return func() {} }})
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
