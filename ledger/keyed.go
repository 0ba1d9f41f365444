package ledger

import (
	"context"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger/machine"
)

// The calls that may wait at once for reservations to end: for one, and for all.
// Beyond, a Reserve is answered at once.
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
	ctx context.Context, c *machine.KeyedCommand, wait time.Duration, admit Admit,
) (machine.Outcome, error) {
	if err := c.Validate(); err != nil {
		return machine.Outcome{}, err
	}
	decide := func() (machine.Outcome, error) { return l.decideKeyed(ctx, c, admit) }
	call := decide
	if wait > 0 && c.Kind == keyed.Reserve {
		call = func() (machine.Outcome, error) { return l.reserve(ctx, string(c.ID.TableKey()), wait, decide) }
	}
	out, err := call()
	if err == nil {
		l.keyedCounters.called(c.Kind, out.Code)
	}
	return out, err
}

// Admit refuses a command, or calls propose, which puts it into the log, and returns
// what that returns. nil admits everything.
type Admit func(ctx context.Context, propose func(context.Context) (machine.Outcome, error)) (machine.Outcome, error)

func (a Admit) propose(
	ctx context.Context, propose func(context.Context) (machine.Outcome, error),
) (machine.Outcome, error) {
	if a == nil {
		return propose(ctx)
	}
	return a(ctx, propose)
}

func (l *Ledger) decideKeyed(ctx context.Context, c *machine.KeyedCommand, admit Admit) (machine.Outcome, error) {
	// The proposer resolves times, and the state machine sees what it has resolved.
	resolved := *c
	resolved.ValidUntil = min(c.ValidUntil, l.clock.now()+int64(keyed.MaxValidity))
	for {
		out, answered := machine.Outcome{}, false
		err := l.View(ctx, func(v machine.View) (err error) {
			out, answered, err = v.AnswerKeyed(&resolved, l.clock.now())
			return err
		})
		if err == nil && !answered {
			out, err = admit.propose(ctx, func(ctx context.Context) (machine.Outcome, error) {
				return l.one(ctx, machine.AppendKeyed(nil, &resolved))
			})
		}
		if err != nil {
			return machine.Outcome{}, err
		}
		whole, err := l.readAttachments(ctx, &out)
		if err != nil || whole {
			return out, err
		}
		// The record has changed since it was decided. A finished one without its response would
		// look like an empty result, so the command, which may be repeated, is decided again. Each
		// round needs another change of the record.
		if ctx.Err() != nil {
			return machine.Outcome{}, unknown(context.Cause(ctx))
		}
	}
}

// readAttachments reads what the outcome's record has put aside. It returns false if
// the record has changed since then.
func (l *Ledger) readAttachments(ctx context.Context, out *machine.Outcome) (whole bool, err error) {
	if out.Keyed == nil || out.Keyed.Record == nil || !out.Keyed.Record.HasAttachments() {
		return true, nil
	}
	err = l.View(ctx, func(v machine.View) (err error) {
		whole, err = v.ReadAttachments(out.Keyed.Record)
		return err
	})
	return whole, err
}

// reserve decides again and again until no other owner has the key.
func (l *Ledger) reserve(
	ctx context.Context, key string, wait time.Duration, decide func() (machine.Outcome, error),
) (machine.Outcome, error) {
	limit := time.NewTimer(wait)
	defer limit.Stop()
	for waited := false; ; waited = true {
		// Registered before the state is looked at, so that no end is missed.
		waiting := l.keys.join(key)
		if waiting == nil {
			return decide()
		}
		out, err := decide()
		inFlight := err == nil && out.Code == machine.KeyedInFlight
		if inFlight && !waited {
			l.keyedCounters.waited.Add(1)
		}
		again := inFlight && l.awaitEnd(ctx, waiting, limit, time.Duration(out.Keyed.RetryAfter))
		l.keys.leave(key, waiting)
		if !again {
			return out, err
		}
	}
}

// awaitEnd waits for the end of a reservation, or of its lease, and tells whether
// it is worth asking again.
func (l *Ledger) awaitEnd(ctx context.Context, waiting *keyWaiters, limit *time.Timer, lease time.Duration) bool {
	leaseEnd := time.NewTimer(lease)
	defer leaseEnd.Stop()
	select {
	case <-waiting.next:
		return !l.draining.Load() && l.Err() == nil
	case <-leaseEnd.C:
		return true
	case <-limit.C:
	case <-ctx.Done():
	}
	return false
}

// WriteKeyed decides a write that belongs to a key and to no stream; see Write, and
// for admit, Keyed.
func (l *Ledger) WriteKeyed(ctx context.Context, w *machine.KeyedWrite, admit Admit) (machine.Outcome, error) {
	out, err := l.writeKeyed(ctx, w, admit)
	if err == nil {
		l.keyedCounters.called(keyedWriteCall, out.Code)
	}
	return out, err
}

func (l *Ledger) writeKeyed(ctx context.Context, w *machine.KeyedWrite, admit Admit) (machine.Outcome, error) {
	if err := w.Validate(); err != nil {
		return machine.Outcome{}, err
	}
	var receipt machine.Receipt
	answered := false
	hash, _ := machine.HashOperations(nil, w.Operations)
	err := l.View(ctx, func(v machine.View) (err error) {
		receipt, answered, err = v.AnswerKeyedWrite(w, hash, l.clock.now())
		return err
	})
	if err != nil {
		return machine.Outcome{}, err
	}
	if answered {
		return machine.Outcome{Code: machine.Replayed, Receipt: receipt}, nil
	}
	return admit.propose(ctx, func(ctx context.Context) (machine.Outcome, error) {
		s := new(Submission)
		s.addKeyedWrite(w)
		return l.decide(ctx, s)
	})
}

// Now returns the ledger time that a command would have at this moment, in Unix
// nanoseconds: what a reader should see of keyed records depends on it.
func (l *Ledger) Now() int64 { return l.clock.now() }
