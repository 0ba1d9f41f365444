package demo

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/payments"
	"github.com/seqledger/seqledger/cmd/seqledger/child"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	// pace is the least time between two batches. It keeps the two sides comparable and the
	// load low, because this is not a benchmark.
	pace = 25 * time.Millisecond
)

// PayerOptions configure a client process. All but Plain are required.
type PayerOptions struct {
	// Server is the host:port of the proxy, which the client takes for the ledger.
	Server string
	// Dir has the client's payment log and journal, also from earlier processes.
	Dir string
	// Name is the client's id; no other client of the ledger has it.
	Name string
	// Seed decides the amounts.
	Seed uint64
	// Plain repeats unanswered requests as new writes. Otherwise a Writer with a journal pays.
	Plain bool
}

// poster sends payments that are in the payment log, and returns once each is acknowledged and
// recorded as paid.
type poster interface {
	Post(ctx context.Context, due []*payments.Payment) error
	Close(ctx context.Context) error
}

// payer is a client process.
type payer struct {
	options PayerOptions
	log     *payments.Log
	client  *client.Client
	poster  poster
}

// errUnsettled is the error of a client that could not settle its payments in time.
var errUnsettled = errors.New("payments are still not settled after " + finishTimeout.String())

// Pay runs a client process. It first settles what an earlier process has left. It then pays
// until stop is closed, and until everything that it intended is acknowledged, at most 30
// seconds longer, because the ledger may not come back. It returns early when ctx ends or the
// ledger refuses it.
func Pay(ctx context.Context, stop <-chan struct{}, o PayerOptions) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var limit sync.WaitGroup
	// Ended by cancel; joined after it.
	limit.Go(func() {
		select {
		case <-stop:
			if child.Pause(ctx, finishTimeout) {
				cancel(errUnsettled)
			}
		case <-ctx.Done():
		}
	})
	defer limit.Wait()
	defer cancel(nil)
	p := &payer{options: o}
	if p.log, err = payments.OpenLog(filepath.Join(o.Dir, logName), false); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.log.Close()) }()
	attempts := 0
	if o.Plain {
		attempts = 1 // it does its own repeats
	}
	if p.client, err = client.New(client.Options{Server: o.Server, MaxAttempts: attempts}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.client.Close()) }()
	if o.Plain {
		p.poster = &plainPoster{client: p.client, log: p.log}
	} else {
		p.poster, err = payments.Open(ctx, payments.Options{
			Client: p.client, Dir: o.Dir, Scope: scope(), ClientID: o.Name, Log: p.log,
		})
		if err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, p.poster.Close(ctx)) }()
	return p.pay(ctx, stop)
}

// logName is the file name of a client's payment log.
const logName = "payments"

// scope is where the payments go.
func scope() *seqledgerv1.Scope {
	return &seqledgerv1.Scope{Organization: "demo", Vault: "payments"}
}

// pay posts batch after batch.
func (p *payer) pay(ctx context.Context, stop <-chan struct{}) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	// First the payments that an earlier process intended and did not record as paid.
	due := p.log.Unpaid()
	for {
		for len(due) > 0 {
			n := min(payments.Batch, len(due))
			if err := p.poster.Post(ctx, due[:n]); err != nil {
				return err
			}
			due = due[n:]
		}
		select {
		case <-tick.C:
		case <-stop:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		due = p.next()
		if err := p.log.Intend(due...); err != nil {
			return err
		}
	}
}

// next makes up a batch of payments. A payment's amount follows from the seed and its number
// alone.
func (p *payer) next() []*payments.Payment {
	due := make([]*payments.Payment, payments.Batch)
	for i := range due {
		number := uint64(len(p.log.Payments()) + i + 1)
		random := rand.New(rand.NewPCG(p.options.Seed, number))
		due[i] = &payments.Payment{Tag: fmt.Sprintf("%s/%d", p.options.Name, number), Cents: 1 + random.Int64N(10_000)}
	}
	return due
}

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
		Scope: scope(), ClientId: "post-" + cryptorand.Text(), Sequence: 1,
		Operations: []*seqledgerv1.Operation{p.Operation()},
	})
}

func (*plainPoster) Close(context.Context) error { return nil }
