package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/client"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	// plainTimeout is when a plain client takes an answer for lost.
	plainTimeout = 2 * time.Second
	plainPause   = 20 * time.Millisecond
)

// plainPoster pays like a client without idempotency: it repeats what was not answered. Each
// attempt is a write of its own, without a key and on a new stream, so the ledger cannot know
// that two attempts mean one payment.
type plainPoster struct {
	client *client.Client
	book   *book
}

// post implements poster.
func (n *plainPoster) post(ctx context.Context, payments []*payment) error {
	group, ctx := errgroup.WithContext(ctx)
	tags := make([]string, len(payments))
	for i, p := range payments {
		tags[i] = p.tag
		// Ends once the payment is acknowledged, or with ctx; Wait waits.
		group.Go(func() error { return n.insist(ctx, p) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return n.book.note(tags...)
}

// insist sends a payment until it is acknowledged.
func (n *plainPoster) insist(ctx context.Context, p *payment) error {
	for {
		err := n.attempt(ctx, p)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		refused, _ := errors.AsType[*client.Error](err)
		if !errors.Is(err, client.ErrOutcomeUnknown) && refused != nil && refused.Code != 0 &&
			refused.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL {
			return err // the ledger would decide the same again
		}
		if !pause(ctx, plainPause) {
			return context.Cause(ctx)
		}
	}
}

// attempt sends a payment once.
func (n *plainPoster) attempt(ctx context.Context, p *payment) error {
	ctx, cancel := context.WithTimeout(ctx, plainTimeout)
	defer cancel()
	_, err := n.client.Write(ctx, &seqledgerv1.WriteRequest{
		Scope: scope(), ClientId: "post-" + rand.Text(), Sequence: 1,
		Operations: []*seqledgerv1.Operation{p.operation()},
	})
	return err
}

// close implements poster.
func (*plainPoster) close(context.Context) error { return nil }
