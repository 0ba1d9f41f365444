package conformance

import (
	"context"
	"fmt"
	"time"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// idle: the client has nothing to write for longer than a stream lives, while others write. Afterwards it must still
// have the same stream: one that was evicted and recreated has another index, and its numbers do not protect earlier
// writes.
func idle(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	first := b.submitMany(3)
	if err := b.settleTo(committed, first...); err != nil {
		return err
	}
	before, err := b.stream()
	if err != nil {
		return &setupError{err}
	}
	for began := time.Now(); time.Since(began) < 5*idleTTL/2; {
		// An eviction pass needs a command.
		if err := b.set("heartbeat"); err != nil {
			return &setupError{err}
		}
		if !pause(b.ctx, idleTTL/12) {
			return context.Cause(b.ctx)
		}
	}
	after, err := b.stream()
	switch {
	case err != nil:
		return &setupError{err}
	case after.GetCreatedIndex() != before.GetCreatedIndex():
		return fmt.Errorf("the stream was evicted after %s: the client has not kept it alive", idleTTL)
	}
	ids := b.submitMany(3)
	if err := b.settleTo(committed, ids...); err != nil {
		return err
	}
	return b.conclude()
}

// stream returns the state of the client's stream.
func (b *bed) stream() (*seqledgerv1.ClientState, error) {
	conn, err := b.conn()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // read only
	return conn.GetClientState(b.ctx, &seqledgerv1.GetClientStateRequest{Scope: scope(), ClientId: clientID})
}

// window loses all answers once, while many writes wait. A retry of the oldest unanswered write finds its receipt only
// if the client has sent no more than the window after it.
func window(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	n := 0
	b.proxy.setPlan(func(procedure string) fault {
		if !isWrite(procedure) {
			return fault{}
		}
		n++
		return every(n, 2, fault{kind: lose})
	})
	for range 4 {
		ids := b.submitMany(windowWrites)
		if err := b.settleTo(committed, ids...); err != nil {
			return err
		}
		if err := b.wantReceipts(ids); err != nil {
			return err
		}
	}
	return b.conclude()
}

// windowWrites is larger than the window.
const windowWrites = 40

// wantReceipts checks that the client has received the receipts of commits.
func (b *bed) wantReceipts(ids []string) (err error) {
	b.books.view(func() {
		for _, id := range ids {
			if b.books.writes[id].outcome.TxID == "" && err == nil {
				err = fmt.Errorf("%s is committed, and its receipt is gone: too many writes were unanswered", id)
			}
		}
	})
	return err
}
