package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/payments"
	"github.com/seqledger/seqledger/cmd/seqledger/child"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	// plainTimeout is when a plain client takes an answer for lost.
	plainTimeout = 2 * time.Second
	plainPause   = 20 * time.Millisecond
)

// plainPoster pays like a client without idempotency: it repeats what was not answered. Because each
// attempt is a separate write without a key on a new stream, the ledger cannot know that two attempts mean one payment.
type plainPoster struct {
	client *client.Client
	log    *payments.Log
}

func (n *plainPoster) Post(ctx context.Context, due []*payments.Payment) error {
	group, ctx := errgroup.WithContext(ctx)
	paid := make([]payments.Outcome, len(due))
	for i, p := range due {
		// Ends once the payment is acknowledged, or with ctx; Wait waits.
		group.Go(func() error {
			receipt, err := n.sendUntilAnswered(ctx, p)
			paid[i] = payments.Outcome{Tag: p.Tag, TxID: receipt.GetTxId()}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return n.log.Note(paid...)
}

// sendUntilAnswered sends a payment until it is acknowledged.
func (n *plainPoster) sendUntilAnswered(ctx context.Context, p *payments.Payment) (*seqledgerv1.Receipt, error) {
	for {
		receipt, err := n.attempt(ctx, p)
		if err == nil {
			return receipt, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		refused, _ := errors.AsType[*failure.Error](err)
		if !errors.Is(err, failure.ErrOutcomeUnknown) && refused != nil && refused.Code != 0 &&
			refused.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL {
			return nil, err // the ledger would decide the same again
		}
		if !child.Pause(ctx, plainPause) {
			return nil, context.Cause(ctx)
		}
	}
}

// attempt sends a payment once.
func (n *plainPoster) attempt(ctx context.Context, p *payments.Payment) (*seqledgerv1.Receipt, error) {
	ctx, cancel := context.WithTimeout(ctx, plainTimeout)
	defer cancel()
	return n.client.Write(ctx, &seqledgerv1.WriteRequest{
		Scope: scope(), ClientId: "post-" + rand.Text(), Sequence: 1,
		Operations: []*seqledgerv1.Operation{p.Operation()},
	})
}

func (*plainPoster) Close(context.Context) error { return nil }
