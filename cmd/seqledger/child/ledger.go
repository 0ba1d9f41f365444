package child

import (
	"context"
	"time"

	"github.com/seqledger/seqledger/client"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Transactions returns the transactions of a scope, in order.
func Transactions(
	ctx context.Context, conn *client.Client, scope *seqledgerv1.Scope,
) (all []*seqledgerv1.Transaction, err error) {
	// Ask for the number of blocks first, because a watch has no end.
	last := uint64(0)
	for block, err := range conn.ListBlocks(ctx, &seqledgerv1.ListBlocksRequest{Scope: scope, PageSize: 1000}) {
		if err != nil {
			return nil, err
		}
		last = block.GetHeader().GetHeight()
	}
	if last == 0 {
		return nil, nil
	}
	for block, err := range conn.Watch(ctx, &seqledgerv1.WatchRequest{Scope: scope}) {
		if err != nil {
			return nil, err
		}
		all = append(all, block.GetTransactions()...)
		if block.GetHeader().GetHeight() == last {
			break
		}
	}
	return all, nil
}

// Pause waits, and returns false if ctx ends first.
func Pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
