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
func (l *Ledger) Keyed(ctx context.Context, c *machine.KeyedCommand) (machine.Outcome, error) {
	out, answered, err := l.AnswerKeyed(ctx, c)
	if err != nil || answered {
		return out, err
	}
	return l.ProposeKeyed(ctx, c)
}

// AnswerKeyed is Keyed for a command that would change nothing; answered is false for any other.
func (l *Ledger) AnswerKeyed(ctx context.Context, c *machine.KeyedCommand) (out machine.Outcome, answered bool, err error) {
	if err := c.Validate(); err != nil {
		return out, false, err
	}
	resolved := l.resolve(c)
	err = l.View(ctx, func(v machine.View) (err error) {
		out, answered, err = v.AnswerKeyed(&resolved, l.clock.now())
		return err
	})
	if err != nil || !answered {
		return machine.Outcome{}, false, err
	}
	return out, true, l.readAttachments(ctx, &out)
}

// ProposeKeyed is Keyed for a command that AnswerKeyed has not answered.
func (l *Ledger) ProposeKeyed(ctx context.Context, c *machine.KeyedCommand) (machine.Outcome, error) {
	if err := c.Validate(); err != nil {
		return machine.Outcome{}, err
	}
	resolved := l.resolve(c)
	out, err := l.one(ctx, machine.AppendKeyed(nil, &resolved))
	if err != nil {
		return machine.Outcome{}, err
	}
	return out, l.readAttachments(ctx, &out)
}

// resolve resolves the times of a command: the state machine sees what its proposer has resolved.
func (l *Ledger) resolve(c *machine.KeyedCommand) machine.KeyedCommand {
	resolved := *c
	resolved.ValidUntil = min(c.ValidUntil, l.clock.now()+int64(keyed.MaxValidity))
	return resolved
}

// readAttachments reads what the outcome's record has put aside. What has changed
// since then was read too late: the record is not retained.
func (l *Ledger) readAttachments(ctx context.Context, out *machine.Outcome) error {
	if out.Keyed == nil || out.Keyed.Record == nil || !out.Keyed.Record.HasAttachments() {
		return nil
	}
	return l.View(ctx, func(v machine.View) error {
		_, err := v.ReadAttachments(out.Keyed.Record)
		return err
	})
}

// Reserve is Keyed for a Reserve that waits: while another owner has the key, it
// waits until the reservation ends in any way, but no longer than wait, and is
// decided then as if it had come only then. Each time it is decided by decide, which
// is Keyed with what a caller adds to it.
func (l *Ledger) Reserve(
	ctx context.Context, c *machine.KeyedCommand, wait time.Duration,
	decide func(context.Context, *machine.KeyedCommand) (machine.Outcome, error),
) (machine.Outcome, error) {
	if wait <= 0 {
		return decide(ctx, c)
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	key := string(c.ID.TableKey())
	for {
		// Registered before the state is looked at, so that no end is missed.
		waiting := l.keys.join(key)
		if waiting == nil {
			return decide(ctx, c)
		}
		out, err := decide(ctx, c)
		if err != nil || out.Code != machine.KeyedInFlight || !l.awaitEnd(ctx, waiting, limit, time.Duration(out.Keyed.RetryAfter)) {
			l.keys.leave(key, waiting)
			return out, err
		}
		l.keys.leave(key, waiting)
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

// WriteKeyed decides a write that belongs to a key and to no stream; see Write.
func (l *Ledger) WriteKeyed(ctx context.Context, w *machine.KeyedWrite) (machine.Outcome, error) {
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
	s := new(Submission)
	s.addKeyedWrite(w)
	return l.decide(ctx, s)
}

// KeyedRecord returns the record of a key, with its response and checkpoint, or
// ErrNotFound of package machine.
func (l *Ledger) KeyedRecord(ctx context.Context, id *machine.KeyedID) (k *machine.KeyedRecord, err error) {
	err = l.View(ctx, func(v machine.View) error {
		if k, err = v.Keyed(id, l.clock.now()); err == nil {
			_, err = v.ReadAttachments(k)
		}
		return err
	})
	return k, err
}
