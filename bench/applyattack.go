package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

// attacker drives a ledger that belongs to one attack.
type attacker struct {
	applyAttack
	l    *ledger.Ledger
	next map[string]uint64 // sequences by scope and client
	at   time.Time         // of the ledger's clock
	// versions are the versions of the targets, by the write that set them.
	versions [2]uint64

	owners sync.Map // by record of waitForOwner: a channel that is closed once it is reserved
	memory uint64   // largest growth of the heap, in bytes
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
	n := x.targetCount()
	for half := range x.versions {
		w := x.write(x.scope(0), "target")
		for i := half; i < n; i += 2 {
			w.Operations = append(w.Operations, machine.Operation{
				Kind: machine.OpSetEntity, Key: targetKey(i), Value: make([]byte, x.ValueBytes),
			})
		}
		out, err := x.l.Write(ctx, w)
		if err := decided(out, err, machine.Committed); err != nil {
			return err
		}
		x.versions[half] = out.Receipt.Index
	}
	var writes []*machine.Write
	for range min(x.Window, 1_024) {
		w := x.write(x.scope(0), "reused", machine.Operation{Kind: machine.OpAppend, Value: make([]byte, 40<<10)})
		w.Key = machine.Key{UUID: [16]byte{1, byte(w.Sequence), byte(w.Sequence >> 8)}, Present: true}
		writes = append(writes, w)
	}
	return x.submit(ctx, writes)
}

// attackCommands is how many commands each half of an attack has.
const attackCommands = 4_096

// strike sends the attack twice, because the first half may only prepare what
// the second one meets in memory.
func (x *attacker) strike(ctx context.Context) error {
	update := machine.ConfigUpdate{EvictionInterval: &x.Interval, RetainBytes: &x.Retain}
	if _, err := x.l.UpdateConfig(ctx, &update, "bench"); err != nil {
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
	commands := cmp.Or(x.Commands, attackCommands)
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

// targetCount is how many entities conditions compare: as many as fit into a write.
func (x *attacker) targetCount() int { return min(1_000, max(2, 3<<20/max(x.ValueBytes, 1))) }

// targetKey returns the key of such an entity.
func targetKey(i int) []byte { return fmt.Appendf(nil, "target-%d", i) }

// many returns a write with n operations, at most as many as a write may have.
func (x *attacker) many(scope machine.Scope, n int, op func(j int) machine.Operation) *machine.Write {
	w := x.write(scope, "attacker")
	for j := range max(1, min(n, machine.MaxOperations)) {
		w.Operations = append(w.Operations, op(j))
	}
	return w
}

// refused makes the last operation of a write fail, so that those before it are undone.
func (x *attacker) refused(w *machine.Write) *machine.Write {
	w.Operations[len(w.Operations)-1] = machine.Operation{
		Kind: machine.OpDeleteEntity, Key: []byte("absent"),
		Condition: machine.Condition{Kind: machine.ConditionMustExist},
	}
	x.next[w.Scope.Vault+" "+w.ClientID]--
	return w
}

// conditional returns a write whose every operation has a condition that holds, but for the last one.
func (x *attacker) conditional() *machine.Write {
	// A comparison has the whole value in its condition; a shorter one would differ at once.
	value := make([]byte, x.ValueBytes)
	return x.refused(x.many(x.scope(0), max(2, min(x.Operations, x.targetCount())), func(j int) machine.Operation {
		op := machine.Operation{Kind: machine.OpDeleteEntity, Key: targetKey(j)}
		switch x.Kind {
		case "absent":
			op.Kind, op.Key = machine.OpSetEntity, fmt.Appendf(nil, "absent-%d", j)
			op.Condition.Kind = machine.ConditionNotExists
		case "exists":
			op.Condition.Kind = machine.ConditionMustExist
		case "version":
			op.Condition = machine.Condition{Kind: machine.ConditionVersion, Version: x.versions[j%2]}
		case "compare":
			op.Condition = machine.Condition{Kind: machine.ConditionValueEquals, Value: value}
		}
		return op
	}))
}

// command returns a write of the attack.
func (x *attacker) command(i int) *machine.Write {
	one := machine.Operation{Kind: machine.OpAppend, Value: []byte("x")}
	switch x.Kind {
	case "append":
		return x.write(x.scope(i), "attacker", one)
	case "absent", "exists", "version", "compare":
		return x.conditional()
	case "expiring", "set", "delete", "relate":
		return x.changes(i)
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
		return x.write(x.scope(i), fmt.Sprintf("one-shot-%d", i), one)
	case "sessions":
		w := x.write(x.scope(i), fmt.Sprintf("stream-%d", i), one)
		w.Session = 1
		return w
	case "large":
		one.Value = make([]byte, machine.MaxValueBytes)
		return x.write(x.scope(i), "attacker", one, one, one, one)
	}
	return &machine.Write{
		Scope: x.scope(i), ClientID: "nobody", Actor: "client:attacker", Sequence: 9,
		Operations: []machine.Operation{one},
	}
}

// changes returns a write whose operations change entities or relationships.
func (x *attacker) changes(i int) *machine.Write {
	later, value := time.Now().Add(1_500*time.Hour).UnixNano(), make([]byte, x.ValueBytes)
	n := x.Operations
	if x.Kind == "set" {
		n = min(n, x.targetCount())
	}
	commands := cmp.Or(x.Commands, attackCommands)
	return x.many(x.scope(i), n, func(j int) machine.Operation {
		nth := i*x.Operations + j
		switch x.Kind {
		case "set":
			return machine.Operation{Kind: machine.OpSetEntity, Key: targetKey(j), Value: value}
		case "delete":
			return machine.Operation{Kind: machine.OpDeleteEntity, Key: x.key(nth % max(x.Entities, 1))}
		case "relate": // the second half deletes what the first has made
			kind := machine.OpCreateRelationship
			if i >= commands {
				kind = machine.OpDeleteRelationship
			}
			resource := x.key(1<<24 + (i%commands)*x.Operations + j)
			return machine.Operation{Kind: kind, Key: resource, Relation: []byte("reads"), Subject: []byte("me")}
		}
		return machine.Operation{Kind: machine.OpSetEntity, Key: x.key(1<<24 + nth), ExpiresAt: later + int64(j)}
	})
}
