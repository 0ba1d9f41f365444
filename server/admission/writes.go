package admission

import (
	"context"
	"time"
)

// Work is writes that ask to enter the engine together.
type Work struct {
	Writes int
	Bytes  int // of their operations
	// Finish says that the work is the end of something that was admitted before: what its owner has done must not be
	// lost because the credential has used up its stored bytes meanwhile. So it may exceed them by up to finishBytes.
	Finish bool
}

// queued is how many bytes the work takes in the engine.
func (w Work) queued() int64 { return int64(w.Bytes) + int64(w.Writes)*CommandOverhead }

// Write admits work to the engine until done is called: when it is decided and its stored bytes are counted, whether or
// not its caller still waits. The error is a *Refusal.
func (c *Controller) Write(ctx context.Context, p Party, w Work) (done func(), err error) {
	if !c.shares {
		return func() {}, c.mayStore(ctx, p, w)
	}
	if done, err = c.write(ctx, p, w); err != nil && w.Bytes > freeBytes {
		p.Share.refusedLarge()
	}
	return done, err
}

func (c *Controller) write(ctx context.Context, p Party, w Work) (done func(), err error) {
	// The rate comes first, because a write for which there is no space is slowed, too: it has arrived, and is looked
	// up among those that are committed.
	if wait := p.Share.writePace.take(writeUnits(w.Writes, w.Bytes), p.Limits.WritesPerSecond, false); wait > 0 {
		return nil, c.refuseFor(ctx, WritesPerSecond, OfCredential, wait)
	}
	if err := c.mayStore(ctx, p, w); err != nil {
		return nil, err
	}
	return c.admit(ctx, p, QueuedBytes, w.queued())
}

// AwaitWrite is Write for the writes of a stream. It waits for the credential's rate and for its share of the engine,
// which only the credential's own writes can delay. hurry ends the wait for the rate, so that an ending stream does not
// take longer than necessary. done is nil if nothing is counted. The error is a *Refusal because of stored bytes, or
// the cause of ctx.
func (c *Controller) AwaitWrite(
	ctx context.Context, hurry <-chan struct{}, p Party, w Work,
) (done func(), err error) {
	if !c.shares {
		return nil, c.mayStore(ctx, p, w)
	}
	if wait := p.Share.writePace.take(writeUnits(w.Writes, w.Bytes), p.Limits.WritesPerSecond, true); wait > 0 {
		c.refusals[WritesPerSecond][OfCredential].Add(1)
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-hurry:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	// Check after the rate, so that refused writes are slowed too: reading them costs others as much.
	if err := c.mayStore(ctx, p, w); err != nil {
		return nil, err
	}
	return c.await(ctx, p, QueuedBytes, w.queued(), false)
}

// mayQueue returns a *Refusal if a party's write, of which the given bytes are known so far, would be refused. It does
// not check stored bytes: the write may repeat a committed one, whose receipt needs no space.
func (c *Controller) mayQueue(ctx context.Context, p Party, bytes int64) error {
	if !c.shares {
		return nil
	}
	if wait := p.Share.writePace.delay(p.Limits.WritesPerSecond); wait > 0 {
		return c.refuseFor(ctx, WritesPerSecond, OfCredential, wait)
	}
	if !p.Share.used[QueuedBytes].mayAcquire(bytes+CommandOverhead, maxQueuedBytes) {
		return c.refuse(ctx, QueuedBytes, OfCredential)
	}
	return nil
}

// DiskRoom reports whether less than the reserve is free on the disk, so that writes are refused, and whether at least
// twice the reserve is.
func (c *Controller) DiskRoom() (below, ample bool) {
	level := c.disk.level()
	return level == diskFull, level == diskAmple
}

// MayWrite returns a *Refusal while the disk has less free space than the reserve.
func (c *Controller) MayWrite(ctx context.Context) error {
	if c.disk.level() == diskFull {
		return c.refuse(ctx, DiskReserve, OfServer)
	}
	return nil
}

// mayStore returns why nothing more may be stored, or nil.
func (c *Controller) mayStore(ctx context.Context, p Party, w Work) error {
	if err := c.MayWrite(ctx); err != nil {
		return err
	}
	beyond := int64(0)
	if w.Finish {
		beyond = finishBytes
	}
	if c.shares && c.accounts.full(p, c.disk.level(), beyond) {
		return c.refuse(ctx, StoredBytes, OfCredential)
	}
	return nil
}

// Stored counts bytes that the disk keeps for a party.
func (c *Controller) Stored(p Party, bytes int) {
	if c.shares && bytes > 0 {
		c.accounts.add(p.Share, int64(bytes))
	}
}

// StoredBytes returns how many bytes were counted for a party.
func (c *Controller) StoredBytes(p Party) int64 {
	if !c.shares {
		return 0
	}
	return c.accounts.of(p.Share).bytes.Load()
}
