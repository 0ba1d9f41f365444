package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/journal"
)

// journaledPoster pays through a Writer with a journal, each payment once.
type journaledPoster struct {
	book    *book
	journal *journal.File
	writer  *client.Writer
}

// openJournaled opens the journal, takes over the stream, and settles the journal's writes,
// waiting as long as the ledger cannot be reached.
func openJournaled(ctx context.Context, p *payer) (_ *journaledPoster, err error) {
	j := &journaledPoster{book: p.book}
	// A client with intended payments has had a journal. Without it, a payment that was sent
	// would look like one that was not.
	options := journal.Options{MustExist: len(p.book.payments) > 0}
	if j.journal, err = journal.Open(filepath.Join(p.options.Dir, "journal"), options); err != nil {
		return nil, err
	}
	for j.writer == nil {
		j.writer, err = p.client.NewWriter(ctx, client.WriterOptions{
			Scope: scope(), ClientID: p.options.Name, Journal: j.journal,
		})
		if err == nil {
			break
		}
		j.writer = nil
		// Only a decision of the ledger is final. Every call waits between its repeats, so this
		// is not a busy loop.
		unreachable, _ := errors.AsType[*client.Error](err)
		if ctx.Err() != nil || unreachable == nil || unreachable.Code != 0 {
			return nil, errors.Join(err, j.journal.Close())
		}
	}
	if err := j.settle(ctx, j.writer.Recovered()); err != nil {
		return nil, errors.Join(err, j.close(ctx))
	}
	return j, nil
}

// post implements poster.
func (j *journaledPoster) post(ctx context.Context, payments []*payment) error {
	var sent []*client.Pending
	for _, p := range payments {
		pending, err := j.writer.SubmitTagged(ctx, p.tag, p.operation())
		if err != nil {
			return err
		}
		sent = append(sent, pending)
	}
	return j.settle(ctx, sent)
}

// settle waits for the outcomes of payments, records them in the book, and only then
// acknowledges them in the journal.
func (j *journaledPoster) settle(ctx context.Context, sent []*client.Pending) error {
	var tags []string
	for _, pending := range sent {
		if _, err := pending.Wait(ctx); err != nil {
			return fmt.Errorf("payment %s: %w", pending.Tag(), err)
		}
		tags = append(tags, pending.Tag())
	}
	if err := j.book.note(tags...); err != nil {
		return err
	}
	for _, pending := range sent {
		if err := pending.Acknowledge(); err != nil {
			return err
		}
	}
	return nil
}

// close implements poster.
func (j *journaledPoster) close(ctx context.Context) error {
	return errors.Join(j.writer.Close(ctx), j.journal.Close())
}
