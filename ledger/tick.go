package ledger

import (
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

// tickLoop moves ledger time while clients are silent, if a stream or an entity
// is due. Without it an idle ledger would expire nothing, because ledger time moves with
// commands alone.
func (l *Ledger) tickLoop() {
	timer := time.NewTicker(l.options.idleInterval)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			l.tick()
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
	}
}

// leaseInterval is how long ledger time stands still at most while a key is
// reserved. A longer pause would count as an outage and prolong the lease.
const leaseInterval = keyed.OutagePause / 2

// presenceInterval is how long ledger time stands still at most while the ledger runs
// and nothing is to be done. A start takes a clock that is engine.MaxPause ahead of
// ledger time for wrong, and must not refuse one after a month of silence.
const presenceInterval = 24 * time.Hour

// tick proposes as many ticks as are missing to the next eviction pass, if the
// ledger is idle and something is due, or one if it is time for one. An error
// needs no answer, because either the ledger stops, or the next tick tries again.
func (l *Ledger) tick() {
	idle := time.Duration(l.clock.now() - l.lastProposed.Load())
	if idle < l.options.idleInterval || l.cluster.Term() == 0 {
		return
	}
	for missing := l.dueTicks(idle); missing > 0; {
		n := min(missing, l.mostCommands())
		s := newSubmission(false)
		for range n {
			s.engine.Add(engine.Origin{}, machine.AppendTick(nil), 1)
		}
		if err := l.enqueue(l.stopping, s, false, false); err != nil {
			return
		}
		if _, err := s.Wait(l.stopping); err != nil {
			return
		}
		missing -= n
	}
}

// mostCommands returns how many commands an entry may have.
func (l *Ledger) mostCommands() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(l.engine.MostCommands())
}

// dueTicks returns how many ticks should be proposed: those that are missing to
// the next eviction pass if something is due, one if nothing has been proposed for
// presenceInterval, or for leaseInterval while keys are reserved, else 0.
func (l *Ledger) dueTicks(idle time.Duration) (missing int64) {
	now := l.clock.now()
	err := l.View(l.stopping, func(v machine.View) error {
		due, err := v.Due(now)
		switch {
		case err == nil && due:
			missing = int64(v.CommandsToPass())
		case idle >= presenceInterval, v.PendingKeys() > 0 && idle >= leaseInterval:
			missing = 1
		}
		return err
	}, machine.TableExpiry)
	if err != nil {
		return 0
	}
	return missing
}
