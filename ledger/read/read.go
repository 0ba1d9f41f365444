// Package read reads an open ledger: views of its state, chains of blocks, and what is in blocks. A ledger embeds a
// [Reader]; this package has what reads share, and knows neither the log nor the writes.
//
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
//     what is in blocks ([Reader.Blocks]), which never changes and may be on the disk.
//
// As many reads of blocks run at once, for the sake of the processors alone.
package read

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Source is what a Reader reads. The ledger that owns it sets Store and Machine before the first read.
type Source struct {
	Store   *boltstore.Store
	Machine *machine.Machine                // belongs to the store's lock
	Horizon atomic.Pointer[machine.Horizon] // of the last entry that was applied
	// Views and BlockReads bound the Views and the reads of blocks that run at once, by their capacity.
	Views, BlockReads chan struct{}
	PieceTime         time.Duration // see Reader.Pieces

	// Err returns why nothing can be read any more, or nil.
	Err func() error
	// Fresh returns once the state on this node has every write that was acknowledged before the call.
	Fresh func(ctx context.Context) error
	// Failed is given the error of each read. It stops the ledger at damage, because going on could answer from what
	// was never written. It returns the error that the caller gets.
	Failed func(err error) error
}

// Reader has the reads of a ledger. Its methods may be called from many goroutines.
type Reader struct{ source *Source }

// New returns a Reader, and sets the bounds of the source.
func New(s *Source) *Reader {
	s.Views, s.BlockReads = make(chan struct{}, readsAtOnce()), make(chan struct{}, readsAtOnce())
	s.PieceTime = pieceTime
	return &Reader{s}
}

// pieceTime is after how long Pieces lets others have their turn. It ends with the step during
// which the time is up. The clock decides where the pieces are cut, and never what
// is read.
const pieceTime = 200 * time.Microsecond

// readsAtOnce returns how many Views may run at once, and how many reads of blocks.
func readsAtOnce() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// ViewLocal calls read with the state as this node has it, which may lack acknowledged writes. It waits
// for no other node.
func (r *Reader) ViewLocal(read func(v machine.View) error) error {
	return r.source.Failed(r.source.Store.View(func(m machine.Reader) error { return read(r.source.Machine.View(m)) }))
}

// View calls read with a consistent view of the state that is as fresh as
// every write acknowledged before the call. Applying waits while read runs, so
// it must be short: read what is in blocks afterwards. read must not call View.
// ordered are the tables that read goes through in their order: what has changed in
// them is sorted first, while the ledger continues to apply.
func (r *Reader) View(ctx context.Context, read func(v machine.View) error, ordered ...machine.Table) error {
	for _, table := range ordered {
		r.source.Store.Presort(table)
	}
	if err := r.Fresh(ctx); err != nil {
		return err
	}
	return r.StoredView(ctx, read)
}

// StoredView is View of the state as it is here, which may be older than what another
// node has acknowledged.
func (r *Reader) StoredView(ctx context.Context, read func(v machine.View) error) error {
	leave, err := turn(ctx, r.source.Views)
	if err != nil {
		return err
	}
	defer leave()
	err = r.source.Store.View(func(m machine.Reader) error { return read(r.source.Machine.View(m)) })
	return r.source.Failed(err)
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
// with [Reader.Fresh] before it that of every write that was acknowledged; what retention has dropped is a
// *machine.GoneError. Neither waits for the other: blocks are applied while read runs, and read while something is
// applied. It asks no other node, because blocks do not change.
func (r *Reader) Blocks(ctx context.Context, read func(b machine.Blocks) error) error {
	if err := r.source.Err(); err != nil {
		return err
	}
	leave, err := turn(ctx, r.source.BlockReads)
	if err != nil {
		return err
	}
	defer leave()
	horizon := *r.source.Horizon.Load()
	err = r.source.Store.ViewBlocks(func(m machine.Reader) error { return read(machine.NewBlocks(m, horizon)) })
	if errors.Is(err, machine.ErrDropped) { // the horizon has moved meanwhile
		return &machine.GoneError{Horizon: r.source.Horizon.Load().Index()}
	}
	return r.source.Failed(err)
}

// Pieces calls step with what Blocks has again and again until it returns false or an error, and lets
// others have their turn each [pieceTime]. The error is the step's, the storage's or the
// cause of ctx.
func (r *Reader) Pieces(ctx context.Context, step func(b machine.Blocks) (more bool, err error)) error {
	for more := true; more; {
		err := r.Blocks(ctx, func(b machine.Blocks) (err error) {
			began := time.Now()
			for {
				if more, err = step(b); err != nil || !more || time.Since(began) >= r.source.PieceTime {
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

// Stale asks that reads see what this node has, and asks no other one: acknowledged writes may be missing for
// as long as the node is cut off.
type Stale struct {
	// Index is the ledger index up to which the reads see everything, as of the first of them. It is set by that.
	Index uint64
}

// staleKey finds the Stale of a context.
type staleKey struct{}

// WithStale makes reads with the context stale. They are one after another.
func WithStale(ctx context.Context, s *Stale) context.Context {
	return context.WithValue(ctx, staleKey{}, s)
}

// Fresh returns once a read on this node sees every write that was acknowledged before the call, by any node. A node of
// a cluster asks the others whether it is current. With a [Stale] in ctx it does not.
func (r *Reader) Fresh(ctx context.Context) error {
	if err := r.source.Err(); err != nil {
		return err
	}
	if s, ok := ctx.Value(staleKey{}).(*Stale); ok {
		if s.Index > 0 {
			return nil
		}
		return r.StoredView(ctx, func(v machine.View) error {
			s.Index = v.Index()
			return nil
		})
	}
	return r.source.Fresh(ctx)
}
