package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/server"
)

// The targets of one apply.
const (
	maxApply       = 250 * time.Millisecond
	maxApplyMemory = 256 << 20 // bytes
)

// applyAttack is a way to prepare a ledger and then to make one apply slow. A client
// controls every field, except the first four, which are configuration. The search
// changes them at random, because the worst combination is not known in advance.
type applyAttack struct {
	Interval, Limit, Window uint64
	Retain                  uint64 // retain_bytes from the attack on; earlier blocks may then be dropped
	Streams                 int    // idle for longer than their TTL when the attack begins
	Busy                    bool   // the streams were written since they were indexed
	Entities                int    // that have expired when the attack begins
	Scopes                  int    // that streams and entities are spread over
	KeyBytes                int    // of entities' keys
	Comb                    bool   // long common prefixes of many lengths
	ValueBytes              int    // of the entities that conditions compare
	Tombstones              int    // entities that were set and deleted
	Keys                    int    // keyed records that have expired when the attack begins
	Rewind                  bool   // a write that makes passes begin at the front again
	Kind                    string // of the commands of the attack
	Operations              int    // of a write of the attack
	Commands                int    // of each half of the attack; 0 for 4,096
}

var attackKinds = append([]string{"refused", "append", "expiring", "set", "delete", "relate", "absent", "exists",
	"version", "compare", "reuse", "key", "streams", "sessions", "large"},
	slices.Sorted(maps.Keys(commandKinds))...)

// mutate returns a similar attack.
func (a applyAttack) mutate(random *rand.Rand) applyAttack {
	pick := func(from ...int) int { return from[random.IntN(len(from))] }
	for range 1 + random.IntN(3) {
		switch random.IntN(15) {
		case 0:
			a.Interval = uint64(pick(1, 2, 10, 100, 1_000, 1_000, 1_000_000))
		case 1:
			a.Limit = uint64(pick(1, 100, 2_000, 2_000, 10_000, 100_000))
		case 2:
			a.Window = uint64(pick(1, 64, 64, 1_024))
		case 3:
			a.Streams = pick(0, 1_000, 20_000, 60_000)
		case 4:
			a.Busy = !a.Busy
		case 5:
			a.Entities = pick(0, 1_000, 30_000, 100_000)
		case 6:
			a.Scopes = pick(1, 10, 999)
		case 7:
			a.KeyBytes = pick(8, 40, 400, machine.MaxKeyBytes)
		case 8:
			a.Comb = !a.Comb
		case 9:
			a.ValueBytes = pick(0, 33, 1_000, 60_000, 1_000_000)
		case 10:
			a.Kind = attackKinds[random.IntN(len(attackKinds))]
		case 11:
			a.Operations = pick(1, 1, 10, 100, 1_000)
		case 12:
			a.Tombstones, a.Rewind = pick(0, 0, 50_000, 200_000), random.IntN(2) == 0
		case 13:
			a.Keys = pick(0, 1_000, 20_000)
		case 14:
			a.Retain = uint64(pick(0, 0, 1<<20, 16<<20))
		}
	}
	return a
}

// seeds are where the search begins: the worst cases found so far, so that a
// regression of any of them is noticed.
func seeds() []applyAttack {
	a := applyAttack{Interval: 1_000, Limit: 2_000, Window: 64, Scopes: 1, KeyBytes: 20, Kind: "refused", Operations: 1}
	change := func(f func(a *applyAttack)) applyAttack {
		b := a
		f(&b)
		return b
	}
	return []applyAttack{
		a,
		change(func(a *applyAttack) { a.Entities, a.Scopes = 100_000, 999 }),
		change(func(a *applyAttack) {
			a.Entities, a.Interval, a.Limit, a.KeyBytes = 100_000, 1, 100_000, machine.MaxKeyBytes
		}),
		change(func(a *applyAttack) { a.Streams, a.Interval, a.Limit = 60_000, 1, 100_000 }),
		change(func(a *applyAttack) { a.Streams, a.Busy, a.Window, a.Limit = 1_000, true, 1_024, 100_000 }),
		change(func(a *applyAttack) { a.Kind, a.ValueBytes, a.Operations = "compare", 33, 1_000 }),
		change(func(a *applyAttack) { a.Kind, a.ValueBytes, a.Operations = "compare", 60_000, 1_000 }),
		change(func(a *applyAttack) { a.Kind, a.ValueBytes, a.Operations = "compare", 1_000_000, 1_000 }),
		change(func(a *applyAttack) { a.Kind, a.ValueBytes, a.Operations = "set", 60_000, 1_000 }),
		change(func(a *applyAttack) { a.Kind, a.Entities, a.Operations = "delete", 100_000, 1_000 }),
		change(func(a *applyAttack) { a.Kind, a.KeyBytes, a.Operations = "relate", machine.MaxKeyBytes, 1_000 }),
		change(func(a *applyAttack) { a.Kind, a.Operations = "absent", 1_000 }),
		change(func(a *applyAttack) { a.Kind, a.Operations = "version", 1_000 }),
		change(func(a *applyAttack) { a.Kind, a.Operations = "expiring", 1_000 }),
		change(func(a *applyAttack) {
			a.Kind, a.Operations, a.KeyBytes, a.Comb = "expiring", 1_000, machine.MaxKeyBytes, true
		}),
		change(func(a *applyAttack) { a.Kind, a.Window = "reuse", 1_024 }),
		change(func(a *applyAttack) { a.Kind, a.Window = "key", 1_024 }),
		change(func(a *applyAttack) { a.Tombstones, a.Rewind = 200_000, true }),
		change(func(a *applyAttack) { a.Kind = "large" }),
		change(func(a *applyAttack) { a.Keys, a.KeyBytes, a.Interval, a.Limit = 20_000, 400, 1, 100_000 }),
		change(func(a *applyAttack) { a.Window, a.Interval, a.Retain = 1_024, 1, 1<<20 }),
		change(func(a *applyAttack) { a.Kind, a.Entities, a.Interval, a.Retain = "large", 100_000, 1, 1<<20 }),
		change(func(a *applyAttack) { a.Kind, a.KeyBytes = "reserve", 400 }),
		change(func(a *applyAttack) { a.Kind, a.KeyBytes, a.ValueBytes = "complete", 400, 60_000 }),
		change(func(a *applyAttack) { a.Kind = "outcomes" }),
		change(func(a *applyAttack) { a.Kind, a.KeyBytes, a.Keys = "takeover", 400, 20_000 }),
		change(func(a *applyAttack) { a.Kind, a.KeyBytes = "waiters", 400 }),
		change(func(a *applyAttack) { a.Kind, a.KeyBytes = "release", 400 }),
		change(func(a *applyAttack) { a.Kind, a.ValueBytes = "checkpoint", 60_000 }),
		change(func(a *applyAttack) { a.Kind, a.Keys, a.ValueBytes = "resolve", 20_000, 60_000 }),
		change(func(a *applyAttack) { a.Kind, a.Keys = "purge", 20_000 }),
		change(func(a *applyAttack) { a.Kind, a.KeyBytes, a.Operations = "keyed", 400, 10 }),
		change(func(a *applyAttack) { a.Kind, a.Streams, a.Busy, a.Window = "open", 1_000, true, 1_024 }),
		change(func(a *applyAttack) {
			a.Kind, a.Streams, a.Busy, a.Window, a.Entities, a.KeyBytes = "config", 1_000, true, 64, 30_000,
				machine.MaxKeyBytes
		}),
	}
}

// applyResult is what an attack has cost.
type applyResult struct {
	Attack applyAttack `json:"attack"`
	// Slowest is the apply that took longest by the clock, Dearest the one with the most
	// processor time, Largest the one during which most was allocated.
	Slowest, Dearest, Largest applyCost
	// Memory is the largest growth of the heap during the attack, garbage included, in bytes.
	Memory  uint64 `json:"memory_bytes"`
	Failure string `json:"failure,omitempty"`
}

func (r *applyResult) worse(o *applyResult) bool { return r.Dearest.Processor > o.Dearest.Processor }

// missed reports whether the attack misses a target. It uses processor time and allocated
// bytes rather than the clock, so that other work on the machine does not matter.
func (r *applyResult) missed() bool {
	return r.Failure != "" || r.Dearest.Processor > maxApply || r.Largest.Allocated > maxApplyMemory
}

// waited reports whether an apply took too long because its thread did not run, or the heap grew too much
// because the collector did not.
func (r *applyResult) waited() bool {
	return !r.missed() && (r.Slowest.Took > maxApply || r.Memory > maxApplyMemory)
}

// line is a line of the search's table.
func (r *applyResult) line() string {
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 }
	text, _ := json.Marshal(r.Attack)
	verdict := ""
	switch {
	case r.missed():
		verdict = "  MISSED " + r.Failure
	case r.waited():
		verdict = "  waited"
	}
	s := &r.Slowest
	return fmt.Sprintf("%7.1f %7.1f %7.1f %7.1f %7.1f %6d %5d %5d %5d  %s%s\n", ms(r.Dearest.Processor),
		ms(s.Took), ms(s.Processor), ms(s.Queued), ms(s.Asleep()), s.Faults, s.DiskFaults, r.Largest.Allocated>>20,
		r.Memory>>20, text, verdict)
}

const applyHead = "Milliseconds of a processor that one apply took, at most; milliseconds of the slowest apply by " +
	"the clock, on a processor,\nready but without one, and asleep; its page faults, and those from the disk; MiB " +
	"allocated during one apply, and MiB\nthat the heap grew by in the attack.\n"

// parseAttack reads an attack as a search prints it.
func parseAttack(text string) (a applyAttack, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return a, fmt.Errorf("-attack: %w", err)
	}
	if !slices.Contains(attackKinds, a.Kind) {
		return a, fmt.Errorf("-attack: Kind is %q, want one of %q", a.Kind, attackKinds)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return a, errors.New("-attack: there is something behind the attack")
	}
	if a.Scopes < 1 || a.Limit < 1 || a.Interval < 1 || a.Window < 1 {
		return a, errors.New("-attack: Interval, Limit, Window and Scopes must be at least 1")
	}
	if a.Retain > 0 && a.Retain < 1<<20 {
		return a, errors.New("-attack: Retain must be 0 or at least 1048576")
	}
	if min(a.Streams, a.Entities, a.KeyBytes, a.ValueBytes, a.Tombstones, a.Keys, a.Operations, a.Commands) < 0 {
		return a, errors.New("-attack: Streams, Entities, KeyBytes, ValueBytes, Tombstones, Keys, Operations and " +
			"Commands must not be negative")
	}
	return a, nil
}

// worstApply searches for the commands that make one apply take longest.
func worstApply(ctx context.Context, arguments []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("bench apply", flag.ContinueOnError)
	duration := flags.Duration("duration", 10*time.Minute, "how long to search behind the seeds")
	seed := flags.Uint64("seed", uint64(time.Now().UnixNano()), "of the search")
	dir := flags.String("dir", "", "make data directories below this one (default: the system's temporary directory)")
	one := flags.String("attack", "", "measure this one alone, in JSON as a search prints it, five times")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	begin := seeds()
	if *one != "" {
		a, err := parseAttack(*one)
		if err != nil {
			return err
		}
		begin, *duration = slices.Repeat([]applyAttack{a}, 5), 0
	}
	server.TuneCollector() // as in a server, which keeps less garbage
	if _, err := fmt.Fprintf(stdout, "seed %d, %s\n%s", *seed, harness.Machine(), applyHead); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(*seed, 0))
	var found []applyResult
	measure := func(a applyAttack) error {
		r, err := runAttack(ctx, a, *dir)
		if err != nil {
			return err
		}
		found = append(found, r)
		_, err = io.WriteString(stdout, r.line())
		return err
	}
	for _, a := range begin {
		if err := measure(a); err != nil {
			return err
		}
	}
	for end := time.Now().Add(*duration); time.Now().Before(end); {
		// Choose among four at random, so that one slow sample does not attract the
		// whole search.
		best := &found[random.IntN(len(found))]
		for range 3 {
			if o := &found[random.IntN(len(found))]; o.worse(best) {
				best = o
			}
		}
		if err := measure(best.Attack.mutate(random)); err != nil {
			return err
		}
	}
	return judgeApplies(stdout, found)
}

// judgeApplies prints the worst of a search, and returns an error if a target was missed.
func judgeApplies(stdout io.Writer, found []applyResult) error {
	missed, waited := 0, 0
	dearest, slowest, largest := &found[0], &found[0], &found[0]
	for i := range found {
		r := &found[i]
		if r.missed() {
			missed++
		}
		if r.waited() {
			waited++
		}
		if r.worse(dearest) {
			dearest = r
		}
		if r.Slowest.Took > slowest.Slowest.Took {
			slowest = r
		}
		if r.Largest.Allocated > largest.Largest.Allocated {
			largest = r
		}
	}
	_, err := fmt.Fprintf(stdout, "%d attacks. The dearest, the slowest, and the one with most allocated:\n%s%s%s",
		len(found), dearest.line(), slowest.line(), largest.line())
	if err == nil && waited > 0 {
		_, err = fmt.Fprintf(stdout, "%d had an apply of more than %v by the clock, or a heap that grew by more than "+
			"%d MiB, and miss no target: was the machine busy?\n", waited, maxApply, maxApplyMemory>>20)
	}
	if err == nil && missed > 0 {
		err = fmt.Errorf("%d attacks made one apply take more than %v of a processor, or allocate %d MiB",
			missed, maxApply, maxApplyMemory>>20)
	}
	return err
}
