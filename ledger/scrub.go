package ledger

import (
	"errors"
	"time"

	"github.com/seqledger/seqledger/ledger/boltstore"
)

// scrubStep is how many bytes are compared at once. A checkpoint waits for them if
// they are of the state file.
const scrubStep = 256 << 10

// scrubLoop compares the pages of the state file, and then the block files, with their
// checksums, round and round, at a bounded rate. A difference stops the node. It reads what the
// system has in its cache from there, and the rest from the disk.
func (l *Ledger) scrubLoop() {
	if l.options.ScrubBytes < 0 {
		return
	}
	pause := func(bytes int) time.Duration {
		// A step that has compared less counts as a whole one, so that the loop never spins.
		return time.Duration(float64(time.Second) * float64(max(bytes, scrubStep)) / float64(l.options.ScrubBytes))
	}
	timer := time.NewTimer(pause(0))
	defer timer.Stop()
	var at scrubPlace
	began := time.Now()
	for {
		select {
		case <-timer.C:
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
		bytes, err := l.scrub(&at)
		switch {
		case errors.Is(err, boltstore.ErrClosed):
			return
		case err != nil:
			l.fail(err)
			return
		}
		wait := pause(bytes)
		if at == (scrubPlace{}) {
			now := time.Now()
			l.counters.scrubRounds.Add(1)
			l.counters.lastScrub.Store(now.UnixNano())
			wait = max(wait, l.options.scrubInterval-now.Sub(began))
			began = now.Add(wait)
		}
		timer.Reset(wait)
	}
}

// scrubPlace is where a round is; the zero value is its beginning.
type scrubPlace struct {
	inBlocks bool
	next     uint64 // a page, or a position in the block files
}

// scrub takes a step, and returns how many bytes it has compared.
func (l *Ledger) scrub(at *scrubPlace) (bytes int, err error) {
	pageSize := l.store.PageSize()
	position := l.store.ScrubPages() * uint64(pageSize)
	if at.inBlocks {
		at.next, bytes, err = l.store.ScrubBlocks(at.next, scrubStep)
		l.counters.scrubbedBlocks.Add(uint64(bytes))
		position += at.next - min(at.next, l.store.BlockBase())
		at.inBlocks = at.next != 0
	} else {
		var pages int
		at.next, pages, err = l.store.Scrub(at.next, scrubStep/pageSize)
		l.counters.scrubbed.Add(uint64(pages))
		bytes = pages * pageSize
		if at.inBlocks = at.next == 0; !at.inBlocks {
			position = at.next * uint64(pageSize)
		}
	}
	if *at == (scrubPlace{}) {
		position = 0
	}
	l.counters.scrubPosition.Store(position)
	return bytes, err
}
