package ledger

import (
	"fmt"
	"time"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// applier is the ledger as the log sees it. It keeps the log's methods out of
// the ledger's own.
type applier Ledger

// Apply decides the commands of a committed entry. It returns their outcomes,
// or nil when the checkpoint has the entry already or the storage has failed.
func (a *applier) Apply(at raftlog.Position, entry []byte) any {
	l := (*Ledger)(a)
	if at.Index <= l.store.Applied().Index || l.Err() != nil {
		return nil
	}
	if l.options.ObserveApply != nil {
		defer l.options.ObserveApply()()
	}
	began := time.Now()
	var outcomes []machine.Outcome
	var most int // commands of an entry
	err := l.store.Update(boltstore.Position{Index: at.Index, Term: at.Term}, func(tx machine.Tx) (err error) {
		outcomes, err = l.machine.Apply(tx, entry)
		if err == nil {
			// Under the lock, because the next entry reuses what it looks at.
			l.watchers.wake(l.machine.CommittedScopes)
			l.keys.wake(l.machine.ChangedKeys)
			l.keyedCounters.applied(l.machine.KeyedChanges)
			before := l.Head().Time
			l.setHead(l.machine.View(tx))
			l.clock.learn(l.Head().Time, began, l.Head().Time < before)
			if l.options.Cluster != nil {
				l.cluster.AddDigest(at.Index, l.machine.Check())
			}
			l.setHorizon(l.machine.View(tx).Horizon())
			most = engine.EntryCommands(l.machine.View(tx).Config())
			l.counters.setEvictions(l.machine.Evictions())
		}
		return err
	})
	if err != nil {
		l.fail(fmt.Errorf("apply log entry at %s: %w", at, err))
		return nil
	}
	took := time.Since(began)
	l.counters.applied.Observe(int64(took))
	l.mu.Lock()
	l.engine.Applied(took, most, l.gathered())
	l.changed()
	l.mu.Unlock()
	l.count(outcomes, len(entry))
	l.probes.decided(outcomes)
	return outcomes
}

func (l *Ledger) count(outcomes []machine.Outcome, size int) {
	l.counters.entries.Add(1)
	l.counters.logBytes.Add(uint64(size))
	l.counters.commands.Add(uint64(len(outcomes)))
	l.counters.batches.Observe(int64(len(outcomes)))
	for i := range outcomes {
		l.counters.decisions[outcomes[i].Code].Add(1)
	}
}
