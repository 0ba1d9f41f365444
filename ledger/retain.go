package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
)

// The state's horizon says what is gone (see machine.Horizon). Each node removes the files on its own schedule,
// beside the commit path:
//
//  1. A checkpoint, so that the horizon is durable: a replay reads what comes after the horizon that it begins
//     with.
//  2. Values that are alive in the files are carried into the state file, and a checkpoint makes them durable.
//  3. The state file records where the block files begin, and then the files before it are removed.
//
// A crash before step 3 leaves everything as it was, except that some values are stored twice; one after it leaves
// files that the next start removes.

// dropShare keeps the search for values that are alive, which goes through all entities, from costing more
// than what is dropped: files are dropped once they have this share of all bytes of blocks.
const dropShare = 16

// retainLoop removes files before the horizon, and copies sealed ones to the archive.
func (l *Ledger) retainLoop() {
	defer l.loops.Done()
	timer := time.NewTicker(l.options.retainInterval)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-l.retainDue:
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
		err := l.dropHistory(l.stopping)
		switch {
		case errors.Is(err, boltstore.ErrClosed), l.stopping.Err() != nil:
			return
		case err != nil:
			l.fail(err)
			return
		}
	}
}

// setHorizon notes where the history begins, for readers of blocks.
func (l *Ledger) setHorizon(h machine.Horizon) {
	if now := l.source.Horizon.Load(); now == nil || !now.Equal(h) {
		changed := h // a copy, so that only a change allocates
		l.source.Horizon.Store(&changed)
		signal(l.retainDue)
		signal(l.archiveDue)
	}
}

// dropHistory removes the block files before the horizon once they are worth it.
func (l *Ledger) dropHistory(ctx context.Context) error {
	l.dropping.Lock()
	defer l.dropping.Unlock()
	files := l.store.Droppable(l.source.Horizon.Load().Index())
	numbers := make([]uint64, len(files))
	for i := range files {
		numbers[i] = files[i].Number
	}
	files = files[:l.confirmed(numbers)]
	var bytes int64
	for _, f := range files {
		bytes += f.Size
	}
	if len(files) == 0 || bytes*dropShare < l.store.BlockBytes() {
		return nil
	}
	if len(l.backups) > 0 {
		return nil // it reads the files
	}
	began := time.Now()
	l.step("the horizon is to be made durable")
	if err := l.flush(); err != nil {
		return err
	}
	l.step("values are to be carried")
	upTo := files[len(files)-1].Last
	carried, err := l.carryValues(ctx, upTo)
	if err != nil {
		return err
	}
	l.step("carried values are to be made durable")
	if err := l.flush(); err != nil {
		return err
	}
	l.step("files are to be removed")
	select {
	case l.blockFiles <- struct{}{}:
	default:
		return nil // a backup has begun; the next time finds the values carried
	}
	dropped, err := l.store.DropBlocks(upTo + 1)
	<-l.blockFiles
	if err != nil {
		return err
	}
	l.step("files are removed")
	l.counters.droppedFiles.Add(uint64(len(files)))
	l.counters.droppedBytes.Add(uint64(dropped))
	l.counters.carried.Add(uint64(carried))
	l.options.Logger.Info("history before the horizon is dropped", "up to ledger index", upTo, "files", len(files),
		"bytes", dropped, "values carried", carried, "took", time.Since(began))
	return l.removeUnused(ctx)
}

// step tells a test how far dropHistory is.
func (l *Ledger) step(name string) {
	if l.retainHook != nil {
		l.retainHook(name)
	}
}

// carryValues carries the values that are alive in blocks up to a ledger index, and returns how many.
func (l *Ledger) carryValues(ctx context.Context, upTo uint64) (carried int, err error) {
	for from, more := []byte(nil), true; more; more = from != nil {
		if ctx.Err() != nil {
			return carried, context.Cause(ctx)
		}
		var live []machine.LiveValue
		l.store.Presort(machine.TableEntities)
		err := l.StoredView(ctx, func(v machine.View) (err error) {
			live, from, err = v.FindLive(from, upTo)
			return err
		})
		if err != nil {
			return carried, err
		}
		if len(live) == 0 {
			continue
		}
		if err := l.store.Amend(func(tx machine.Tx) error { return machine.Carry(tx, live) }); err != nil {
			return carried, err
		}
		carried += len(live)
		l.step("some values are carried")
		if err := l.flushIfDue(); err != nil {
			return carried, err
		}
	}
	return carried, nil
}

// removeUnused removes carried values that no entity leads to any more.
func (l *Ledger) removeUnused(ctx context.Context) error {
	for from, more := []byte(nil), true; more; more = from != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var unused [][]byte
		l.store.Presort(machine.TableCarried)
		err := l.StoredView(ctx, func(v machine.View) (err error) {
			unused, from, err = v.FindUnused(from)
			return err
		})
		if err != nil {
			return err
		}
		if len(unused) == 0 {
			continue
		}
		if err := l.store.Amend(func(tx machine.Tx) error { return machine.DropCarried(tx, unused) }); err != nil {
			return err
		}
		l.step("some carried values are removed")
		if err := l.flushIfDue(); err != nil {
			return err
		}
	}
	return nil
}

// flushIfDue bounds what gathers in memory without a log entry.
func (l *Ledger) flushIfDue() error {
	if !l.flushIsDue() {
		return nil
	}
	return l.flush()
}
