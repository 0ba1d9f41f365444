package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/journal"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// batch is how many payments are under way at once.
const batch = 8

func main() {
	server := flag.String("server", "127.0.0.1:7450", "address of the ledger")
	dir := flag.String("dir", ".", "directory of the till's book and journal")
	name := flag.String("name", "till", "name of the till, its client id, without spaces")
	payments := flag.Int("payments", 10, "how many new payments to make")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *server, *dir, *name, *payments); err != nil {
		fmt.Fprintln(os.Stderr, "till:", err)
		os.Exit(1)
	}
}

// till posts payments.
type till struct {
	book    *book
	journal *journal.File
	client  *client.Client
	writer  *client.Writer
	stream  journal.Name
	scope   *seqledgerv1.Scope
}

// maxName leaves room for the number behind it: a tag has at most 256 bytes.
const maxName = 200

// checkName refuses a name that the book could not store: the name is part of every tag, and
// the book separates words with spaces. It runs before the first intention, because the book
// never removes an entry.
func checkName(name string) error {
	outside := func(r rune) bool { return r <= ' ' || r > '~' }
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, outside) {
		return fmt.Errorf(
			"--name %q: a name is 1 to %d printable ASCII characters without spaces; a dash does as well, as in front-desk",
			name, maxName)
	}
	return nil
}

func run(ctx context.Context, server, dir, name string, payments int) (err error) {
	if err := checkName(name); err != nil {
		return err
	}
	t := &till{
		stream: journal.Name{Organization: "shop", Vault: "payments", ClientID: name},
		scope:  &seqledgerv1.Scope{Organization: "shop", Vault: "payments"},
	}
	if t.book, err = openBook(filepath.Join(dir, "book")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.book.close()) }()
	// A till with intended payments has had a journal. Without it, a payment that was sent
	// would look like one that was not.
	options := journal.Options{MustExist: len(t.book.payments) > 0}
	if t.journal, err = journal.Open(filepath.Join(dir, "journal"), options); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.journal.Close()) }()
	if t.client, err = client.New(client.Options{Server: server}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.client.Close()) }()
	if err := t.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.writer.Close(ctx)) }()

	if err := t.settle(ctx, t.writer.Recovered()); err != nil {
		return err
	}
	// The remaining payments were intended and never sent.
	if err := t.post(ctx, t.book.unpaid()); err != nil {
		return err
	}
	for payments > 0 {
		var due []*payment
		for range min(batch, payments) {
			number := len(t.book.payments) + len(due) + 1
			due = append(due, &payment{tag: fmt.Sprintf("%s-%d", name, number), cents: 1 + rand.Int64N(10_000)})
		}
		payments -= len(due)
		if err := t.book.intend(due...); err != nil {
			return err
		}
		if err := t.post(ctx, due); err != nil {
			return err
		}
	}
	return nil
}

// open opens the Writer, waiting as long as the ledger cannot be reached.
func (t *till) open(ctx context.Context) error {
	for {
		var err error
		t.writer, err = t.client.NewWriter(ctx, client.WriterOptions{
			Scope: t.scope, ClientID: t.stream.ClientID, Journal: t.journal,
		})
		unsettled, ok := errors.AsType[*client.UnsettledError](err)
		if !ok {
			return err
		}
		if err := t.takeOver(ctx, unsettled); err != nil {
			return err
		}
	}
}

// takeOver settles the payments that the Writer could not, because another session took the
// stream or it was evicted. No copy of these payments can commit any more, so the ledger's
// state is final: the payments that it has are paid, and the rest will be submitted anew.
func (t *till) takeOver(ctx context.Context, unsettled *client.UnsettledError) error {
	if !errors.Is(unsettled, client.ErrFenced) && !errors.Is(unsettled, client.ErrExpired) {
		return fmt.Errorf("a person has to look at this: %w", unsettled)
	}
	for _, write := range unsettled.Writes {
		if err := t.book.note(outcome{tag: write.Tag()}); err != nil {
			return err
		}
		entity, err := t.client.GetEntity(ctx, &seqledgerv1.GetEntityRequest{Scope: t.scope, Key: "payment/" + write.Tag()})
		if errors.Is(err, client.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if err := t.book.note(outcome{write.Tag(), entity.GetTxId()}); err != nil {
			return err
		}
	}
	return t.journal.Forget(t.stream)
}

// post submits payments that are in the book, a few at a time.
func (t *till) post(ctx context.Context, payments []*payment) error {
	for len(payments) > 0 {
		n := min(batch, len(payments))
		var sent []*client.Pending
		for _, p := range payments[:n] {
			pending, err := t.writer.SubmitTagged(ctx, p.tag, p.operation())
			if err != nil {
				return err
			}
			sent = append(sent, pending)
		}
		if err := t.settle(ctx, sent); err != nil {
			return err
		}
		payments = payments[n:]
	}
	return nil
}

// settle waits for the outcomes of payments, records them in the book, and then acknowledges
// them in the journal.
func (t *till) settle(ctx context.Context, sent []*client.Pending) error {
	var paid []outcome
	for _, pending := range sent {
		receipt, err := pending.Wait(ctx)
		if err != nil {
			return fmt.Errorf("payment %s: %w", pending.Tag(), err)
		}
		paid = append(paid, outcome{pending.Tag(), receiptName(receipt)})
	}
	if err := t.book.note(paid...); err != nil {
		return err
	}
	for _, pending := range sent {
		if err := pending.Acknowledge(); err != nil {
			return err
		}
	}
	return nil
}

// receiptName returns the transaction id, or a note that the ledger no longer keeps the
// receipt.
func receiptName(receipt *seqledgerv1.Receipt) string {
	if client.ReceiptGone(receipt) {
		return fmt.Sprintf("sequence-%d", receipt.GetSequence())
	}
	return receipt.GetTxId()
}

// operation writes the payment under its own key. It has no condition: the Writer makes each
// payment once, and the test detects if it does not.
func (p *payment) operation() *seqledgerv1.Operation {
	return client.Set("payment/"+p.tag, fmt.Append(nil, p.cents))
}
