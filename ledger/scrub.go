package ledger

import (
	"errors"
	"time"

	"github.com/seqledger/seqledger/ledger/boltstore"
)

// scrubStep is how many bytes of the state file are read at once. A checkpoint that comes
// meanwhile waits for them.
const scrubStep = 256 << 10

// scrubLoop compares the pages of the state file with their checksums, round and round, at
// a bounded rate. A difference stops the node. It reads what the system has in its cache from there,
// and the rest from the disk.
func (l *Ledger) scrubLoop() {
	defer l.loops.Done()
	if l.options.ScrubBytes < 0 || l.store.ScrubPages() == 0 {
		return
	}
	pause := time.Duration(float64(time.Second) * scrubStep / float64(l.options.ScrubBytes))
	timer := time.NewTimer(pause)
	defer timer.Stop()
	next, began := uint64(0), time.Now()
	for {
		select {
		case <-timer.C:
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
		var compared int
		var err error
		next, compared, err = l.store.Scrub(next, scrubStep/l.store.PageSize())
		switch {
		case errors.Is(err, boltstore.ErrClosed):
			return
		case err != nil:
			l.fail(err)
			return
		}
		l.counters.scrubbed.Add(uint64(compared))
		l.counters.scrubPosition.Store(next)
		wait := pause
		if next == 0 {
			now := time.Now()
			l.counters.scrubRounds.Add(1)
			l.counters.lastScrub.Store(now.UnixNano())
			wait = max(pause, l.options.scrubInterval-now.Sub(began))
			began = now.Add(wait)
		}
		timer.Reset(wait)
	}
}
