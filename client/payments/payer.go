package payments

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/writer"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Batch is how many payments are under way at once.
const Batch = 8

// Options configure a Payer. All are required.
type Options struct {
	Client *client.Client
	// Dir holds the Writer's journal.
	Dir      string
	Scope    *seqledgerv1.Scope
	ClientID string // of the stream, which no other program uses
	Log      *Log
}

// Payer posts payments that are in the payment log, each of them once.
type Payer struct {
	options Options
	journal *journal.File
	writer  *writer.Writer
}

// Open opens the journal, takes over the stream and settles the payments that the journal holds. It waits as long as
// the ledger cannot be reached.
func Open(ctx context.Context, o Options) (_ *Payer, err error) {
	p := &Payer{options: o}
	// A program with intended payments has had a journal. Without it, a payment that was sent
	// would look like one that was not.
	options := journal.Options{MustExist: len(o.Log.payments) > 0}
	if p.journal, err = journal.Open(filepath.Join(o.Dir, "journal"), options); err != nil {
		return nil, err
	}
	if err := p.openWriter(ctx); err != nil {
		return nil, errors.Join(err, p.journal.Close())
	}
	if err := p.settle(ctx, p.writer.Recovered()); err != nil {
		return nil, errors.Join(err, p.Close(ctx))
	}
	return p, nil
}

// openWriter opens the Writer. The loop is never busy, because every call of the client waits before it repeats.
func (p *Payer) openWriter(ctx context.Context) error {
	for {
		w, err := writer.Open(ctx, p.options.Client, writer.Options{
			Scope: p.options.Scope, ClientID: p.options.ClientID, Journal: p.journal,
		})
		if err == nil {
			p.writer = w
			return nil
		}
		if unsettled, ok := errors.AsType[*writer.UnsettledError](err); ok {
			err = p.takeOver(ctx, unsettled)
		}
		if err != nil && (ctx.Err() != nil || !errors.Is(err, failure.ErrUnavailable)) {
			return err
		}
	}
}

// takeOver settles the payments that the Writer could not, because another session took over the stream or the stream
// was evicted. No copy of these payments can commit any more, so the ledger's state is final: the payments that it
// has are paid, and the rest will be submitted again.
func (p *Payer) takeOver(ctx context.Context, unsettled *writer.UnsettledError) error {
	if !errors.Is(unsettled, failure.ErrFenced) && !errors.Is(unsettled, failure.ErrExpired) {
		return fmt.Errorf("a person must settle these payments: %w", unsettled)
	}
	for _, write := range unsettled.Writes {
		if err := p.options.Log.Note(Outcome{Tag: write.Tag()}); err != nil {
			return err
		}
		entity, err := p.options.Client.GetEntity(ctx,
			&seqledgerv1.GetEntityRequest{Scope: p.options.Scope, Key: entityKey + write.Tag()})
		if errors.Is(err, failure.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if err := p.options.Log.Note(Outcome{write.Tag(), entity.GetTxId()}); err != nil {
			return err
		}
	}
	return p.journal.Forget(journal.Name{
		Organization: p.options.Scope.GetOrganization(), Vault: p.options.Scope.GetVault(),
		ClientID: p.options.ClientID,
	})
}

// Post submits payments that are in the payment log, in small batches, and returns once each is recorded there as paid.
func (p *Payer) Post(ctx context.Context, payments []*Payment) error {
	for len(payments) > 0 {
		n := min(Batch, len(payments))
		var sent []*writer.Pending
		for _, payment := range payments[:n] {
			pending, err := p.writer.SubmitTagged(ctx, payment.Tag, payment.Operation())
			if err != nil { // what was sent before may be paid, and says why no more can be
				return errors.Join(p.settle(ctx, sent), fmt.Errorf("payment %s: %w", payment.Tag, err))
			}
			sent = append(sent, pending)
		}
		if err := p.settle(ctx, sent); err != nil {
			return err
		}
		payments = payments[n:]
	}
	return nil
}

// settle waits for the outcomes of payments, records them in the payment log, and only then
// acknowledges them in the journal.
func (p *Payer) settle(ctx context.Context, sent []*writer.Pending) error {
	var paid []Outcome
	for _, pending := range sent {
		receipt, err := pending.Wait(ctx)
		if err != nil {
			return fmt.Errorf("payment %s: %w", pending.Tag(), err)
		}
		paid = append(paid, Outcome{pending.Tag(), receiptName(receipt)})
	}
	if err := p.options.Log.Note(paid...); err != nil {
		return err
	}
	for _, pending := range sent {
		if err := pending.Acknowledge(); err != nil {
			return err
		}
	}
	return nil
}

// receiptName returns the transaction id, or a note that the ledger no longer keeps the receipt.
func receiptName(receipt *seqledgerv1.Receipt) string {
	if writer.ReceiptGone(receipt) {
		return fmt.Sprintf("sequence-%d", receipt.GetSequence())
	}
	return receipt.GetTxId()
}

// Close closes the Writer and the journal.
func (p *Payer) Close(ctx context.Context) error {
	return errors.Join(p.writer.Close(ctx), p.journal.Close())
}
