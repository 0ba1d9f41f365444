package ledger

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/maypok86/otter/v2"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

// cache holds receipts already served to retries, because reading one from its block
// again costs more. It is a pure accelerator: whether a write is a retry at all is read
// from the stream's record, in a view that is as fresh as every
// acknowledgement, and only then is the cache asked. So nothing ever has to be
// invalidated, and with the cache off every answer is the same.
//
// It is filled by retries and not by writes: filling it with every write cost
// 15 % of the engine's processor time in a profile and pushed out the receipts
// that retries ask for.
type cache struct {
	entries      *otter.Cache[engine.ReceiptName, *machine.Receipt] // nil: off
	evicted      atomic.Uint64                                      // entries pushed out by others
	hits, misses atomic.Uint64
}

// weight is about how many bytes an entry takes.
func weight(_ engine.ReceiptName, r *machine.Receipt) uint32 {
	const fixed = 320 // key, receipt, and the cache's own node
	return uint32(fixed + len(r.Actor) + 8*len(r.Versions))
}

func newCache(bytes int64) *cache {
	if bytes < 0 {
		return &cache{}
	}
	c := new(cache)
	c.entries = otter.Must(&otter.Options[engine.ReceiptName, *machine.Receipt]{
		MaximumWeight: uint64(bytes),
		Weigher:       weight,
		// In the caller's goroutine, so that there is none to look after.
		Executor: func(fn func()) { fn() },
		OnAtomicDeletion: func(e otter.DeletionEvent[engine.ReceiptName, *machine.Receipt]) {
			if e.WasEvicted() {
				c.evicted.Add(1)
			}
		},
	})
	return c
}

// size returns about how many entries there are and how many bytes they take.
func (c *cache) size() (entries int, bytes uint64) {
	if c.entries == nil {
		return 0, 0
	}
	return c.entries.EstimatedSize(), c.entries.WeightedSize()
}

// Get implements engine.Receipts.
func (c *cache) Get(name engine.ReceiptName) *machine.Receipt {
	if c.entries != nil {
		if r, ok := c.entries.GetIfPresent(name); ok {
			c.hits.Add(1)
			return r
		}
	}
	c.misses.Add(1)
	return nil
}

// Put implements engine.Receipts.
func (c *cache) Put(name engine.ReceiptName, r *machine.Receipt) {
	if c.entries != nil {
		c.entries.Set(name, r)
	}
}

// retryGroup is how many writes are looked at in one view of the state, because opening
// one for each would take longer than the look, and many would hold up the
// applier.
const retryGroup = 32

// answerRetries sets the receipts of those of at most retryGroup commands that are
// retries which the log would answer with their first receipts (rule 4), without the
// log. All else is for the log to decide and gets nil, and so is a retry that meets the
// applier at work, because going through the log is always right, and waiting here would
// hold up every new write. There is a receipt for each command.
func (l *Ledger) answerRetries(
	ctx context.Context, commands []machine.Command, receipts []*machine.Receipt, buffer *engine.Buffer,
) error {
	// Among several nodes, a leader asks the others whether it still is one, which takes a new write longer than all
	// else in front of the log. What is not in the state as it is here needs no such question: the log decides it.
	if !l.log.ReadsAlone() {
		if err := l.Err(); err != nil {
			return unknown(err)
		}
		if found, err := l.findRetries(commands, receipts, buffer); err != nil || !found {
			return err
		}
	}
	if err := l.Fresh(ctx); err != nil {
		if _, elsewhere := errors.AsType[*cluster.NotLeaderError](err); !elsewhere && !errors.Is(err, ErrClosed) {
			err = unknown(err) // an earlier copy of a write may be committed
		}
		return err
	}
	_, err := l.findRetries(commands, receipts, buffer)
	return err
}

// findRetries is answerRetries with the state as it is on this node, and reports whether there is a receipt.
func (l *Ledger) findRetries(
	commands []machine.Command, receipts []*machine.Receipt, buffer *engine.Buffer,
) (found bool, err error) {
	clear(receipts)
	if l.leavesToLog() {
		return false, nil
	}
	looked := false
	err = l.store.TryView(func(r machine.Reader) (err error) {
		looked = true
		view := l.machine.View(r)
		for i := range commands {
			if receipts[i], err = engine.Retry(view, &commands[i], l.cache, buffer); err != nil {
				return err
			}
			found = found || receipts[i] != nil
		}
		return nil
	})
	if errors.Is(err, boltstore.ErrClosed) && l.draining.Load() {
		return false, ErrDraining // as refusal would say, after Close
	}
	if err != nil {
		// Nothing was proposed, but a write that is repeated may be committed.
		return false, unknown(l.readFailed(err))
	}
	if looked {
		l.probes.probed(found)
	}
	return found, nil
}

// Repeated returns the outcomes of the writes that repeat a committed one whose receipt
// is known; the others have the Code 0. It writes nothing, so a server that takes no
// writes can still answer a client that repeats one.
func (l *Ledger) Repeated(ctx context.Context, commands []machine.Command) ([]machine.Outcome, error) {
	outcomes := make([]machine.Outcome, len(commands))
	buffer := new(engine.Buffer)
	for from := 0; from < len(commands); from += retryGroup {
		group := commands[from:min(from+retryGroup, len(commands))]
		err := l.View(ctx, func(v machine.View) error {
			for i := range group {
				receipt, err := engine.Retry(v, &group[i], l.cache, buffer)
				if err != nil {
					return err
				}
				if receipt != nil {
					outcomes[from+i] = replayed(&group[i], receipt)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return outcomes, nil
}

// replayed is the outcome of a write that its first receipt answers.
func replayed(c *machine.Command, receipt *machine.Receipt) machine.Outcome {
	return machine.Outcome{Code: machine.Replayed, CommittedSequence: c.Write().Sequence, Receipt: *receipt}
}
