package ledger

import (
	"errors"
	"time"
)

// checkpointLoop writes what has gathered in memory to the state file, and
// truncates the log, whenever enough of either has come together. It works
// beside the commit path: neither the log nor the applier waits for it.
func (l *Ledger) checkpointLoop() {
	defer l.loops.Done()
	for {
		select {
		case <-l.checkpointDue:
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
		if err := l.checkpoint(); err != nil {
			l.fail(err)
			return
		}
	}
}

func (l *Ledger) checkpoint() error {
	// While the log is replayed nobody leads, and it is read from.
	if l.replayed.Load() && l.log.BytesSinceTruncate() >= l.options.LogBytes {
		l.counters.truncates.Add(1)
		return l.log.Truncate() // calls applier.Checkpoint
	}
	if l.store.PendingBytes() >= l.options.CheckpointBytes {
		return l.flush()
	}
	return nil
}

// lastCheckpoint makes the next start short: nothing is left to replay.
func (l *Ledger) lastCheckpoint() error {
	return errors.Join(l.flush(), l.log.Truncate())
}

func (l *Ledger) flush() error {
	began, pending, before := time.Now(), l.store.PendingBytes(), l.store.Checkpoint()
	err := l.store.Flush()
	if l.store.Checkpoint() != before { // else there was nothing to write, or it failed
		l.counters.checkpointed(began, pending)
	}
	signal(l.flushed)
	return err
}
