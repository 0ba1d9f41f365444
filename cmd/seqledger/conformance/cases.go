package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"time"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// testCase is a case and its work.
type testCase struct {
	Case

	flags []string // of serve
	run   func(b *bed) error
}

var cases = []testCase{
	{Case{"numbering", "number by one, in the order of submission"}, nil, numbering},
	{Case{"lost-requests", "send again what has no answer"}, nil, faults(func(n int) fault {
		return every(n, 3, fault{kind: drop})
	})},
	{Case{"lost-answers", "repeat under the same number"}, nil, faults(func(n int) fault {
		return every(n, 3, fault{kind: lose})
	})},
	{Case{"repeats", "a copy that arrives later changes nothing"}, nil, faults(func(int) fault {
		return fault{kind: twice}
	})},
	{Case{"late-copies", "copies that arrive after a repeat change nothing"}, nil, faults(func(n int) fault {
		return every(n, 4, fault{kind: hold})
	})},
	{Case{"broken-answers", "half an answer decides nothing"}, nil, faults(func(n int) fault {
		return every(n, 3, fault{kind: mangle})
	})},
	{Case{"foreign-answers", "an answer that is not the ledger's decides nothing"}, nil, faults(foreign)},
	{Case{"server-killed", "go on when the server is back"}, nil, serverKilled},
	{Case{"refusal", "a refusal is reported, and its number is used again"}, nil, refusal},
	{Case{"refusal-with-a-copy", "a refusal is final only when no copy can be under way"}, nil, refusalWithCopy},
	{Case{"refusal-behind-a-commit", "a lost answer may have been a commit"}, nil, lostConditional},
	{Case{"two-programs", "one program at a time has a journal"}, nil, twoPrograms},
	{Case{"takeover", "stop when another program has the stream"}, nil, takeover},
	{Case{"eviction", "what is open after an eviction is not sent again"}, evicting, evictedOpen},
	{Case{"eviction-settled", "begin again after an eviction with nothing open"}, evicting, evictedSettled},
	{Case{"restored-ledger", "stop when the ledger was restored"}, nil, restored},
	{Case{"another-ledger", "send nothing to another ledger"}, nil, anotherLedger},
	{Case{"journal-full", "a journal without room makes writes wait, and loses none"}, nil, journalFull},
	{Case{"crash-before", "a crash before each message that is sent"}, nil, crashes(false)},
	{Case{"crash-after", "a crash after each message that is sent"}, nil, crashes(true)},
	{Case{"crash-at-random", "crashes and faults at any time"}, nil, crashAtRandom},
}

// evicting are flags of a ledger that evicts at once what is due.
var evicting = []string{"--eviction-interval", "1"}

// every gives the last of each n messages the fault.
func every(i, n int, f fault) fault {
	if i%n == n-1 {
		return f
	}
	return fault{}
}

// foreign answers every other message as something between the client and the ledger might.
func foreign(n int) fault {
	status := []int{
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusNotFound, http.StatusTooManyRequests,
		http.StatusUnauthorized, http.StatusForbidden, http.StatusOK, http.StatusInternalServerError,
	}
	return every(n, 2, fault{kind: answer, status: status[n/2%len(status)]})
}

// numbering: without faults.
func numbering(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	ids := b.submitMany(200)
	if err := b.settleTo(committed, ids...); err != nil {
		return err
	}
	ledger, err := b.ledger()
	if err != nil {
		return err
	}
	for i, f := range ledger {
		if i < len(ids) && (f.id != ids[i] || f.sequence != uint64(i)+1) {
			return fmt.Errorf("the ledger has %s under sequence %d, want %s under %d", f.id, f.sequence, ids[i], i+1)
		}
	}
	return b.conclude()
}

// faults returns a case in which messages with writes meet faults. choose gets their number, from 0.
func faults(choose func(n int) fault) func(b *bed) error {
	return func(b *bed) error {
		if err := b.open(); err != nil {
			return err
		}
		seen := 0
		b.proxy.setPlan(func(procedure string) fault {
			if !isWrite(procedure) {
				return fault{}
			}
			seen++
			return choose(seen - 1)
		})
		for range 12 {
			ids := b.submitMany(5)
			if err := b.settleTo(committed, ids...); err != nil {
				return err
			}
			if _, err := b.proxy.release(b.ctx); err != nil {
				return fmt.Errorf("a held message: %w", err)
			}
		}
		return b.conclude()
	}
}

// serverKilled: kill -9 of the server while writes are under way.
func serverKilled(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	for range 5 {
		ids := b.submitMany(20)
		if err := b.restartServer(); err != nil {
			return &setupError{err}
		}
		if err := b.settleTo(committed, ids...); err != nil {
			return err
		}
	}
	return b.conclude()
}

// refusal: a condition that does not hold, in the middle of other writes.
func refusal(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	before := b.submitMany(3)
	refused := b.submit(command{Set: "stock", If: "present"})
	b.submitMany(3) // they may be committed, or not executed because of the refusal
	if err := b.settleTo(committed, before...); err != nil {
		return err
	}
	if err := b.want(notExecuted, refused); err != nil {
		return err
	}
	if err := b.resume(); err != nil {
		return err
	}
	after := b.submitMany(3)
	if err := b.settleTo(committed, after...); err != nil {
		return err
	}
	return b.conclude()
}

// refusalWithCopy: the first copy of a write is under way while a second one is refused. Then the
// condition comes to hold, and the first copy arrives.
func refusalWithCopy(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	b.submit(command{})
	if err := b.settle(); err != nil {
		return err
	}
	b.proxy.setPlan(once(fault{kind: hold}))
	refused := b.submit(command{Set: "stock", If: "present"})
	if err := b.settleTo(notExecuted, refused); err != nil {
		return err
	}
	if err := b.set("stock"); err != nil {
		return &setupError{err}
	}
	if _, err := b.proxy.release(b.ctx); err != nil {
		return fmt.Errorf("the held copy: %w", err)
	}
	if err := b.resume(); err != nil {
		return err
	}
	after := b.submitMany(3)
	if err := b.settleTo(committed, after...); err != nil {
		return err
	}
	return b.conclude()
}

// lostConditional: a write under a condition that its own commit breaks, and whose answer is lost.
func lostConditional(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	b.proxy.setPlan(once(fault{kind: lose}))
	id := b.submit(command{Set: "order", If: "absent"})
	if err := b.settleTo(committed, id); err != nil {
		return err
	}
	return b.conclude()
}

// once gives the first message with writes a fault.
func once(f fault) func(procedure string) fault {
	done := false
	return func(procedure string) fault {
		if done || !isWrite(procedure) {
			return fault{}
		}
		done = true
		return f
	}
}

// twoPrograms: a second process with the same journal, while the first has it.
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
	defer func() { _ = conn.Close() }() // nothing is under way
	_, err = conn.OpenSession(b.ctx, &seqledgerv1.OpenSessionRequest{
		Scope: scope(), ClientId: clientID, AttemptId: []byte("another attempt!"),
	})
	return err
}

// takeover: another program opens a session on the stream.
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
	if err := b.awaitEnd("SESSION_FENCED"); err != nil {
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
	defer func() { _ = conn.Close() }() // nothing is under way
	// Only now, because a busy machine could take longer than that for what comes before and after.
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

// leaveOpen submits a write, lets the ledger commit it, and kills the client before it knows.
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

// evictedOpen: the stream of a client that was killed with an open write is evicted. The write is
// committed, and a session of before cannot tell.
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

// evictedSettled: the stream of a client with nothing open is evicted.
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
	if err := b.awaitEnd(); err != nil {
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

// forget removes writes from the books, because their ledger is gone.
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

// anotherLedger: the address leads to a ledger that is new, and the journal has an open write.
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

// journalFull: writes gather in a small journal while the ledger cannot be reached, and the client
// is killed meanwhile.
func journalFull(b *bed) error {
	b.journalBytes = 64 << 10
	if err := b.open(); err != nil {
		return err
	}
	b.proxy.setPlan(func(string) fault { return fault{kind: drop} })
	for range 100 {
		b.submit(command{Bytes: 1000})
	}
	tried := b.proxy.writes()
	for b.proxy.writes() < tried+2 {
		if !pause(b.ctx, 10*time.Millisecond) {
			return fmt.Errorf("nothing is sent: %w", context.Cause(b.ctx))
		}
	}
	b.kill()
	b.proxy.setPlan(nil)
	if err := b.open(); err != nil {
		return err
	}
	if err := b.settleTo(committed, b.books.order...); err != nil {
		return err
	}
	return b.conclude()
}

// crashes returns a case that kills the client at the first message that it sends, is started again,
// is killed at the second, and so on, before the server gets the message or before the client gets
// the answer.
func crashes(after bool) func(b *bed) error {
	return func(b *bed) error {
		most := 24
		if b.options.Short {
			most = 8
		}
		for step := 1; step <= most; step++ {
			killed, err := crash(b, step, after)
			if err != nil {
				return fmt.Errorf("killed at message %d: %w", step, err)
			}
			if !killed {
				break
			}
		}
		return b.audit()
	}
}

// crash runs the client until its message number step, and then to the end. killed is false if it
// sent fewer messages.
func crash(b *bed, step int, after bool) (killed bool, err error) {
	if err := b.spawn(); err != nil {
		return false, err
	}
	client, hit, n := b.client, make(chan struct{}), 0
	kill := func() {
		b.trail.note("the client is killed at its message %d", step)
		close(hit)
		client.Kill()
	}
	b.proxy.setPlan(func(string) fault {
		if n++; n != step {
			return fault{}
		}
		if after {
			return fault{kind: lose, after: kill}
		}
		return fault{kind: drop, before: kill}
	})
	b.tellOpen()
	b.submitMany(4)
	if err = b.settle(); err == nil {
		err = b.finish()
	}
	b.proxy.setPlan(nil)
	select {
	case <-hit:
		client.Kill() // waits until that is done
	default:
		return false, err
	}
	if err := b.open(); err != nil {
		return true, err
	}
	if err := b.settle(); err != nil {
		return true, err
	}
	return true, b.finish()
}

// crashAtRandom: kills at random times while messages meet random faults.
func crashAtRandom(b *bed) error {
	rounds := 25
	if b.options.Short {
		rounds = 6
	}
	// Two sources, because the proxy draws from other goroutines.
	choices, kills := rand.New(rand.NewPCG(b.options.Seed, 1)), rand.New(rand.NewPCG(b.options.Seed, 2))
	b.proxy.setPlan(func(string) fault {
		kinds := []kind{drop, lose, hold, twice}
		if i := choices.IntN(16); i < len(kinds) {
			return fault{kind: kinds[i]}
		}
		return fault{}
	})
	for range rounds {
		if err := b.open(); err != nil {
			return err
		}
		b.submitMany(20)
		if !pause(b.ctx, time.Duration(kills.IntN(100))*time.Millisecond) {
			return context.Cause(b.ctx)
		}
		b.kill()
	}
	if err := b.open(); err != nil {
		return err
	}
	if err := b.settleTo(committed, b.books.order...); err != nil {
		return err
	}
	b.proxy.setPlan(nil)
	return b.conclude()
}
