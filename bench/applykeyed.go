package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger/machine"
)

// The kinds of attacks whose commands are not writes to streams.
var commandKinds = map[string]func(x *attacker, ctx context.Context, i int) error{
	"reserve":  (*attacker).reserve,
	"complete": (*attacker).reserveAndComplete,
	"takeover": (*attacker).takeOver,
	"keyed":    (*attacker).writeKeyed,
	"open":     (*attacker).openSession,
	"config":   (*attacker).changeConfig,
}

// callers is how many commands of these kinds are under way at once, so that they fill entries.
const callers = 1_024

// forEach calls do for every number below n, callers at a time.
func forEach(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(callers)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

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
	id[15] = byte(round)
	return id
}

// tryReserve begins an ownership of a key that ends after a second, and returns its token.
func (x *attacker) tryReserve(ctx context.Context, i, round int) (token uint64, err error) {
	out, err := x.l.Keyed(ctx, x.keyedCommand(i, keyed.Command{
		Kind: keyed.Reserve, AttemptID: attemptOf(i, round), ValidUntil: x.now().Add(time.Minute).UnixNano(),
		Lease: int64(time.Second), TTL: int64(time.Hour), Policy: keyed.TakeOver,
	}), 0, nil)
	if err == nil && out.Keyed != nil && out.Keyed.Record != nil {
		token = out.Keyed.Record.Token
	}
	return token, err
}

func (x *attacker) reserve(ctx context.Context, i int) error {
	_, err := x.tryReserve(ctx, 1<<24+i, 0)
	return err
}

// reserveAndComplete finishes a record with a response, which also becomes due in the index anew.
func (x *attacker) reserveAndComplete(ctx context.Context, i int) error {
	token, err := x.tryReserve(ctx, 1<<24+i, 0)
	if err != nil {
		return err
	}
	_, err = x.l.Keyed(ctx, x.keyedCommand(1<<24+i, keyed.Command{
		Kind: keyed.Complete, AttemptID: attemptOf(1<<24+i, 0), Token: token, TTL: int64(time.Hour),
		Response: make([]byte, min(x.ValueBytes, 8_000)), // so that what waits is not most of the memory
	}), 0, nil)
	return err
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
	return forEach(ctx, x.Keys, func(ctx context.Context, i int) error {
		token, err := x.tryReserve(ctx, i, 0)
		if err != nil || i%8 == 0 {
			return err
		}
		_, err = x.l.Keyed(ctx, x.keyedCommand(i, keyed.Command{
			Kind: keyed.Complete, AttemptID: attemptOf(i, 0), Token: token, TTL: int64(time.Hour),
			Response: make([]byte, min(x.ValueBytes, 2_000)),
		}), 0, nil)
		return err
	})
}
