package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/follow"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/outbox"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// inboxVariable turns the test binary into a program that applies transfers to a database. Its value is the database's
// URL, a space, and the ledger's address.
const inboxVariable = "TRANSFER_INBOX"

// senderVariable turns the test binary into a program that makes transfers. Its value is the database's URL, a space,
// and the number of transfers.
const senderVariable = "TRANSFER_SENDER"

// transfersVariable is the number of transfers that the test makes, instead of the usual 1,000.
const transfersVariable = "TRANSFERS"

// payment is the request in one row of the outbox.
type payment struct{ ID, Amount int64 }

// inbox applies transfers until it is killed. Only its stored position keeps it from applying a transfer twice.
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
	for { // as a supervisor would restart it
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

// sender makes transfers, some of them together in one transaction, until all are made or it is killed. It continues
// when the database is killed.
func sender(variable string) int {
	url, text, _ := strings.Cut(variable, " ")
	transfers, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx := context.Background()
	db, err := pgxpool.New(ctx, url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	const some = 10
	for {
		var made int64 // including those made before a kill
		err := db.QueryRow(ctx, "SELECT coalesce(max(id), 0) FROM sent").Scan(&made)
		if err == nil && made >= transfers {
			return 0
		}
		if err == nil {
			err = send(ctx, db, made+1, min(made+some, transfers))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// send makes transfers in one transaction.
func send(ctx context.Context, db *pgxpool.Pool, first, last int64) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		for id := first; id <= last; id++ {
			amount := id%97 + 1
			tag, err := tx.Exec(ctx, "INSERT INTO sent VALUES ($1, $2) ON CONFLICT DO NOTHING", id, amount)
			if err != nil || tag.RowsAffected() == 0 { // the transaction that was killed has committed after all
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

// transferBed holds the processes of the test: two databases, a ledger, two relays, the sender and the inbox.
type transferBed struct {
	*testing.T
	from, to      *servertest.Server
	ledger        *testServer
	relays        [2]*process
	sender, inbox *process
	a, b          *pgxpool.Pool
	transfers     int64
	deadline      time.Time
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
	b.startSender()
	return b
}

func (b *transferBed) startRelay(i int) {
	b.Helper()
	b.relays[i] = start(b.T, "outbox", "postgres", "--dsn", b.from.URL, "--scope", "acme/orders", "--server",
		b.ledger.address)
}

// program starts this test binary as one of its programs.
func (b *transferBed) program(variable, value string) *process {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), variable+"="+value)
	return launch(b, cmd)
}

func (b *transferBed) startInbox() { b.inbox = b.program(inboxVariable, b.to.URL+" "+b.ledger.address) }

func (b *transferBed) startSender() {
	b.sender = b.program(senderVariable, b.from.URL+" "+strconv.FormatInt(b.transfers, 10))
}

// victims lists what can be killed and restarted.
var victims = []struct {
	name string
	kill func(b *transferBed)
}{
	{"the ledger", func(b *transferBed) {
		b.ledger.kill()
		b.ledger = serveOn(b.T, b.ledger.data, b.ledger.address)
	}},
	{"both relays", func(b *transferBed) {
		for i, relay := range b.relays { // one of them owns the streams
			relay.kill()
			b.startRelay(i)
		}
	}},
	{"a relay", func(b *transferBed) {
		b.relays[0].kill()
		b.startRelay(0)
	}},
	{"the sender's database", func(b *transferBed) {
		b.from.Kill()
		b.from.Start()
	}},
	{"the sender", func(b *transferBed) {
		b.sender.kill()
		b.startSender()
	}},
	{"the inbox", func(b *transferBed) {
		b.inbox.kill()
		b.startInbox()
	}},
	{"the inbox's database", func(b *transferBed) {
		b.to.Kill()
		b.to.Start()
	}},
}

// number returns the result of a query, even while its database is being restarted.
func (b *transferBed) number(db *pgxpool.Pool, query string) (n int64) {
	b.Helper()
	must.Await(b, func() bool { return db.QueryRow(b.Context(), query).Scan(&n) == nil }, query)
	return n
}

// await waits until the wanted number of transfers has been received.
func (b *transferBed) await(wanted int64) {
	b.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for b.number(b.b, "SELECT count(*) FROM received") < wanted {
		if time.Now().After(b.deadline) {
			status := seqledger(b.T, "outbox", "status", "--dsn", b.from.URL)
			b.Fatalf("%d transfers do not arrive: %v\nsender:\n%s\nrelays:\n%s\n%s\ninbox:\n%s", wanted, status,
				b.sender.stderr.String(), b.relays[0].stderr.String(), b.relays[1].stderr.String(),
				b.inbox.stderr.String())
		}
		<-tick.C
	}
}

// Transfers go from one database through a ledger to another, while every process is killed in turn: each transfer
// arrives once.
func TestTransfersBetweenDatabases(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped: starts many processes, and waits until a killed relay has lost its streams")
	}
	transfers := int64(1000)
	if text := os.Getenv(transfersVariable); text != "" {
		n := must.Get(strconv.ParseInt(text, 10, 64))(t)
		transfers = n
	}
	seed := must.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	b := newTransferBed(t, transfers)
	moments := make([]int64, max(int64(len(victims)), transfers/5000))
	for i := range moments {
		moments[i] = random.Int64N(transfers)
	}
	slices.Sort(moments)
	var order []int
	for i, moment := range moments {
		if len(order) == 0 {
			order = random.Perm(len(victims)) // so that each has its turn
		}
		victim := victims[order[0]]
		order = order[1:]
		b.await(moment)
		<-time.After(time.Duration(random.IntN(100)) * time.Millisecond) // at a random point of what follows
		t.Logf("kill %d: %s, after %d transfers", i+1, victim.name, moment)
		victim.kill(b)
	}
	if code := b.sender.wait(t); code != 0 {
		t.Errorf("the sender ends with %d: %s", code, b.sender.stderr.String())
	}
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
		check.Equal(t, b.number(b.b, query), want, "%s: %d", query)
	}
	// The rows are also settled, once the relay has the last receipts.
	outboxSays(t, b.from.URL, "account-0 0", "account-1 0", "account-2 0", "account-3 0")
	const settled = "SELECT count(*) FROM seqledger_outbox WHERE state = 'committed'"
	check.Equal(t, b.number(b.a, settled), transfers, "%d rows are committed")
}
