package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	"github.com/seqledger/seqledger/client"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	// batch is how many payments a client has under way at once.
	batch = 8
	// pace is the least time between two batches. It keeps the two columns comparable and the
	// load low: this is not a benchmark.
	pace = 25 * time.Millisecond
)

// PayerOptions configure a client process. All but Plain are required.
type PayerOptions struct {
	// Server is the host:port of the proxy, which the client takes for the ledger.
	Server string
	// Dir has the client's book and journal, also from earlier processes.
	Dir string
	// Name is the client's id; no other client of the ledger has it.
	Name string
	// Seed decides the amounts.
	Seed uint64
	// Plain repeats unanswered requests as new writes. Otherwise a Writer with a journal pays.
	Plain bool
}

// poster sends payments that are in the book and returns once each is acknowledged and recorded
// as paid.
type poster interface {
	post(ctx context.Context, payments []*payment) error
	close(ctx context.Context) error
}

// payer is a client process.
type payer struct {
	options PayerOptions
	book    *book
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
	// Ended by cancel; waited for behind it.
	limit.Go(func() {
		select {
		case <-stop:
			if pause(ctx, finishTimeout) {
				cancel(errUnsettled)
			}
		case <-ctx.Done():
		}
	})
	defer limit.Wait()
	defer cancel(nil)
	p := &payer{options: o}
	if p.book, err = openBook(filepath.Join(o.Dir, bookName)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.book.close()) }()
	attempts := 0
	if o.Plain {
		attempts = 1 // it does its own repeats
	}
	if p.client, err = client.New(client.Options{Server: o.Server, MaxAttempts: attempts}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.client.Close()) }()
	if o.Plain {
		p.poster = &plainPoster{client: p.client, book: p.book}
	} else if p.poster, err = openJournaled(ctx, p); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.poster.close(ctx)) }()
	return p.pay(ctx, stop)
}

// bookName is the file name of a client's book.
const bookName = "book"

// scope is where the payments go.
func scope() *seqledgerv1.Scope {
	return &seqledgerv1.Scope{Organization: "demo", Vault: "payments"}
}

// pay posts batch after batch.
func (p *payer) pay(ctx context.Context, stop <-chan struct{}) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	// First the payments that an earlier process intended and did not record as paid.
	due := p.book.unpaid()
	for {
		for len(due) > 0 {
			n := min(batch, len(due))
			if err := p.poster.post(ctx, due[:n]); err != nil {
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
		if err := p.book.intend(due); err != nil {
			return err
		}
	}
}

// next makes up a batch of payments. A payment's amount follows from the seed and its number
// alone.
func (p *payer) next() []*payment {
	payments := make([]*payment, batch)
	for i := range payments {
		number := uint64(len(p.book.payments) + i + 1)
		random := rand.New(rand.NewPCG(p.options.Seed, number))
		payments[i] = &payment{tag: fmt.Sprintf("%s/%d", p.options.Name, number), cents: 1 + random.Int64N(10_000)}
	}
	return payments
}
