package conformance

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// twoPrograms starts a second process with the same journal while the first has it open.
func twoPrograms(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	first, firstBooks := b.client, b.books
	b.submitMany(3)
	if err := b.settle(); err != nil {
		return err
	}
	b.books = newBooks()
	b.books.trail = b.trail
	err := b.mayNotOpen()
	b.client.Kill()
	b.client, b.books = first, firstBooks
	if err != nil {
		return err
	}
	ids := b.submitMany(3)
	if err := b.settleTo(committed, ids...); err != nil {
		return err
	}
	return b.conclude()
}

// openSession opens a session on the client's stream, as another program.
func (b *bed) openSession() error {
	conn, err := b.conn()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	_, err = conn.OpenSession(b.ctx, &seqledgerv1.OpenSessionRequest{
		Scope: scope(), ClientId: clientID, AttemptId: []byte("another attempt!"),
	})
	return err
}

// takeover lets another program open a session on the stream.
func takeover(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	b.submitMany(3)
	if err := b.settle(); err != nil {
		return err
	}
	if err := b.openSession(); err != nil {
		return &setupError{err}
	}
	late := b.submitMany(3)
	if err := b.awaitEnd(late[0], "SESSION_FENCED"); err != nil {
		return err
	}
	if err := b.settle(); err != nil {
		return err
	}
	b.kill()
	if err := b.mayNotOpen("SESSION_FENCED"); err != nil {
		return err
	}
	if err := b.conclude(); err != nil {
		return err
	}
	return b.wantAbsent(late...)
}

// wantAbsent checks that the ledger has none of some writes.
func (b *bed) wantAbsent(ids ...string) error {
	ledger, err := b.ledger()
	if err != nil {
		return err
	}
	for _, f := range ledger {
		for _, id := range ids {
			if f.id == id {
				return fmt.Errorf("%s is in the ledger, and must not be", id)
			}
		}
	}
	return nil
}

// pause waits, and returns false if ctx ends first.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// awaitEviction waits until the ledger no longer knows the stream.
func (b *bed) awaitEviction() error {
	conn, err := b.conn()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	// Set only now, because what comes before and after could take longer than that on a busy machine.
	if err := b.setClientTTL("1s"); err != nil {
		return err
	}
	for {
		state, err := conn.GetClientState(b.ctx, &seqledgerv1.GetClientStateRequest{Scope: scope(), ClientId: clientID})
		if err != nil {
			return err
		}
		if state.GetStatus() == seqledgerv1.ClientStatus_CLIENT_STATUS_UNKNOWN {
			return b.setClientTTL("24h")
		}
		if !pause(b.ctx, 100*time.Millisecond) {
			return context.Cause(b.ctx)
		}
	}
}

// setClientTTL sets after how long a stream without writes is evicted.
func (b *bed) setClientTTL(ttl string) error {
	return b.command("config", "set", "client_ttl", ttl, "--server", b.address)
}

// leaveOpen submits a write, lets the ledger commit it, and kills the client before the client learns of it.
func (b *bed) leaveOpen() (string, error) {
	committed := make(chan struct{}, 1)
	b.proxy.setPlan(func(procedure string) fault {
		if !isWrite(procedure) {
			return fault{}
		}
		return fault{kind: lose, after: func() {
			select {
			case committed <- struct{}{}:
			default:
			}
		}}
	})
	id := b.submit(command{})
	select {
	case <-committed:
	case <-b.client.Ended():
		return id, errors.New("the client has ended by itself")
	case <-b.ctx.Done():
		return id, fmt.Errorf("%s was not sent: %w", id, context.Cause(b.ctx))
	}
	b.kill()
	b.proxy.setPlan(nil)
	return id, nil
}

// evictedOpen: the stream of a client that was killed with an open write is evicted. The write is committed, and an
// earlier session cannot tell.
func evictedOpen(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	b.submitMany(3)
	if err := b.settle(); err != nil {
		return err
	}
	id, err := b.leaveOpen()
	if err != nil {
		return err
	}
	if err := b.awaitEviction(); err != nil {
		return &setupError{err}
	}
	if err := b.mayNotOpen("SESSION_EXPIRED"); err != nil {
		return err
	}
	if err := b.wantUnsettled(id); err != nil {
		return err
	}
	return b.conclude()
}

// evictedSettled: the stream of a client with no open writes is evicted.
func evictedSettled(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	b.submitMany(3)
	if err := b.settle(); err != nil {
		return err
	}
	if err := b.finish(); err != nil {
		return err
	}
	if err := b.awaitEviction(); err != nil {
		return &setupError{err}
	}
	if err := b.open(); err != nil {
		return err
	}
	ids := b.submitMany(3)
	if err := b.settleTo(committed, ids...); err != nil {
		return err
	}
	return b.conclude()
}

// restored: the ledger is restored from a backup that lacks the last writes, while the client runs.
func restored(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	b.submitMany(5)
	backup := filepath.Join(b.dir, "backup")
	if err := b.settle(); err != nil {
		return err
	}
	if err := b.command("backup", backup, "--server", b.address); err != nil {
		return &setupError{err}
	}
	lost := b.submitMany(5)
	if err := b.settle(); err != nil {
		return err
	}
	b.server.Kill()
	b.data = filepath.Join(b.dir, "restored")
	if err := errors.Join(b.command("restore", backup, "--data", b.data), b.serve()); err != nil {
		return &setupError{err}
	}
	late := b.submit(command{})
	if err := b.awaitEnd(late); err != nil {
		return err
	}
	if err := b.settle(); err != nil {
		return err
	}
	b.kill()
	if err := b.mayNotOpen(); err != nil {
		return err
	}
	if err := b.wantAbsent(append(lost, late)...); err != nil {
		return err
	}
	b.books.forget(lost)
	return b.conclude()
}

// forget removes writes from the books, because their ledger no longer exists.
func (b *books) forget(ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	gone := make(map[string]bool)
	for _, id := range ids {
		gone[id] = true
		delete(b.writes, id)
	}
	var rest []string
	for _, id := range b.order {
		if !gone[id] {
			rest = append(rest, id)
		}
	}
	b.order = rest
}

// anotherLedger: the address leads to a new ledger, and the journal holds an open write.
func anotherLedger(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	b.submitMany(3)
	if err := b.settle(); err != nil {
		return err
	}
	id, err := b.leaveOpen()
	if err != nil {
		return err
	}
	b.server.Kill()
	b.data = filepath.Join(b.dir, "another")
	if err := b.serve(); err != nil {
		return &setupError{err}
	}
	if err := b.mayNotOpen(); err != nil {
		return err
	}
	if err := b.wantUnsettled(id); err != nil {
		return err
	}
	if err := b.finish(); err != nil {
		return err
	}
	ledger, err := b.ledger()
	if err != nil {
		return err
	}
	if len(ledger) > 0 {
		return fmt.Errorf("%d writes were sent to another ledger", len(ledger))
	}
	return nil
}
