package main

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger/machine"
)

// TestAttacksReadBack: what a search prints is what -attack takes, for the seeds and whatever they are changed to.
func TestAttacksReadBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom(seeds()).Draw(t, "seed")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "random"), 0))
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			a = a.mutate(random)
		}
		line := (&applyResult{Attack: a}).line()
		_, text, ok := strings.Cut(strings.TrimSpace(line), "{")
		if !ok || strings.Count(line, "\n") != 1 {
			t.Fatalf("%q", line)
		}
		got, err := parseAttack("{" + text)
		if err != nil || got != a {
			t.Fatalf("%+v is printed as %s and read as %+v, %v", a, text, got, err)
		}
		if a.Scopes < 1 || a.Interval < 1 || a.Limit < 1 || a.Window < 1 || a.KeyBytes > machine.MaxKeyBytes ||
			a.ValueBytes > machine.MaxValueBytes || a.Operations > machine.MaxOperations {
			t.Fatalf("%+v is not what a client can do", a)
		}
	})
}

// TestEveryKindIsSearched: a kind that the search never comes to would not be found slow.
func TestEveryKindIsSearched(t *testing.T) {
	t.Parallel()
	for _, a := range seeds() {
		if !slices.Contains(attackKinds, a.Kind) {
			t.Errorf("the seed %+v is of no kind", a)
		}
	}
	for kind := range commandKinds {
		if !slices.Contains(attackKinds, kind) {
			t.Errorf("%s is not searched", kind)
		}
	}
	if sorted := slices.Sorted(slices.Values(attackKinds)); len(slices.Compact(sorted)) != len(attackKinds) {
		t.Errorf("a kind is there twice: %v", attackKinds)
	}
}

// TestAttacksThatAreRefused would divide by zero, or make nothing slow.
func TestAttacksThatAreRefused(t *testing.T) {
	t.Parallel()
	good := seeds()[0]
	if _, err := parseAttack(mustJSON(t, good)); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(a *applyAttack){
		"Kind":       func(a *applyAttack) { a.Kind = "" },
		"Interval":   func(a *applyAttack) { a.Interval = 0 },
		"Limit":      func(a *applyAttack) { a.Limit = 0 },
		"Window":     func(a *applyAttack) { a.Window = 0 },
		"Scopes":     func(a *applyAttack) { a.Scopes = 0 },
		"Streams":    func(a *applyAttack) { a.Streams = -1 },
		"Entities":   func(a *applyAttack) { a.Entities = -1 },
		"KeyBytes":   func(a *applyAttack) { a.KeyBytes = -1 },
		"ValueBytes": func(a *applyAttack) { a.ValueBytes = -1 },
		"Tombstones": func(a *applyAttack) { a.Tombstones = -1 },
		"Keys":       func(a *applyAttack) { a.Keys = -1 },
		"Operations": func(a *applyAttack) { a.Operations = -1 },
		"Commands":   func(a *applyAttack) { a.Commands = -1 },
		"Retain":     func(a *applyAttack) { a.Retain = 1 },
	} {
		a := good
		change(&a)
		if _, err := parseAttack(mustJSON(t, a)); err == nil || !strings.Contains(err.Error(), name) ||
			!strings.HasPrefix(err.Error(), "-attack: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"", "{", "[]", `{"Kind": 1}`, `{"Speed": 1}`, mustJSON(t, good) + "{}"} {
		if _, err := parseAttack(text); err == nil || !strings.HasPrefix(err.Error(), "-attack: ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestKeysOfAttacks are what the ledger takes, all different, and with a comb they share prefixes of many lengths.
func TestKeysOfAttacks(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 8, 40, 400, machine.MaxKeyBytes} {
		for _, comb := range []bool{false, true} {
			x := &attacker{applyAttack: applyAttack{KeyBytes: size, Comb: comb}}
			seen, prefixes := map[string]bool{}, map[string]bool{}
			for i := range 500 {
				key := x.key(i)
				if len(key) != max(size, 8) || !utf8.Valid(key) || seen[string(key)] {
					t.Fatalf("key %d of %d bytes is %q", i, size, key)
				}
				seen[string(key)] = true
				prefixes[string(key[:len(key)-8])] = true
			}
			if combed := comb && size > 100; (len(prefixes) > 1) != combed {
				t.Errorf("%d bytes, comb %v: %d prefixes", size, comb, len(prefixes))
			}
		}
	}
}

// TestComparisonsAreOfWholeValues: a value that is shorter than the stored one differs at once, and would compare
// nothing. What is compared must fit into a write.
func TestComparisonsAreOfWholeValues(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 33, 1_000, 60_000, 1_000_000} {
		x := &attacker{next: map[string]uint64{}, applyAttack: applyAttack{
			Scopes: 1, Kind: "compare", ValueBytes: size, Operations: machine.MaxOperations,
		}}
		w := x.command(0)
		compared := w.Operations[:len(w.Operations)-1] // the last one fails, so that nothing changes
		for i := range compared {
			if c := compared[i].Condition; c.Kind != machine.ConditionValueEquals || len(c.Value) != size {
				t.Errorf("%d bytes are compared with a value of %d", len(c.Value), size)
			}
		}
		if want := min(machine.MaxOperations-1, 2<<20/max(size, 1)); len(compared) < want {
			t.Errorf("%d values of %d bytes are compared, want %d", len(compared), size, want)
		}
		if err := w.Validate(); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// TestEveryCommandIsAttacked: what a client can send, and the search does not, is not known to be fast.
func TestEveryCommandIsAttacked(t *testing.T) {
	t.Parallel()
	sent := map[keyed.Kind]bool{keyed.Reserve: true, keyed.Complete: true} // see tryReserve and complete
	for name, c := range ownerCommands {
		sent[c.Kind] = true
		if commandKinds[name] == nil {
			t.Errorf("%s is not an attack", name)
		}
	}
	for kind := keyed.Reserve; kind <= keyed.Purge; kind++ {
		if !sent[kind] {
			t.Errorf("no attack has a command %d on a keyed record", kind)
		}
	}
	operations := map[machine.OperationKind]bool{}
	conditions := map[machine.ConditionKind]bool{machine.ConditionNone: true}
	for _, kind := range attackKinds {
		if commandKinds[kind] != nil {
			continue
		}
		x := &attacker{next: map[string]uint64{}, applyAttack: applyAttack{
			Scopes: 1, Window: 4, Kind: kind, Operations: 4, Commands: 2,
		}}
		for i := range 4 {
			for _, op := range x.command(i).Operations {
				operations[op.Kind], conditions[op.Condition.Kind] = true, true
			}
		}
	}
	for kind := machine.OpSetEntity; kind <= machine.OpAppend; kind++ {
		if !operations[kind] {
			t.Errorf("no attack has an operation %d", kind)
		}
	}
	for kind := machine.ConditionNone; kind <= machine.ConditionValueEquals; kind++ {
		if !conditions[kind] {
			t.Errorf("no attack has a condition %d", kind)
		}
	}
}

// TestSequencesOfAttacks go up by one for each client of a scope, or the ledger would refuse what is to be measured.
func TestSequencesOfAttacks(t *testing.T) {
	t.Parallel()
	x := &attacker{applyAttack: applyAttack{Scopes: 3}, next: map[string]uint64{}}
	last := map[string]uint64{}
	for i := range 100 {
		w := x.write(x.scope(i), []string{"a", "b"}[i%2])
		stream := w.Scope.Vault + w.ClientID
		if w.Sequence != last[stream]+1 {
			t.Fatalf("%s goes from %d to %d", stream, last[stream], w.Sequence)
		}
		last[stream] = w.Sequence
	}
	if len(last) != 6 {
		t.Errorf("%d streams in three scopes", len(last))
	}
}

// TestCostsAreDifferences, and the time asleep is what is left of the clock's.
func TestCostsAreDifferences(t *testing.T) {
	t.Parallel()
	before := applyCost{Processor: 1, Queued: 2, Faults: 3, DiskFaults: 4, Allocated: 5}
	after := applyCost{Processor: 11, Queued: 22, Faults: 33, DiskFaults: 44, Allocated: 55}
	want := applyCost{Processor: 10, Queued: 20, Faults: 30, DiskFaults: 40, Allocated: 50}
	if got := after.less(&before); got != want {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct{ took, processor, queued, asleep time.Duration }{
		{10, 3, 2, 5}, {10, 10, 0, 0}, {10, 9, 9, 0}, {0, 0, 0, 0},
	} {
		cost := applyCost{Took: c.took, Processor: c.processor, Queued: c.queued}
		if got := cost.Asleep(); got != c.asleep {
			t.Errorf("%+v: %v asleep", c, got)
		}
	}
}

// TestJudgeNamesTheWorst of each kind, which need not be one and the same.
func TestJudgeNamesTheWorst(t *testing.T) {
	t.Parallel()
	found := []applyResult{
		{Attack: applyAttack{Kind: "first"}},
		{Attack: applyAttack{Kind: "dear"}, Dearest: applyCost{Processor: time.Millisecond}},
		{Attack: applyAttack{Kind: "slow"}, Slowest: applyCost{Took: time.Second}},
		{Attack: applyAttack{Kind: "large"}, Largest: applyCost{Allocated: 1 << 20}},
	}
	var text strings.Builder
	if err := judgeApplies(&text, found); err != nil {
		t.Error(err)
	}
	for _, want := range []string{`"Kind":"dear"`, `"Kind":"slow"`, `"Kind":"large"`, "4 attacks", "1 had an apply"} {
		if strings.Count(text.String(), want) != 1 {
			t.Errorf("%s is not there once in\n%s", want, text.String())
		}
	}
	full := errors.New("no space left")
	if err := judgeApplies(&failAfter{err: full}, found); !errors.Is(err, full) {
		t.Errorf("want %v, got %v", full, err)
	}
	found[0].Failure = "no disk"
	if err := judgeApplies(&strings.Builder{}, found); err == nil || !strings.Contains(err.Error(), "1 attacks") {
		t.Errorf("one failed: %v", err)
	}
}

// TestMetricsOfTheRuntime: what the attacks' memory is told by counts what is allocated.
func TestMetricsOfTheRuntime(t *testing.T) {
	t.Parallel()
	if n := heapInUse(); n <= 0 {
		t.Errorf("the heap has %d bytes", n)
	}
	before := readMetrics("/gc/heap/allocs:bytes")
	kept := make([]byte, 1<<20)
	if after := readMetrics("/gc/heap/allocs:bytes"); after-before < int64(len(kept)) {
		t.Errorf("a mebibyte was allocated, and %d bytes are counted", after-before)
	}
	kept[0] = 1
}
