package ledger

import (
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

// maxMisses is how many probes in a row may find no retry before probing stops.
const maxMisses = 64

// probes decides whether to look for retries in the state.
//
// A probe reads the record of a write's stream to see whether the write is a retry, under a lock that the applier waits
// for, and the applier reads the record again. With 256 callers it took a tenth or more of the processor time of a
// write, with ten million streams, whose records are in the state file, a third, and without retries it finds nothing.
// So after maxMisses probes without a retry, the log answers retries, until it has answered one; then probing resumes.
// Answers do not depend on it, only the path that they take. A retry that would have the log to itself is always probed
// for; see sharesLog.
type probes struct{ misses atomic.Int64 }

// exhausted reports whether probing has stopped.
func (p *probes) exhausted() bool { return p.misses.Load() >= maxMisses }

// probed records a probe.
func (p *probes) probed(found bool) {
	switch {
	case !found:
		p.misses.Add(1)
	case p.misses.Load() > 0: // callers that repeat writes all the time do not write here
		p.misses.Store(0)
	}
}

// decided records outcomes from the log.
func (p *probes) decided(outcomes []machine.Outcome) {
	for i := range outcomes {
		if outcomes[i].Code == machine.Replayed {
			p.misses.Store(0)
			return
		}
	}
}

// leavesToLog reports whether a retry is left to the log.
func (l *Ledger) leavesToLog() bool {
	return l.probes.exhausted() && sharesLog(l.counters.queuedBytes.Load(), l.options.QueueBytes, l.log.Writing()) &&
		!l.lacksRoom.Load() && // else the log waits for the state file
		l.cluster.Term() != 0 && !l.draining.Load()
}

const (
	// maxSubmissionCost is the most that a submission takes of the queue, in bytes.
	maxSubmissionCost = maxSubmissionBytes + maxSubmissionCommands*engine.CommandOverhead
	// hungWrite is the length of a write of the log from which on nothing more is left to it.
	hungWrite = 100 * time.Millisecond
)

// sharesLog reports whether a submission would share the log with others and certainly be admitted and answered, given
// the bytes in the queue and how long the current write of the log has taken. A retry must not be refused, or wait for
// a disk that hangs, because it was not probed for.
func sharesLog(queued, limit int64, writing time.Duration) bool {
	return queued > 0 && queued+maxSubmissionCost <= limit/2 && writing < hungWrite
}
