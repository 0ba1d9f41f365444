package ledger

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// Nothing is applied while a View lasts, so every read of what changes takes part in how
// long a write waits. Three rules keep that below two milliseconds:
//
//   - A View reads something short: what a request needs of the tables, and of a chain of
//     blocks where it ends. A listing steps over a bounded number of keys that are deleted or due.
//   - Only as many Views run at once as half of the processors can run. The applier
//     waits for all of them, and sixteen that share two processors take eight times as
//     long; the other half is for the writes, which Views hold up by taking processor
//     time, too. Views beyond that wait for their turn, in the order in which they came.
//   - What needs no lock happens after the View: encoding, hashing, sending, and reading
//     what is in blocks ([Ledger.Blocks]), which never changes and may be on the disk.
//
// As many reads of blocks run at once, for the sake of the processors alone.

// pieceTime is after how long Pieces lets others have their turn. It ends with the step during
// which the time is up. The clock decides where the pieces are cut, and never what
// is read.
const pieceTime = 200 * time.Microsecond

// readsAtOnce returns how many Views may run at once, and how many reads of blocks.
func readsAtOnce() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// ViewLocal calls read with the state as this node has it, which may be behind what was acknowledged. It
// waits for no other node.
func (l *Ledger) ViewLocal(read func(v machine.View) error) error {
	return l.readFailed(l.store.View(func(r machine.Reader) error { return read(l.machine.View(r)) }))
}

// View calls read with a consistent view of the state that is as fresh as
// every write acknowledged before the call. Applying waits while read runs, so
// it must be short: read what is in blocks afterwards. read must not call View.
// ordered are the tables that read goes through in their order: what has changed in
// them is sorted first, while the ledger goes on applying.
func (l *Ledger) View(ctx context.Context, read func(v machine.View) error, ordered ...machine.Table) error {
	for _, table := range ordered {
		l.store.Presort(table)
	}
	if err := l.Fresh(ctx); err != nil {
		return err
	}
	return l.view(ctx, read)
}

// view is View of the state as it is here, which may be older than what another
// node has acknowledged.
func (l *Ledger) view(ctx context.Context, read func(v machine.View) error) error {
	leave, err := turn(ctx, l.views)
	if err != nil {
		return err
	}
	defer leave()
	err = l.store.View(func(r machine.Reader) error { return read(l.machine.View(r)) })
	return l.readFailed(err)
}

// turn takes one of the places of a channel until leave is called.
func turn(ctx context.Context, places chan struct{}) (leave func(), err error) {
	select {
	case places <- struct{}{}:
	default:
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return func() { <-places }, nil
}

// Blocks calls read with the blocks that this node has, among them all that a View or Chain before it has found, and
// with [Ledger.Fresh] before it that of every write that was acknowledged; what retention has dropped is a
// *machine.GoneError. Neither waits for the other: blocks are applied while read runs, and read while something is
// applied. It asks no other node, because blocks do not change.
func (l *Ledger) Blocks(ctx context.Context, read func(b machine.Blocks) error) error {
	if err := l.Err(); err != nil {
		return err
	}
	leave, err := turn(ctx, l.blockReads)
	if err != nil {
		return err
	}
	defer leave()
	horizon := *l.horizon.Load()
	err = l.store.ViewBlocks(func(r machine.Reader) error { return read(machine.NewBlocks(r, horizon)) })
	if errors.Is(err, machine.ErrDropped) { // the horizon has moved meanwhile
		return &machine.GoneError{Horizon: l.horizon.Load().Index()}
	}
	return l.readFailed(err)
}

// Pieces calls step with what Blocks has again and again until it returns false or an error, and lets
// others have their turn each [pieceTime]. The error is the step's, the storage's or the
// cause of ctx.
func (l *Ledger) Pieces(ctx context.Context, step func(b machine.Blocks) (more bool, err error)) error {
	for more := true; more; {
		err := l.Blocks(ctx, func(b machine.Blocks) (err error) {
			began := time.Now()
			for {
				if more, err = step(b); err != nil || !more || time.Since(began) >= l.pieceTime {
					return err
				}
			}
		})
		if err != nil {
			return err
		}
		if more && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// A piece is over long before the scheduler would preempt the reader.
		runtime.Gosched()
	}
	return nil
}

// Chain returns the chain of blocks of a scope, with those of every write that was
// acknowledged before the call.
func (l *Ledger) Chain(ctx context.Context, scope machine.Scope) (c *machine.Chain, err error) {
	err = l.View(ctx, func(v machine.View) (err error) {
		c, err = v.Chain(scope)
		return err
	})
	return c, err
}

// StoredChain is Chain as this node has it, and asks no other one: the end may be missing.
func (l *Ledger) StoredChain(ctx context.Context, scope machine.Scope) (c *machine.Chain, err error) {
	if err := l.Err(); err != nil {
		return nil, err
	}
	err = l.view(ctx, func(v machine.View) (err error) {
		c, err = v.Chain(scope)
		return err
	})
	return c, err
}

// partBytes is how many bytes of transactions one step reads, at least one
// transaction.
const partBytes = 64 << 10

// VisitBlock calls visit for the transactions of a block from a position on, in
// order, until visit returns false. The block is read in parts and visit is called
// between them, so that a reader of a large block holds no more of it than it
// keeps. The header is that of the block, also when nothing is visited. The error
// is ErrNotFound of package machine where there is no such block.
func (l *Ledger) VisitBlock(
	ctx context.Context, chain *machine.Chain, height uint64, from uint32, visit func(machine.Transaction) bool,
) (header machine.BlockHeader, err error) {
	for {
		var part machine.BlockPart
		err := l.Blocks(ctx, func(b machine.Blocks) (err error) {
			part, err = b.BlockPart(chain, height, from, partBytes)
			return err
		})
		if err != nil {
			return header, err
		}
		runtime.Gosched() // as in Pieces
		header = part.Header
		for i := range part.Transactions {
			if !visit(part.Transactions[i]) {
				return header, nil
			}
		}
		if from = part.Next; from >= header.TxCount {
			return header, nil
		}
	}
}

// BlockTree returns the Merkle tree of a block, which makes the proofs of its
// transactions.
func (l *Ledger) BlockTree(ctx context.Context, chain *machine.Chain, height uint64) (*machine.BlockTree, error) {
	var header machine.BlockHeader
	var leaves []machine.Hash
	err := l.Pieces(ctx, func(b machine.Blocks) (bool, error) {
		h, some, err := b.LeafHashes(chain, height, uint32(len(leaves)), partBytes)
		header, leaves = h, append(leaves, some...)
		return len(leaves) < int(h.TxCount), err
	})
	if err != nil {
		return nil, err
	}
	tree, err := machine.NewBlockTree(header, leaves)
	return tree, l.readFailed(err)
}

// readFailed stops the ledger when a read found damage: going on could answer
// from what was never written.
func (l *Ledger) readFailed(err error) error {
	if errors.Is(err, boltstore.ErrClosed) {
		return ErrClosed
	}
	if err != nil && (errors.Is(err, machine.ErrCorrupt) || l.store.Err() != nil) {
		l.fail(err)
	}
	return err
}

// StaleRead asks that reads see what this node has, and asks no other one: it may be behind what was acknowledged, for
// as long as the node is cut off.
type StaleRead struct {
	// Index is the ledger index up to which the reads see everything, as of the first of them. It is set by that.
	Index uint64
}

// staleReadKey finds the StaleRead of a context.
type staleReadKey struct{}

// WithStaleRead makes reads with the context stale. They are one after another.
func WithStaleRead(ctx context.Context, s *StaleRead) context.Context {
	return context.WithValue(ctx, staleReadKey{}, s)
}

// Fresh returns once a read on this node sees every write that was acknowledged before the call, by any node. A node of
// a cluster asks the others whether it is current, and returns a *NotLeaderError if it has no answer in 40 intervals of
// Cluster.Tick, because it may be cut off from them while its callers can reach another. With a [StaleRead] in ctx it
// does not ask.
func (l *Ledger) Fresh(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	if s, ok := ctx.Value(staleReadKey{}).(*StaleRead); ok {
		if s.Index > 0 {
			return nil
		}
		return l.view(ctx, func(v machine.View) error {
			s.Index = v.Index()
			return nil
		})
	}
	err := l.readBarrier(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftlog.ErrNotLeader):
		return l.notLeading()
	case errors.Is(err, raftlog.ErrClosed):
		return ErrClosed
	}
	return fmt.Errorf("read: %w", err)
}

// readTicks is how many intervals of Cluster.Tick a read waits for an answer of the others: longer than they take to
// elect a leader, so that a read survives that.
const readTicks = 40

// readBarrier is raftlog.Log.ReadBarrier, but a node that has others gives up when they do not answer. A leader goes on
// asking: it leads no more when it is cut off.
func (l *Ledger) readBarrier(ctx context.Context) error {
	if l.log.ReadsAlone() || l.options.Cluster == nil {
		return l.log.ReadBarrier(ctx)
	}
	l.counters.readChecks.Add(1)
	for {
		limited, cancel := context.WithTimeout(ctx, readTicks*l.options.Cluster.tick())
		err := l.log.ReadBarrier(limited)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		if leader, _ := l.Leader(); !leader.Self {
			return l.notLeading()
		}
	}
}

// headView is the head of the state by itself.
type headView struct {
	Created bool
	Level   uint64
	Config  machine.Config
}

func (l *Ledger) head() (h headView, err error) {
	err = l.store.View(func(r machine.Reader) error {
		v := l.machine.View(r)
		h = headView{v.Created(), v.Level(), v.Config()}
		return nil
	})
	return h, err
}
