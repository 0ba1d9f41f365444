package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/server"
)

// The marks that no attack may exceed.
const (
	maxApply       = 250 * time.Millisecond
	maxApplyMemory = 256 << 20 // bytes
)

// applyAttack is a way to prepare a ledger and then to make one apply slow. Every
// field is something that a client or, for the first three, the configuration
// decides. The search changes them at random, because nobody knows in advance
// which combination is the worst.
type applyAttack struct {
	Interval, Limit, Window uint64
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

var attackKinds = append([]string{"refused", "append", "expiring", "compare", "version",
	"reuse", "key", "streams", "sessions", "large"}, slices.Sorted(maps.Keys(commandKinds))...)

// mutate returns a neighbour.
func (a applyAttack) mutate(random *rand.Rand) applyAttack {
	pick := func(from ...int) int { return from[random.IntN(len(from))] }
	for range 1 + random.IntN(3) {
		switch random.IntN(14) {
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
		}
	}
	return a
}

// seeds are where the search begins: the worst cases that reviews have found,
// so that none of them comes back unnoticed.
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
		change(func(a *applyAttack) { a.Kind, a.ValueBytes, a.Operations = "compare", 1_000_000, 1_000 }),
		change(func(a *applyAttack) { a.Kind, a.Operations = "expiring", 1_000 }),
		change(func(a *applyAttack) {
			a.Kind, a.Operations, a.KeyBytes, a.Comb = "expiring", 1_000, machine.MaxKeyBytes, true
		}),
		change(func(a *applyAttack) { a.Kind, a.Window = "reuse", 1_024 }),
		change(func(a *applyAttack) { a.Kind, a.Window = "key", 1_024 }),
		change(func(a *applyAttack) { a.Tombstones, a.Rewind = 200_000, true }),
		change(func(a *applyAttack) { a.Kind = "large" }),
		change(func(a *applyAttack) { a.Keys, a.KeyBytes, a.Interval, a.Limit = 20_000, 400, 1, 100_000 }),
		change(func(a *applyAttack) { a.Kind, a.KeyBytes = "reserve", 400 }),
		change(func(a *applyAttack) { a.Kind, a.KeyBytes, a.ValueBytes = "complete", 400, 60_000 }),
		change(func(a *applyAttack) { a.Kind = "outcomes" }),
		change(func(a *applyAttack) { a.Kind, a.KeyBytes, a.Keys = "takeover", 400, 20_000 }),
		change(func(a *applyAttack) { a.Kind, a.KeyBytes = "waiters", 400 }),
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
	// Slowest is the apply that took longest by the clock, Dearest the one that took most of a
	// processor, Largest the one during which most was allocated.
	Slowest, Dearest, Largest applyCost
	// Memory is the largest growth of the heap during the attack, garbage included, in bytes.
	Memory  uint64 `json:"memory_bytes"`
	Failure string `json:"failure,omitempty"`
}

func (r *applyResult) worse(o *applyResult) bool { return r.Dearest.Processor > o.Dearest.Processor }

// missed reports whether the attack misses a mark. It looks at the processor and the
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
		// A tournament, so that one slow sample does not keep the search in its
		// neighbourhood.
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

// judgeApplies prints the worst of a search, and returns an error if marks were missed.
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
			"%d MiB, and miss no mark: was the machine busy?\n", waited, maxApply, maxApplyMemory>>20)
	}
	if err == nil && missed > 0 {
		err = fmt.Errorf("%d attacks made one apply take more than %v of a processor, or allocate %d MiB",
			missed, maxApply, maxApplyMemory>>20)
	}
	return err
}

// attacker drives a ledger that belongs to one attack.
type attacker struct {
	applyAttack
	l    *ledger.Ledger
	next map[string]uint64 // sequences by scope and client
	at   time.Time         // of the ledger's clock

	owners sync.Map // by record of waitForOwner: a channel that is closed once it is reserved
	memory uint64   // that the attack took at most, in bytes
}

func runAttack(ctx context.Context, a applyAttack, below string) (result applyResult, err error) {
	err = onBed(ctx, &options{dir: below}, func(ctx context.Context, b *bed) error {
		began := time.Now()
		x := &attacker{applyAttack: a, next: map[string]uint64{}}
		meter := new(applyMeter)
		open := func(at time.Time) (err error) {
			x.at = at
			x.l, err = ledger.Open(ctx, ledger.Options{
				Dir: b.data(), Logger: slog.New(slog.DiscardHandler), Clock: func() time.Time { return at },
				ObserveApply: meter.observe,
				Config: machine.Config{
					EvictionInterval: 1_000_000, EvictionLimit: a.Limit, ReceiptWindow: a.Window,
				},
			})
			return err
		}
		if err := open(began); err != nil {
			return err
		}
		if err := errors.Join(x.prepare(ctx, began), x.l.Close()); err != nil {
			return err
		}
		if err := open(began.Add(48 * time.Hour)); err != nil {
			return err
		}
		meter.reset()
		failure := x.strike(ctx)
		result = applyResult{Attack: a, Memory: x.memory}
		if err := meter.worst(&result); err != nil {
			return errors.Join(err, x.l.Close())
		}
		if failure != nil {
			result.Failure = failure.Error()
		}
		return x.l.Close()
	})
	return result, err
}

// watchMemory samples the heap in use until the returned function is called, which returns the
// maximum growth. It leaves out the changes that wait for the state file, because they have a
// bound of their own.
func watchMemory(l *ledger.Ledger) (growth func() uint64) {
	inUse := func() int64 { return max(0, heapInUse()-l.Stats().PendingBytes) }
	runtime.GC()
	before := inUse()
	largest := harness.Largest(5*time.Millisecond, inUse)
	return func() uint64 { return uint64(max(before, largest()) - before) }
}

func (x *attacker) scope(i int) machine.Scope {
	return machine.Scope{Organization: "acme", Vault: fmt.Sprintf("v%04d", i%x.Scopes)}
}

// write returns the next write of a client.
func (x *attacker) write(scope machine.Scope, client string, ops ...machine.Operation) *machine.Write {
	name := scope.Vault + " " + client
	x.next[name]++
	return &machine.Write{Scope: scope, ClientID: client, Actor: "client:attacker",
		Sequence: x.next[name], Operations: ops}
}

func (x *attacker) submit(ctx context.Context, writes []*machine.Write) error {
	commands, err := machine.Commands(writes...)
	if err != nil {
		return err
	}
	for len(commands) > 0 {
		n, size := 0, 0
		for n < len(commands) && n < 2_048 && size < 8<<20 {
			size += len(commands[n].Encoded())
			n++
		}
		s, err := x.l.Submit(ctx, commands[:n])
		if err != nil {
			return err
		}
		if _, err := s.Wait(ctx); err != nil {
			return err
		}
		commands = commands[n:]
	}
	return nil
}

// key returns a key of the attack's length.
func (x *attacker) key(i int) []byte {
	key := bytes.Repeat([]byte("k"), max(x.KeyBytes, 8))
	if x.Comb && len(key) > 100 {
		copy(key[8*(i%(len(key)/8)):], "zzzzzzzz")
	}
	binary.BigEndian.PutUint64(key[len(key)-8:], uint64(i)*0x9e3779b97f4a7c15|0x0101010101010101)
	for j := range 8 { // UTF-8
		key[len(key)-8+j] = 'a' + key[len(key)-8+j]%26
	}
	return append(key[:len(key)-8], fmt.Sprintf("%08x", i)...)
}

func (x *attacker) prepare(ctx context.Context, now time.Time) error {
	var writes []*machine.Write
	payload := machine.Operation{Kind: machine.OpAppend, Value: []byte("x")}
	rounds := 1
	if x.Busy {
		rounds = int(min(x.Window, 64)) + 1
	}
	for range rounds {
		for i := range x.Streams {
			writes = append(writes, x.write(x.scope(i), fmt.Sprintf("stream-%d", i), payload))
		}
		if err := x.submit(ctx, writes); err != nil {
			return err
		}
		writes = writes[:0]
	}
	sets := func(n int, op func(i int) machine.Operation) error {
		for i := 0; i < n; {
			w := x.write(x.scope(i/1_000), "loader")
			for ; i < n && len(w.Operations) < machine.MaxOperations && (len(w.Operations) == 0 || i%1_000 != 0); i++ {
				w.Operations = append(w.Operations, op(i))
			}
			writes = append(writes, w)
		}
		err := x.submit(ctx, writes)
		writes = writes[:0]
		return err
	}
	soon := now.Add(time.Hour).UnixNano()
	if err := sets(x.Entities, func(i int) machine.Operation {
		return machine.Operation{Kind: machine.OpSetEntity, Key: x.key(i), ExpiresAt: soon + int64(i)}
	}); err != nil {
		return err
	}
	if err := x.prepareKeys(ctx); err != nil {
		return err
	}
	return x.targets(ctx)
}

// targets sets the entities that conditions compare, half of them in each of
// two long writes, and fills the window of the stream that is reused.
func (x *attacker) targets(ctx context.Context) error {
	n := 1_000
	if x.ValueBytes > 1_000 {
		n = max(2, 3<<20/x.ValueBytes)
	}
	var writes []*machine.Write
	for half := range 2 {
		w := x.write(x.scope(0), "target")
		for i := half; i < n; i += 2 {
			w.Operations = append(w.Operations, machine.Operation{
				Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "target-%d", i), Value: make([]byte, x.ValueBytes),
			})
		}
		writes = append(writes, w)
	}
	for range min(x.Window, 1_024) {
		w := x.write(x.scope(0), "reused", machine.Operation{Kind: machine.OpAppend, Value: make([]byte, 40<<10)})
		w.Key = machine.Key{UUID: [16]byte{1, byte(w.Sequence), byte(w.Sequence >> 8)}, Present: true}
		writes = append(writes, w)
	}
	return x.submit(ctx, writes)
}

// strike sends the attack twice, because the first half may only prepare what
// the second one meets in memory.
func (x *attacker) strike(ctx context.Context) error {
	interval := x.Interval
	if _, err := x.l.UpdateConfig(ctx, &machine.ConfigUpdate{EvictionInterval: &interval}, "bench"); err != nil {
		return err
	}
	later := time.Now().Add(2_000 * time.Hour).UnixNano()
	var writes []*machine.Write
	for i := 0; i < x.Tombstones; {
		w := x.write(x.scope(0), "tombstones")
		for ; len(w.Operations) < machine.MaxOperations && i < x.Tombstones; i++ {
			key := fmt.Appendf(nil, "tombstone-%d", i)
			w.Operations = append(w.Operations,
				machine.Operation{Kind: machine.OpSetEntity, Key: key, ExpiresAt: later},
				machine.Operation{Kind: machine.OpDeleteEntity, Key: key})
		}
		writes = append(writes, w)
	}
	if err := x.submit(ctx, writes); err != nil {
		return err
	}
	commands := cmp.Or(x.Commands, 4_096)
	if do := commandKinds[x.Kind]; do != nil {
		growth := watchMemory(x.l)
		err := each(ctx, 2*commands, callers, func(ctx context.Context, i int) error { return do(x, ctx, i) })
		x.memory = max(x.memory, growth())
		return err
	}
	for round := range 2 {
		writes = writes[:0]
		size := 0
		for i := 0; i < commands && size < 6<<20; i++ {
			w := x.command(round*commands + i)
			size += len(machine.AppendWrite(nil, w))
			writes = append(writes, w)
			if x.Rewind && i%500 == 0 {
				writes = append(writes, x.write(x.scope(0), "rewind", machine.Operation{
					Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "early-%d-%d", round, i), ExpiresAt: 1,
				}))
			}
		}
		growth := watchMemory(x.l)
		err := x.submit(ctx, writes)
		x.memory = max(x.memory, growth())
		if err != nil {
			return err
		}
	}
	return nil
}

// command returns a write of the attack.
func (x *attacker) command(i int) *machine.Write {
	refused := func(w *machine.Write) *machine.Write {
		last := &w.Operations[len(w.Operations)-1]
		*last = machine.Operation{
			Kind: machine.OpDeleteEntity, Key: []byte("absent"),
			Condition: machine.Condition{Kind: machine.ConditionMustExist},
		}
		x.next[w.Scope.Vault+" "+w.ClientID]--
		return w
	}
	conditional := func(c machine.Condition, n int) *machine.Write {
		w := x.write(x.scope(0), "attacker")
		for j := range max(n, 2) {
			w.Operations = append(w.Operations, machine.Operation{
				Kind: machine.OpDeleteEntity, Key: fmt.Appendf(nil, "target-%d", j%x.targetCount()), Condition: c,
			})
		}
		return refused(w)
	}
	switch x.Kind {
	case "append":
		return x.write(x.scope(i), "attacker", machine.Operation{Kind: machine.OpAppend, Value: []byte("x")})
	case "expiring":
		w := x.write(x.scope(i), "attacker")
		for j := range x.Operations {
			w.Operations = append(w.Operations, machine.Operation{
				Kind: machine.OpSetEntity, Key: x.key(1<<24 + i*x.Operations + j),
				ExpiresAt: time.Now().Add(1_500*time.Hour).UnixNano() + int64(j),
			})
		}
		return w
	case "compare":
		return conditional(machine.Condition{Kind: machine.ConditionValueEquals,
			Value: make([]byte, min(x.ValueBytes, 1_000))}, x.Operations)
	case "version":
		return conditional(machine.Condition{Kind: machine.ConditionMustExist}, x.Operations)
	case "reuse", "key":
		sequence, key := uint64(i)%x.Window+1, machine.Key{}
		if x.Kind == "key" {
			sequence, key = x.next[x.scope(0).Vault+" reused"]+1, machine.Key{
				UUID: [16]byte{1, byte(sequence), byte(sequence >> 8)}, Present: true}
		}
		return &machine.Write{
			Scope: x.scope(0), ClientID: "reused", Actor: "client:attacker", Sequence: sequence, Key: key,
			Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte("another")}},
		}
	case "streams":
		return x.write(x.scope(i), fmt.Sprintf("one-shot-%d", i), machine.Operation{Kind: machine.OpAppend})
	case "sessions":
		w := x.write(x.scope(i), fmt.Sprintf("stream-%d", i), machine.Operation{Kind: machine.OpAppend})
		w.Session = 1
		return w
	case "large":
		w := x.write(x.scope(i), "attacker")
		for range 4 {
			w.Operations = append(w.Operations,
				machine.Operation{Kind: machine.OpAppend, Value: make([]byte, machine.MaxValueBytes)})
		}
		return w
	}
	return &machine.Write{
		Scope: x.scope(i), ClientID: "nobody", Actor: "client:attacker", Sequence: 9,
		Operations: []machine.Operation{{Kind: machine.OpAppend}},
	}
}

func (x *attacker) targetCount() int {
	if x.ValueBytes > 1_000 {
		return max(2, 3<<20/x.ValueBytes)
	}
	return 1_000
}

// The kinds of attacks whose commands are not writes to streams.
var commandKinds = map[string]func(x *attacker, ctx context.Context, i int) error{
	"reserve":  (*attacker).reserve,
	"complete": (*attacker).reserveAndComplete,
	"outcomes": (*attacker).completeLarge,
	"takeover": (*attacker).takeOver,
	"waiters":  (*attacker).waitForOwner,
	"keyed":    (*attacker).writeKeyed,
	"open":     (*attacker).openSession,
	"config":   (*attacker).changeConfig,
}

// callers is how many commands of these kinds are under way at once, so that they fill entries.
const callers = 1_024

// keyedID names a record as expensively as a client can: a principal of its own for each, and
// long parts.
func (x *attacker) keyedID(i int) machine.KeyedID {
	id := machine.KeyedID{
		Scope: x.scope(i), Namespace: strings.Repeat("n", min(max(x.KeyBytes, 1), machine.MaxNamespace)),
		Principal: "client:" + strings.Repeat("p", min(x.KeyBytes, 400)) + fmt.Sprintf("%09d", i),
	}
	id.Key = sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(i)))
	return id
}

func (x *attacker) keyedCommand(i int, c keyed.Command) *machine.KeyedCommand {
	return &machine.KeyedCommand{ID: x.keyedID(i), Actor: "client:attacker", MaxKeys: 1 << 30, Command: c}
}

func attemptOf(i, round int) (id keyed.AttemptID) {
	binary.BigEndian.PutUint64(id[:], uint64(i)+1)
	binary.BigEndian.PutUint64(id[8:], uint64(round))
	return id
}

func (x *attacker) reservation(i, round int) *machine.KeyedCommand {
	return x.keyedCommand(i, keyed.Command{
		Kind: keyed.Reserve, AttemptID: attemptOf(i, round), ValidUntil: x.at.Add(time.Minute).UnixNano(),
		Lease: int64(time.Second), TTL: int64(time.Hour), Policy: keyed.TakeOver,
	})
}

// tryReserve begins an ownership of a key that ends after a second, and returns its token.
func (x *attacker) tryReserve(ctx context.Context, i, round int) (token uint64, err error) {
	out, err := x.l.Keyed(ctx, x.reservation(i, round), 0, nil)
	if err == nil && out.Keyed != nil && out.Keyed.Record != nil {
		token = out.Keyed.Record.Token
	}
	return token, err
}

func (x *attacker) reserve(ctx context.Context, i int) error {
	_, err := x.tryReserve(ctx, 1<<24+i, 0)
	return err
}

// complete finishes a reservation with a response.
func (x *attacker) complete(ctx context.Context, i int, token uint64, response int) error {
	_, err := x.l.Keyed(ctx, x.keyedCommand(i, keyed.Command{
		Kind: keyed.Complete, AttemptID: attemptOf(i, 0), Token: token, TTL: int64(time.Hour),
		Response: make([]byte, response),
	}), 0, nil)
	return err
}

// reserveAndComplete finishes a record with a response, which also becomes due in the index anew.
func (x *attacker) reserveAndComplete(ctx context.Context, i int) error {
	token, err := x.tryReserve(ctx, 1<<24+i, 0)
	if err != nil {
		return err
	}
	return x.complete(ctx, 1<<24+i, token, min(x.ValueBytes, 8_000)) // so that what waits is not most of the memory
}

// completeLarge is reserveAndComplete with the largest responses, of which 64 are as much as the state
// file's changes may be.
func (x *attacker) completeLarge(ctx context.Context, i int) error {
	if i >= 64 {
		return nil
	}
	token, err := x.tryReserve(ctx, 1<<24+i, 0)
	if err != nil {
		return err
	}
	return x.complete(ctx, 1<<24+i, token, keyed.MaxResponse)
}

// waitForOwner has 255 of 256 calls wait for the reservation of the first, which wakes all of them
// when it is finished.
func (x *attacker) waitForOwner(ctx context.Context, i int) error {
	const together = 256
	record := 1<<24 + i/together
	first, _ := x.owners.LoadOrStore(record, make(chan struct{}))
	reserved := first.(chan struct{}) //nolint:forcetypeassert // The map holds nothing else.
	if i%together != 0 {
		select {
		case <-reserved:
		case <-ctx.Done():
			return ctx.Err()
		}
		_, err := x.l.Keyed(ctx, x.reservation(record, i), time.Minute, nil)
		return err
	}
	token, err := x.tryReserve(ctx, record, 0)
	close(reserved)
	if err != nil {
		return err
	}
	for range 100 { // milliseconds, at most: the others come at once
		if x.l.Stats().KeyWaiters >= together/2 {
			break
		}
		harness.Pause(ctx, time.Millisecond)
	}
	return x.complete(ctx, record, token, 100)
}

// takeOver takes one of the prepared records, whose lease is over, or a record that an earlier
// command of the attack has taken.
func (x *attacker) takeOver(ctx context.Context, i int) error {
	_, err := x.tryReserve(ctx, i%max(x.Keys, 100), 1+i/max(x.Keys, 100))
	return err
}

func (x *attacker) writeKeyed(ctx context.Context, i int) error {
	w := &machine.KeyedWrite{ID: x.keyedID(1<<24 + i), Actor: "client:attacker", TTL: int64(time.Hour),
		MaxKeys: 1 << 30}
	for j := range x.Operations {
		w.Operations = append(w.Operations, machine.Operation{Kind: machine.OpSetEntity,
			Key: x.key(1<<24 + i*x.Operations + j)})
	}
	_, err := x.l.WriteKeyed(ctx, w, nil)
	return err
}

// openSession fences a prepared stream, whose record has a full window if the streams are busy.
func (x *attacker) openSession(ctx context.Context, i int) error {
	o := &machine.OpenSession{
		Scope: x.scope(i % max(x.Streams, 1)), ClientID: fmt.Sprintf("stream-%d", i%max(x.Streams, 1)),
		Actor: "client:attacker",
	}
	binary.BigEndian.PutUint64(o.AttemptID[:], uint64(i)+1)
	_, err := x.l.OpenSession(ctx, o)
	return err
}

// changeConfig mixes changes of what a pass may take with small writes.
func (x *attacker) changeConfig(ctx context.Context, i int) error {
	if i%64 != 0 {
		return x.openSession(ctx, i)
	}
	interval, limit, window := []uint64{1, 2, 1_000}[i/64%3], []uint64{1, 100_000}[i/64%2],
		[]uint64{1, 64, 1_024}[i/64%3]
	_, err := x.l.UpdateConfig(ctx, &machine.ConfigUpdate{
		EvictionInterval: &interval, EvictionLimit: &limit, ReceiptWindow: &window,
	}, "bench")
	return err
}

// prepareKeys makes records that have expired when the attack begins: finished ones, and every
// eighth one abandoned by its owner.
func (x *attacker) prepareKeys(ctx context.Context) error {
	return each(ctx, x.Keys, callers, func(ctx context.Context, i int) error {
		token, err := x.tryReserve(ctx, i, 0)
		if err != nil || i%8 == 0 {
			return err
		}
		return x.complete(ctx, i, token, min(x.ValueBytes, 2_000))
	})
}
