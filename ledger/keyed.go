package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

// The calls that may wait at once for reservations to end: for one, and for all.
// Beyond, a Reserve that would wait is refused with ErrTooManyWaiters.
const (
	maxKeyWaiters = 64
	maxWaiters    = 10_000
)

// Keyed decides a command on a keyed record, from the state if it would change
// nothing; see Write. Long responses and checkpoints are read into the outcome's
// record. The error of a malformed command is a *machine.FieldError.
//
// A Reserve waits while another owner has the key, until the reservation ends in any
// way but no longer than wait, and is decided then as if it had come only then.
//
// A command that must go into the log is given to admit. What waits, or is answered
// from the state, needs no admission.
func (l *Ledger) Keyed(
	ctx context.Context, c *machine.KeyedCommand, wait time.Duration, admit admission,
) (machine.Outcome, error) {
	if err := c.Validate(); err != nil {
		return machine.Outcome{}, err
	}
	var out machine.Outcome
	var err error
	if wait > 0 && c.Kind == keyed.Reserve {
		out, err = l.reserve(ctx, c, wait, admit)
	} else {
		out, err = l.decideKeyed(ctx, c, admit)
	}
	if err == nil {
		l.keyedCounters.called(c.Kind, out.Code)
	}
	return out, err
}

// admission refuses a command, or calls propose, which puts it into the log, and returns
// what that returns. nil admits everything.
type admission func(
	ctx context.Context, propose func(context.Context) (machine.Outcome, error),
) (machine.Outcome, error)

func (a admission) propose(
	ctx context.Context, propose func(context.Context) (machine.Outcome, error),
) (machine.Outcome, error) {
	if a == nil {
		return propose(ctx)
	}
	return a(ctx, propose)
}

// keyedCall is a command on its way. It is used again, because what it has would be a dozen pieces of
// memory for each command.
type keyedCall struct {
	command  machine.KeyedCommand
	key      []byte // of the record, to ask whether it is pending
	encoded  []byte
	out      machine.Outcome
	answered bool
}

var keyedCalls = sync.Pool{New: func() any { return new(keyedCall) }}

// maxKeyedCall is how many bytes of an encoded command are kept for the next one.
const maxKeyedCall = 4 << 10

// end gives the memory to the next call.
func (k *keyedCall) end() {
	encoded := k.encoded[:0]
	if cap(encoded) > maxKeyedCall {
		encoded = nil
	}
	*k = keyedCall{key: k.key[:0], encoded: encoded}
	keyedCalls.Put(k)
}

// look decides the command from the state if that is possible.
func (k *keyedCall) look(v machine.View, now int64) (err error) {
	k.out, k.answered, err = v.AnswerKeyed(&k.command, now)
	return err
}

func (l *Ledger) decideKeyed(ctx context.Context, c *machine.KeyedCommand, admit admission) (machine.Outcome, error) {
	k := keyedCalls.Get().(*keyedCall) //nolint:forcetypeassert // The pool holds nothing else.
	defer k.end()
	// A copy, so that resolving its time does not change the caller's command.
	k.command = *c
	// The proposer resolves times, and the state machine sees what it has resolved. Another node does not
	// know ledger time, and proposes nothing.
	if c.Kind == keyed.Reserve {
		now := l.clock.now()
		until, ok := keyed.ResolveValidity(c.ValidUntil, now)
		switch {
		case ok:
			k.command.ValidUntil = until
		case l.cluster.Term() != 0:
			return machine.Outcome{}, tooFarAhead(c.ValidUntil, now)
		}
	}
	for decided := false; ; decided = true {
		if err := l.decideOnce(ctx, k, admit); err != nil {
			return machine.Outcome{}, unknownIf(decided, err)
		}
		whole, err := l.readAttachments(ctx, &k.out)
		if k.out.Keyed != nil && k.out.Keyed.Record != nil {
			k.out.Keyed.Record.ID = c.ID
		}
		if err != nil {
			return machine.Outcome{}, unknownIf(true, err)
		}
		if whole {
			return k.out, nil
		}
		// The record has changed since it was decided. A finished one without its response would
		// look like an empty result, so the command, which may be repeated, is decided again. Each
		// round needs another change of the record.
		if ctx.Err() != nil {
			return machine.Outcome{}, unknown(context.Cause(ctx))
		}
	}
}

// unknownIf says of a command that was decided, and so may be in the log, that its outcome is unknown: the error of a
// later step may say that nothing was proposed, and means that step.
func unknownIf(decided bool, err error) error {
	if decided && !errors.Is(err, ErrOutcomeUnknown) {
		return unknown(err)
	}
	return err
}

// tooFarAhead refuses a Reserve that says it is valid for too long.
func tooFarAhead(until, now int64) error {
	return &machine.FieldError{Field: "valid_until", Problem: fmt.Sprintf(
		"must be at most %v ahead of ledger time, which is %s, and is %v ahead: do the clocks differ?",
		keyed.MaxAhead, time.Unix(0, now).UTC().Format(time.RFC3339), time.Duration(until-now).Round(time.Second))}
}

// mustPropose reports whether the state probably cannot answer a command: the key has no record, or an owner changes
// a pending record. If the caller turns out not to be the owner, the log gives the answer that the state would have
// given.
func (l *Ledger) mustPropose(k *keyedCall) bool {
	k.key = k.command.ID.AppendTableKey(k.key[:0])
	switch k.command.Kind {
	case keyed.Complete, keyed.Reject, keyed.Release, keyed.Heartbeat, keyed.Checkpoint:
		if l.keyedCounters.reservations.has(k.key) {
			return true
		}
	}
	return l.keyedCounters.records.lacks(k.key)
}

// decideOnce decides a command from the state, or else in the log.
func (l *Ledger) decideOnce(ctx context.Context, k *keyedCall, admit admission) error {
	k.answered = false
	if !l.mustPropose(k) {
		if err := l.ViewNow(ctx, k.look); err != nil {
			return err
		}
	}
	if k.answered {
		return nil
	}
	k.encoded = machine.AppendKeyed(k.encoded[:0], &k.command)
	from := engine.Origin{Scope: k.command.ID.Scope, Actor: k.command.Actor}
	var err error
	if admit == nil {
		k.out, err = l.one(ctx, from, k.encoded)
	} else {
		// admit may return before it proposes, when ctx ends, and k then belongs to another call.
		encoded := slices.Clone(k.encoded)
		k.out, err = admit(ctx, func(ctx context.Context) (machine.Outcome, error) {
			return l.one(ctx, from, encoded)
		})
	}
	return err
}

// readAttachments reads what the outcome's record has put aside. It returns false if
// the record has changed since then. No other node is asked: the record is from the state here, which only gets newer.
func (l *Ledger) readAttachments(ctx context.Context, out *machine.Outcome) (whole bool, err error) {
	if out.Keyed == nil || out.Keyed.Record == nil || !out.Keyed.Record.HasAttachments() {
		return true, nil
	}
	err = l.StoredView(ctx, func(v machine.View) (err error) {
		whole, err = v.ReadAttachments(out.Keyed.Record)
		return err
	})
	return whole, err
}

// reserve decides again and again until no other owner has the key or the wait is over.
func (l *Ledger) reserve(
	ctx context.Context, c *machine.KeyedCommand, wait time.Duration, admit admission,
) (machine.Outcome, error) {
	key := string(c.ID.TableKey())
	// One timer for all rounds, so that they do not wait longer than wait together.
	limit := time.NewTimer(wait)
	defer limit.Stop()
	for waited, last := false, false; ; waited = true {
		// Registered before the state is looked at, so that no end is missed.
		waiting := l.keys.join(key)
		out, err := l.decideKeyed(ctx, c, admit)
		if waiting == nil {
			if err == nil && out.Code.Keyed() == keyed.InFlight && !last {
				return machine.Outcome{}, ErrTooManyWaiters
			}
			return out, err
		}
		if err != nil || out.Code.Keyed() != keyed.InFlight || last {
			l.keys.leave(key, waiting)
			return out, err
		}
		if !waited {
			l.keyedCounters.waited.Add(1)
		}
		began := time.Now()
		again, err := l.awaitEnd(ctx, waiting, limit, time.Duration(out.Keyed.RetryAfter))
		l.keys.leave(key, waiting)
		if err != nil || ctx.Err() != nil || l.draining.Load() || l.Err() != nil {
			out.Keyed.RetryAfter = max(0, out.Keyed.RetryAfter-int64(time.Since(began)))
			return out, err
		}
		// After the wait it is decided once more, because the lease may have been extended: the answer says how much
		// of it is left now.
		last = !again
	}
}

// awaitEnd waits for the end of a reservation, or of its lease, and reports whether the
// caller may wait again. Only a leader lets calls wait: another node may be cut off, and
// would not learn of the end.
func (l *Ledger) awaitEnd(
	ctx context.Context, waiting *keyWaiters, limit *time.Timer, lease time.Duration,
) (again bool, err error) {
	if l.cluster.Term() == 0 {
		return false, l.cluster.NotLeading()
	}
	leaseEnd := time.NewTimer(lease)
	defer leaseEnd.Stop()
	select {
	case <-waiting.next:
		if l.cluster.Term() == 0 {
			return false, l.cluster.NotLeading()
		}
		return true, nil
	case <-leaseEnd.C:
		return true, nil
	case <-limit.C:
	case <-ctx.Done():
	}
	return false, nil
}

// WriteKeyed decides a write that belongs to a key and to no stream; see Write, and
// for admit, Keyed.
func (l *Ledger) WriteKeyed(ctx context.Context, w *machine.KeyedWrite, admit admission) (machine.Outcome, error) {
	out, err := l.writeKeyed(ctx, w, admit)
	if err == nil {
		l.keyedCounters.called(keyedWriteCall, out.Code)
	}
	return out, err
}

func (l *Ledger) writeKeyed(ctx context.Context, w *machine.KeyedWrite, admit admission) (machine.Outcome, error) {
	if err := w.Validate(); err != nil {
		return machine.Outcome{}, err
	}
	if !l.keyedCounters.records.lacks(w.ID.TableKey()) {
		var receipt machine.Receipt
		answered := false
		hash, _ := machine.HashOperations(nil, w.Operations)
		err := l.ViewNow(ctx, func(v machine.View, now int64) (err error) {
			receipt, answered, err = v.AnswerKeyedWrite(w, hash, now)
			return err
		})
		if err != nil {
			return machine.Outcome{}, err
		}
		if answered {
			return machine.Outcome{Code: machine.Replayed, Receipt: receipt}, nil
		}
	}
	return admit.propose(ctx, func(ctx context.Context) (machine.Outcome, error) {
		s := l.single()
		s.addKeyedWrite(w)
		return l.decide(ctx, s)
	})
}

// ViewNow calls read as View does, with the ledger time that a command would have at this moment, in Unix
// nanoseconds: what a reader sees of keyed records depends on it. Ledger time is the leader's clock, so a node
// that does not lead returns a *cluster.NotLeaderError.
func (l *Ledger) ViewNow(
	ctx context.Context, read func(v machine.View, now int64) error, ordered ...machine.Table,
) error {
	term := l.cluster.Term()
	if term == 0 {
		return l.cluster.NotLeading()
	}
	// Read before the view, which ends with an error unless this node still leads after this moment.
	now := l.clock.now()
	if err := l.View(ctx, func(v machine.View) error { return read(v, now) }, ordered...); err != nil {
		return err
	}
	if l.cluster.Term() != term { // another leader may have stamped an earlier time meanwhile
		return l.cluster.NotLeading()
	}
	return nil
}

// Now returns the ledger time that a command would have at this moment, in Unix nanoseconds. It is right on the
// leader only: another node uses the clock of its machine. See ViewNow.
func (l *Ledger) Now() int64 { return l.clock.now() }
