package conformance

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/cmd/seqledger/child"
	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// twoPrograms starts a second process with the same journal while the first has it open.
func twoPrograms(b *bed) {
	b.open()
	first, firstBooks := b.client, b.books
	b.submitMany(3)
	b.settle()
	b.books = newBooks()
	b.books.trail = b.trail
	err := attempt(func() { b.mayNotOpen() })
	b.client.Kill()
	b.client, b.books = first, firstBooks
	must(err)
	b.writeSome(3)
	b.conclude()
}

// takeover lets another program open a session on the stream.
func takeover(b *bed) {
	b.open()
	b.submitMany(3)
	b.settle()
	b.directly(func(conn *client.Client) error {
		_, err := conn.OpenSession(b.ctx, &seqledgerv1.OpenSessionRequest{
			Scope: scope(), ClientId: clientID, AttemptId: []byte("another attempt!"),
		})
		return err
	})
	late := b.submitMany(3)
	b.awaitEnd(late[0], "SESSION_FENCED")
	b.settle()
	b.kill()
	b.mayNotOpen("SESSION_FENCED")
	b.conclude()
	b.wantAbsent(late...)
}

// wantAbsent checks that the ledger has none of some writes.
func (b *bed) wantAbsent(ids ...string) {
	for _, f := range b.ledger() {
		if slices.Contains(ids, f.id) {
			must(fmt.Errorf("%s is in the ledger, and must not be", f.id))
		}
	}
}

// awaitEviction waits until the ledger no longer knows the stream.
func (b *bed) awaitEviction() {
	// Set only now, because what comes before and after could take longer than that on a busy machine.
	b.setClientTTL("1s")
	for b.stream().GetStatus() != seqledgerv1.ClientStatus_CLIENT_STATUS_UNKNOWN {
		if !child.Pause(b.ctx, 100*time.Millisecond) {
			prepared(context.Cause(b.ctx))
		}
	}
	b.setClientTTL("24h")
}

// setClientTTL sets after how long a stream without writes is evicted.
func (b *bed) setClientTTL(ttl string) {
	b.command("config", "set", "client_ttl", ttl, "--server", b.address)
}

// leaveOpen submits a write, lets the ledger commit it, and kills the client before the client learns of it.
func (b *bed) leaveOpen() string {
	committed := make(chan struct{}, 1)
	b.proxy.setPlan(writes(func(int) fault {
		return fault{Kind: faultproxy.Lose, After: func() {
			select {
			case committed <- struct{}{}:
			default:
			}
		}}
	}))
	id := b.submit(command{})
	select {
	case <-committed:
	case <-b.client.Ended():
		must(errors.New("the client has ended by itself"))
	case <-b.ctx.Done():
		must(fmt.Errorf("%s was not sent: %w", id, context.Cause(b.ctx)))
	}
	b.kill()
	b.proxy.setPlan(nil)
	return id
}

// evictedOpen: the stream of a client that was killed with an open write is evicted. The write is committed, and an
// earlier session cannot tell.
func evictedOpen(b *bed) {
	b.open()
	b.submitMany(3)
	b.settle()
	id := b.leaveOpen()
	b.awaitEviction()
	b.mayNotOpen("SESSION_EXPIRED")
	b.wantUnsettled(id)
	b.conclude()
}

// evictedSettled: the stream of a client with no open writes is evicted.
func evictedSettled(b *bed) {
	b.open()
	b.submitMany(3)
	b.settle()
	b.finish()
	b.awaitEviction()
	b.open()
	b.writeSome(3)
	b.conclude()
}

// restored: the ledger is restored from a backup that lacks the last writes, while the client runs.
func restored(b *bed) {
	b.open()
	b.submitMany(5)
	b.settle()
	backup := filepath.Join(b.dir, "backup")
	b.command("backup", backup, "--server", b.address)
	lost := b.submitMany(5)
	b.settle()
	b.server.Kill()
	b.data = filepath.Join(b.dir, "restored")
	b.command("restore", backup, "--data", b.data)
	b.serve()
	late := b.submit(command{})
	b.awaitEnd(late)
	b.settle()
	b.kill()
	b.mayNotOpen()
	b.wantAbsent(append(lost, late)...)
	b.books.forget(lost)
	b.conclude()
}

// forget removes writes from the books, because their ledger no longer exists.
func (b *books) forget(ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range ids {
		delete(b.writes, id)
	}
	b.order = slices.DeleteFunc(b.order, func(id string) bool { return b.writes[id] == nil })
}

// anotherLedger: the address leads to a new ledger, and the journal holds an open write.
func anotherLedger(b *bed) {
	b.open()
	b.submitMany(3)
	b.settle()
	id := b.leaveOpen()
	b.server.Kill()
	b.data = filepath.Join(b.dir, "another")
	b.serve()
	b.mayNotOpen()
	b.wantUnsettled(id)
	b.finish()
	if ledger := b.ledger(); len(ledger) > 0 {
		must(fmt.Errorf("%d writes were sent to another ledger", len(ledger)))
	}
}
