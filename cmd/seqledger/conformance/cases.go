package conformance

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// testCase is a case and the function that runs it.
type testCase struct {
	Case

	config []string // settings of the ledger: names and values
	run    func(b *bed) error
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
	return every(n, 2, fault{kind: answer, status: status[n/2%len(status)]})
}

// numbering runs without faults.
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

// faults returns a case in which messages with writes meet faults. choose gets the number of the message, from 0.
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

// serverKilled kills the server with kill -9 while writes are in flight.
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

// journalFull lets writes accumulate in a small journal while the ledger is unreachable, and kills the client
// meanwhile.
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
