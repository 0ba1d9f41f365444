package conformance

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/child"
	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
)

// testCase is a case and the function that runs it.
type testCase struct {
	Case

	config []string // settings of the ledger: names and values
	run    func(b *bed)
}

var cases = []testCase{
	{Case{"numbering", "number by one, in the order of submission"}, nil, numbering},
	{Case{"lost-requests", "send again what has no answer"}, nil, faults(func(n int) fault {
		return every(n, 3, fault{Kind: faultproxy.Drop})
	})},
	{Case{"lost-answers", "repeat under the same number"}, nil, faults(func(n int) fault {
		return every(n, 3, fault{Kind: faultproxy.Lose})
	})},
	{Case{"repeats", "a copy that arrives later changes nothing"}, nil, faults(func(int) fault {
		return fault{Kind: faultproxy.Twice}
	})},
	{Case{"late-copies", "copies that arrive after a repeat change nothing"}, nil, faults(func(n int) fault {
		return every(n, 4, fault{Kind: faultproxy.Hold})
	})},
	{Case{"broken-answers", "half an answer decides nothing"}, nil, faults(func(n int) fault {
		return every(n, 3, fault{Kind: faultproxy.Mangle})
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
	{Case{"idle", "keep an idle stream alive"}, idling, idle},
	{Case{"window", "keep no more writes unanswered than the window has receipts"}, narrow, window},
	{Case{"restored-ledger", "stop when the ledger was restored"}, nil, restored},
	{Case{"another-ledger", "send nothing to another ledger"}, nil, anotherLedger},
	{Case{"journal-full", "a journal without room makes writes wait, and loses none"}, nil, journalFull},
	{Case{"crash-before", "a crash before each message that is sent"}, nil, crashes(false)},
	{Case{"crash-after", "a crash after each message that is sent"}, nil, crashes(true)},
	{Case{"crash-at-random", "crashes and faults at any time"}, nil, crashAtRandom},
}

// evicting makes a ledger evict everything as soon as it is due.
var evicting = []string{"eviction_interval", "1"}

// idling makes a ledger evict a stream that is not kept alive. On a busy machine a client may be late by two thirds of
// the time.
var idling = []string{"client_ttl", idleTTL.String(), "eviction_interval", "1"}

const idleTTL = 6 * time.Second

// narrow makes a ledger keep few receipts.
var narrow = []string{"receipt_window", "4"}

// every returns f for the last of each n messages.
func every(i, n int, f fault) fault {
	if i%n == n-1 {
		return f
	}
	return fault{}
}

// foreign answers every other message as an intermediary between the client and the ledger might.
func foreign(n int) fault {
	status := []int{
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusNotFound, http.StatusTooManyRequests,
		http.StatusUnauthorized, http.StatusForbidden, http.StatusOK, http.StatusInternalServerError,
	}
	return every(n, 2, fault{Kind: faultproxy.Answer, Status: status[n/2%len(status)]})
}

// writes returns a plan for messages with writes. choose gets the number of the message, from 0.
func writes(choose func(n int) fault) func(m *message) fault {
	seen := 0
	return func(m *message) fault {
		if !m.IsWrite() {
			return fault{}
		}
		seen++
		return choose(seen - 1)
	}
}

// once applies a fault to the first message with writes.
func once(f fault) func(m *message) fault {
	return writes(func(n int) fault {
		if n > 0 {
			return fault{}
		}
		return f
	})
}

// numbering runs without faults.
func numbering(b *bed) {
	b.open()
	ids := b.writeSome(200)
	for i, f := range b.ledger() {
		if i < len(ids) && (f.id != ids[i] || f.sequence != uint64(i)+1) {
			must(fmt.Errorf("the ledger has %s under sequence %d, want %s under %d", f.id, f.sequence, ids[i], i+1))
		}
	}
	b.conclude()
}

// faults returns a case in which messages with writes meet faults.
func faults(choose func(n int) fault) func(b *bed) {
	return func(b *bed) {
		b.open()
		b.proxy.setPlan(writes(choose))
		for range 12 {
			b.writeSome(5)
			b.release()
		}
		b.conclude()
	}
}

// serverKilled kills the server with kill -9 while writes are in flight.
func serverKilled(b *bed) {
	b.open()
	for range 5 {
		ids := b.submitMany(20)
		b.restartServer()
		b.settleTo(committed, ids...)
	}
	b.conclude()
}

// journalFull lets writes accumulate in a small journal while the ledger is unreachable, and kills the client
// meanwhile.
func journalFull(b *bed) {
	b.journalBytes = 64 << 10
	b.open()
	b.proxy.setPlan(func(*message) fault { return fault{Kind: faultproxy.Drop} })
	for range 100 {
		b.submit(command{Bytes: 1000})
	}
	for tried := b.proxy.seen(); b.proxy.seen() < tried+2; {
		if !child.Pause(b.ctx, 10*time.Millisecond) {
			must(fmt.Errorf("nothing is sent: %w", context.Cause(b.ctx)))
		}
	}
	b.kill()
	b.proxy.setPlan(nil)
	b.open()
	b.settleTo(committed, b.books.order...)
	b.conclude()
}

// idle: the client has nothing to write for longer than a stream lives, while others write. Afterwards it must still
// have the same stream: one that was evicted and recreated has another index, and its numbers do not protect earlier
// writes.
func idle(b *bed) {
	b.open()
	b.writeSome(3)
	before := b.stream()
	for began := time.Now(); time.Since(began) < 5*idleTTL/2; {
		b.set("heartbeat") // an eviction pass needs a command
		b.sleep(idleTTL / 12)
	}
	if b.stream().GetCreatedIndex() != before.GetCreatedIndex() {
		must(fmt.Errorf("the stream was evicted after %s: the client has not kept it alive", idleTTL))
	}
	b.writeSome(3)
	b.conclude()
}

// window loses all answers once, while many writes wait. A retry of the oldest unanswered write finds its receipt only
// if the client has sent no more than the window after it.
func window(b *bed) {
	b.open()
	b.proxy.setPlan(writes(func(n int) fault { return every(n, 2, fault{Kind: faultproxy.Lose}) }))
	for range 4 {
		b.wantReceipts(b.writeSome(windowWrites))
	}
	b.conclude()
}

// windowWrites is larger than the window.
const windowWrites = 40

// wantReceipts checks that the client has received the receipts of commits.
func (b *bed) wantReceipts(ids []string) {
	b.books.view(func() {
		for _, id := range ids {
			if b.books.writes[id].outcome.TxID == "" {
				must(fmt.Errorf("%s is committed, and its receipt is gone: too many writes were unanswered", id))
			}
		}
	})
}

// refusal: a condition that does not hold, in the middle of other writes.
func refusal(b *bed) {
	b.open()
	before := b.submitMany(3)
	refused := b.submit(command{Set: "stock", If: "present"})
	b.submitMany(3) // they may be committed, or not executed because of the refusal
	b.settleTo(committed, before...)
	b.want(notExecuted, refused)
	b.resume()
	b.writeSome(3)
	b.conclude()
}

// refusalWithCopy: the first copy of a write is in flight while a second one is refused. Then the condition becomes
// true, and the first copy arrives.
func refusalWithCopy(b *bed) {
	b.open()
	b.submit(command{})
	b.settle()
	b.proxy.setPlan(once(fault{Kind: faultproxy.Hold}))
	refused := b.submit(command{Set: "stock", If: "present"})
	b.settleTo(notExecuted, refused)
	b.set("stock")
	b.release()
	b.resume()
	b.writeSome(3)
	b.conclude()
}

// lostConditional: a write whose condition its own commit makes false, and whose answer is lost.
func lostConditional(b *bed) {
	b.open()
	b.proxy.setPlan(once(fault{Kind: faultproxy.Lose}))
	b.settleTo(committed, b.submit(command{Set: "order", If: "absent"}))
	b.conclude()
}
