package ledger

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/maypok86/otter/v2"

	"github.com/seqledger/seqledger/ledger/machine"
)

// cache spares a retry that comes again the search for its receipt in the
// blocks. It is a pure accelerator: whether a write is a retry at all is read
// from the stream's record, in a view that is as fresh as every
// acknowledgement, and only then is the cache asked. So nothing ever has to be
// invalidated, and with the cache off every answer is the same.
//
// It is filled by retries and not by writes: filling it with every write cost
// 15 % of the engine's processor time in a profile and pushed out the receipts that somebody
// asks for.
type cache struct {
	entries *otter.Cache[cacheKey, *machine.Receipt] // nil: off
	evicted atomic.Uint64                            // entries pushed out by others
}

// cacheKey names a receipt for ever: a creation index is never used twice.
type cacheKey struct{ createdIndex, sequence uint64 }

// weight is about how many bytes an entry takes.
func weight(_ cacheKey, r *machine.Receipt) uint32 {
	const fixed = 320 // key, receipt, and the cache's own node
	return uint32(fixed + len(r.Actor) + 8*len(r.Versions))
}

func newCache(bytes int64) *cache {
	if bytes < 0 {
		return &cache{}
	}
	c := new(cache)
	c.entries = otter.Must(&otter.Options[cacheKey, *machine.Receipt]{
		MaximumWeight: uint64(bytes),
		Weigher:       weight,
		// In the caller's goroutine, so that there is none to look after.
		Executor: func(fn func()) { fn() },
		OnAtomicDeletion: func(e otter.DeletionEvent[cacheKey, *machine.Receipt]) {
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

func (c *cache) get(k cacheKey) *machine.Receipt {
	if c.entries == nil {
		return nil
	}
	r, _ := c.entries.GetIfPresent(k)
	return r
}

func (c *cache) put(k cacheKey, r *machine.Receipt) {
	if c.entries != nil {
		c.entries.Set(k, r)
	}
}

// retryBuffer is scratch space for looking whether a write is a retry.
type retryBuffer struct {
	streamKey  []byte
	operations []byte
}

var retryBuffers = sync.Pool{New: func() any { return new(retryBuffer) }}

// answerRetry answers a write without the log, if it is a retry that the log
// would answer with its first receipt (rule 4). All else is for the log to
// decide, and so is a retry that meets the applier at work: going through the
// log is always right, and waiting here would hold up every new write.
func (l *Ledger) answerRetry(ctx context.Context, w *machine.Write) (out machine.Outcome, ok bool, err error) {
	if err := l.fresh(ctx); err != nil {
		if _, elsewhere := errors.AsType[*NotLeaderError](err); !elsewhere && !errors.Is(err, ErrClosed) {
			err = unknown(err) // an earlier copy of the write may be committed
		}
		return out, false, err
	}
	buffer := retryBuffers.Get().(*retryBuffer) //nolint:forcetypeassert // The pool holds nothing else.
	defer retryBuffers.Put(buffer)
	var receipt *machine.Receipt
	_, err = l.store.TryView(func(r machine.Reader) (err error) {
		v := l.machine.View(r)
		key := cacheKey{sequence: w.Sequence}
		buffer.streamKey, key.createdIndex, ok, err = v.InWindow(buffer.streamKey, w)
		if !ok || err != nil {
			return err
		}
		receipt, err = l.receipt(v, key, w, buffer)
		return err
	})
	if err != nil {
		// Nothing was proposed, but a write that is repeated may be committed.
		return out, false, unknown(l.readFailed(err))
	}
	if receipt == nil {
		return out, false, nil
	}
	out = machine.Outcome{Code: machine.Replayed, CommittedSequence: w.Sequence, Receipt: *receipt}
	return out, true, nil
}

// receipt finds the receipt that answers a write in the window, or nil when
// the write is not what was committed.
func (l *Ledger) receipt(v machine.View, key cacheKey, w *machine.Write, b *retryBuffer) (*machine.Receipt, error) {
	var hash machine.RequestHash
	hash, b.operations = machine.HashOperations(b.operations, w.Operations)
	if cached := l.cache.get(key); cached != nil {
		l.counters.hits.Add(1)
		if !cached.Answers(w.Key, hash) {
			return nil, nil
		}
		return cached, nil
	}
	l.counters.misses.Add(1)
	found, ok, err := v.Replay(w, hash)
	if err != nil || !ok {
		return nil, err
	}
	l.cache.put(key, &found)
	return &found, nil
}
