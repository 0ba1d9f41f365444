package ledger

import (
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/ledger/machine"
)

// vainLooks is how many looks at the state file, one after the other, may find no retry before it is worth no more
// of them.
const vainLooks = 64

// looks tells whether it is worth looking for retries in the state file.
//
// A write of a stream that is not in memory seeks its record there to see whether it is a retry, and the applier seeks
// it once more. With ten million streams the first of the two took a third of the processor's time of a write, and
// where nobody repeats writes of such streams it finds nothing. So behind vainLooks of them the log answers these
// retries, until it has answered one: then the looks begin again. No answer depends on it, only its way, and that
// of a retry that would have the log to itself does not either; see sharesLog.
type looks struct{ vain atomic.Int64 }

func (k *looks) inVain() bool { return k.vain.Load() >= vainLooks }

// looked is told of a look at the state file.
func (k *looks) looked(found bool) {
	if found {
		k.vain.Store(0)
	} else {
		k.vain.Add(1)
	}
}

// decided is told of outcomes from the log.
func (k *looks) decided(outcomes []machine.Outcome) {
	for i := range outcomes {
		if outcomes[i].Code == machine.Replayed {
			k.vain.Store(0)
			return
		}
	}
}

// leavesToLog reports whether a retry that is not in memory is left to the log.
func (l *Ledger) leavesToLog() bool {
	return l.looks.inVain() && sharesLog(l.counters.queuedBytes.Load(), l.options.QueueBytes, l.log.Writing()) &&
		l.cluster.Term() != 0 && !l.draining.Load()
}

const (
	// maxSubmissionCost is the most that a submission takes of the queue, in bytes.
	maxSubmissionCost = maxSubmissionBytes + maxSubmissionCommands*commandOverhead
	// hungWrite is the length of a write of the log from which on nothing more is left to it.
	hungWrite = 100 * time.Millisecond
)

// sharesLog reports whether a submission that comes to a queue of so many bytes, while a write of the log has taken
// so long, would share the log with others, and most certainly find room and an answer. A retry must not be refused,
// nor wait for a disk that hangs, because it was not looked for.
func sharesLog(queued, limit int64, writing time.Duration) bool {
	return queued > 0 && queued+maxSubmissionCost <= limit/2 && writing < hungWrite
}
