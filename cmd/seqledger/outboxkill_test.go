package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/follow"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/outbox"
	"github.com/seqledger/seqledger/internal/servertest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// inboxVariable makes the test binary a program that applies transfers to a database. It is the database's URL,
// a space, and the ledger's address.
const inboxVariable = "TRANSFER_INBOX"

// transfersVariable is how many transfers the test makes, in place of the 1,000 of every run.
const transfersVariable = "TRANSFERS"

// payment is what one row of the outbox asks for.
type payment struct{ ID, Amount int64 }

// inbox applies transfers until it is killed. Nothing but its position keeps it from taking one a second time.
func inbox(variable string) int {
	url, server, _ := strings.Cut(variable, " ")
	ctx := context.Background()
	db, err := pgxpool.New(ctx, url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ledger, err := client.New(client.Options{Server: server})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	scope := &seqledgerv1.Scope{Organization: "acme", Vault: "orders"}
	for { // as a supervisor would start it again
		err = follow.Into(ctx, ledger, db, scope, applyTransfers, follow.Options{Logger: slog.Default()})
		fmt.Fprintln(os.Stderr, err)
		if _, diverged := errors.AsType[*follow.DivergedError](err); diverged {
			return 1
		}
	}
}

// applyTransfers applies the transfers of a block.
func applyTransfers(ctx context.Context, tx pgx.Tx, block *seqledgerv1.Block) error {
	for _, transaction := range block.GetTransactions() {
		for _, operation := range transaction.GetOperations() {
			var one payment
			if err := json.Unmarshal(operation.GetAppend().GetPayload(), &one); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "INSERT INTO received VALUES ($1, $2)", one.ID, one.Amount); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "UPDATE balance SET amount = amount + $1", one.Amount); err != nil {
				return err
			}
		}
	}
	return nil
}

// send makes transfers, some in a transaction, in spite of a database that is killed.
func send(ctx context.Context, db *pgxpool.Pool, first, last int64) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		for id := first; id <= last; id++ {
			amount := id%97 + 1
			tag, err := tx.Exec(ctx, "INSERT INTO sent VALUES ($1, $2) ON CONFLICT DO NOTHING", id, amount)
			if err != nil || tag.RowsAffected() == 0 { // the answer of its commit was lost
				return err
			}
			payload, err := json.Marshal(payment{id, amount})
			if err != nil {
				return err
			}
			if _, err := outbox.Insert(ctx, tx, "", fmt.Sprint("account-", id%4), op.Append(payload)); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "UPDATE balance SET amount = amount - $1", amount); err != nil {
				return err
			}
		}
		return nil
	})
}

// transferBed is the processes of the test: two databases, a ledger, two relays, and the inbox.
type transferBed struct {
	*testing.T
	from, to   *servertest.Server
	ledger     *testServer
	relays     [2]*process
	inbox      *process
	a, b       *pgxpool.Pool
	transfers  int64
	deadline   time.Time
	background sync.WaitGroup
}

func newTransferBed(t *testing.T, transfers int64) *transferBed {
	t.Helper()
	b := &transferBed{
		T: t, from: servertest.Postgres(t), to: servertest.Postgres(t), ledger: serve(t), transfers: transfers,
		deadline: time.Now().Add(3*time.Minute + time.Duration(transfers)*10*time.Millisecond),
	}
	seqledger(t, "outbox", "init", "--dsn", b.from.URL).expect(t, exitDone)
	b.a, b.b = openPool(t, b.from.URL), openPool(t, b.to.URL)
	execute(t, b.a, `CREATE TABLE sent (id bigint PRIMARY KEY, amount bigint NOT NULL)`)
	execute(t, b.b, `CREATE TABLE received (id bigint NOT NULL, amount bigint NOT NULL)`)
	for _, db := range []*pgxpool.Pool{b.a, b.b} {
		execute(t, db, `CREATE TABLE balance (amount bigint NOT NULL)`)
		execute(t, db, `INSERT INTO balance VALUES (0)`)
	}
	execute(t, b.b, follow.Schema())
	for i := range b.relays {
		b.startRelay(i)
	}
	b.startInbox()
	return b
}

func (b *transferBed) startRelay(i int) {
	b.Helper()
	b.relays[i] = start(b.T, "outbox", "postgres", "--dsn", b.from.URL, "--scope", "acme/orders", "--server",
		b.ledger.address)
}

func (b *transferBed) startInbox() {
	b.Helper()
	p := &process{cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), inboxVariable+"="+b.to.URL+" "+b.ledger.address)
	p.cmd.Stderr = &p.stderr
	if err := p.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	// Ends with the process, which the cleanup kills; the cleanup waits for it.
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait()
	}()
	b.Cleanup(p.kill)
	b.inbox = p
}

// kill kills one of the processes, or both relays, and starts it again.
func (b *transferBed) kill(victim int) {
	b.Helper()
	switch victim {
	case 0:
		b.ledger.kill()
		b.ledger = serveOn(b.T, b.ledger.data, b.ledger.address)
	case 1:
		for i, relay := range b.relays { // one of them owns the streams
			relay.kill()
			b.startRelay(i)
		}
	case 2:
		b.from.Kill()
		b.from.Start()
	case 3:
		b.inbox.kill()
		b.startInbox()
	case 4:
		b.to.Kill()
		b.to.Start()
	}
}

// number returns what a query answers, also while its database is started again.
func (b *transferBed) number(db *pgxpool.Pool, query string) (n int64) {
	b.Helper()
	for {
		err := db.QueryRow(b.Context(), query).Scan(&n)
		if err == nil {
			return n
		}
		if time.Now().After(b.deadline) {
			b.Fatalf("%s: %v", query, err)
		}
	}
}

// await waits until so many transfers have been received.
func (b *transferBed) await(wanted int64) {
	b.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for b.number(b.b, "SELECT count(*) FROM received") < wanted {
		if time.Now().After(b.deadline) {
			status := seqledger(b.T, "outbox", "status", "--dsn", b.from.URL)
			b.Fatalf("%d transfers do not arrive: %v\nrelays:\n%s\n%s\ninbox:\n%s", wanted, status,
				b.relays[0].stderr.String(), b.relays[1].stderr.String(), b.inbox.stderr.String())
		}
		<-tick.C
	}
}

// Transfers go from one database through a ledger to another, while every process is killed: each arrives once.
func TestTransfersBetweenDatabases(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped: starts many processes, and waits until a killed relay has lost its streams")
	}
	transfers := int64(1000)
	if text := os.Getenv(transfersVariable); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		transfers = n
	}
	b := newTransferBed(t, transfers)
	// Ends with the last transfer, or the test; waited for below.
	b.background.Go(func() {
		const some = 10
		for first := int64(1); first <= transfers; first += some {
			for send(t.Context(), b.a, first, min(first+some-1, transfers)) != nil && t.Context().Err() == nil &&
				time.Now().Before(b.deadline) {
			}
		}
	})
	rounds := max(6, transfers/5000)
	for round := range rounds {
		b.await(transfers * round / rounds)
		b.kill(int(round % 5))
	}
	b.background.Wait()
	b.await(transfers)
	if n := b.number(b.a, "SELECT count(*) FROM sent"); n != transfers {
		t.Errorf("%d transfers were sent, of %d", n, transfers)
	}
	for query, want := range map[string]int64{
		"SELECT count(*) FROM received":           transfers,
		"SELECT count(DISTINCT id) FROM received": transfers,
		"SELECT sum(amount) FROM received":        b.number(b.a, "SELECT sum(amount) FROM sent"),
		"SELECT amount FROM balance":              -b.number(b.a, "SELECT amount FROM balance"),
	} {
		if got := b.number(b.b, query); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
	// The rows know it, too, as soon as the relay has heard of the last ones.
	outboxSays(t, b.from.URL, "account-0 0", "account-1 0", "account-2 0", "account-3 0")
	const settled = "SELECT count(*) FROM seqledger_outbox WHERE state = 'committed'"
	if n := b.number(b.a, settled); n != transfers {
		t.Errorf("%d rows are committed", n)
	}
}
