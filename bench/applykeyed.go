package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/ledger/machine"
)

// The kinds of attacks whose commands are not writes to streams.
var commandKinds = map[string]func(x *attacker, ctx context.Context, i int) error{
	"reject":     (*attacker).asOwner,
	"release":    (*attacker).asOwner,
	"heartbeat":  (*attacker).asOwner,
	"checkpoint": (*attacker).asOwner,
	"resolve":    (*attacker).asOwner,
	"purge":      (*attacker).asOwner,
	"reserve":    (*attacker).reserve,
	"complete":   (*attacker).reserveAndComplete,
	"outcomes":   (*attacker).completeLarge,
	"takeover":   (*attacker).takeOver,
	"waiters":    (*attacker).waitForOwner,
	"keyed":      (*attacker).writeKeyed,
	"open":       (*attacker).openSession,
	"config":     (*attacker).changeConfig,
}

// callers is how many commands of these kinds are under way at once, enough to fill entries.
const callers = 1_024

// keyedID returns the most expensive name of a record that a client can choose: long, and with
// a principal of its own.
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

// reserveAndComplete finishes a record with a response, which also moves it in the expiry index.
func (x *attacker) reserveAndComplete(ctx context.Context, i int) error {
	token, err := x.tryReserve(ctx, 1<<24+i, 0)
	if err != nil {
		return err
	}
	return x.complete(ctx, 1<<24+i, token, min(x.ValueBytes, mostResponse))
}

// completeLarge is reserveAndComplete with the largest responses. 64 of them are as many bytes as changes
// of the state file may have before they are written.
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

// waitForOwner has 63 of 64 calls wait for the reservation of the first, which wakes all of them when it is finished.
// No more than 64 may wait for one key.
func (x *attacker) waitForOwner(ctx context.Context, i int) error {
	const together = 64
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
	for range 100 { // at most so many milliseconds: the others come at once
		if x.l.Stats().KeyWaiters >= together/2 {
			break
		}
		load.Pause(ctx, time.Millisecond)
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

// ownerCommands are the other commands on keyed records, by the kinds of attacks that send them.
var ownerCommands = map[string]keyed.Command{
	"reject":     {Kind: keyed.Reject, TTL: int64(time.Hour)},
	"release":    {Kind: keyed.Release},
	"heartbeat":  {Kind: keyed.Heartbeat, Lease: int64(time.Minute)},
	"checkpoint": {Kind: keyed.Checkpoint},
	"resolve":    {Kind: keyed.Resolve, State: keyed.Committed, TTL: int64(time.Hour)},
	"purge":      {Kind: keyed.Purge},
}

// asOwner reserves a record and sends the command of the attack for it. A released record is reserved again and
// again, so that it has as many past attempts as possible.
func (x *attacker) asOwner(ctx context.Context, i int) error {
	c := ownerCommands[x.Kind]
	record, round := 1<<24+i, 0
	if c.Kind == keyed.Release {
		record, round = 1<<24+i%64, i/64
	}
	r := x.reservation(record, round)
	if c.Kind == keyed.Resolve {
		r.Policy = keyed.BecomeIndeterminate
	}
	out, err := x.l.Keyed(ctx, r, 0, nil)
	if err != nil {
		return err
	}
	c.AttemptID, c.Token = r.AttemptID, out.Keyed.Record.Token
	switch c.Kind {
	case keyed.Reject:
		c.Response = make([]byte, min(x.ValueBytes, mostResponse))
	case keyed.Checkpoint:
		c.Data = make([]byte, min(x.ValueBytes, keyed.MaxCheckpoint))
	case keyed.Purge:
		err = x.complete(ctx, record, c.Token, 0)
	case keyed.Resolve: // the owner ends its lease, which makes the outcome unknown
		c.Response = make([]byte, min(x.ValueBytes, mostResponse))
		end := keyed.Command{Kind: keyed.Heartbeat, AttemptID: c.AttemptID, Token: c.Token}
		_, err = x.l.Keyed(ctx, x.keyedCommand(record, end), 0, nil)
	}
	if err != nil {
		return err
	}
	out, err = x.l.Keyed(ctx, x.keyedCommand(record, c), 0, nil)
	if c.Kind == keyed.Release { // refused where there are too many past attempts
		return err
	}
	return decided(out, err, machine.KeyedOK)
}

// mostResponse bounds the responses of most attacks, so that pending changes are not most of the memory.
const mostResponse = 8_000
