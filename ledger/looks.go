package ledger

import (
	"sync/atomic"

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
// retries, until it has answered one: then the looks begin again. No answer depends on it, only its way, and so does
// not even that of a retry that would have the log to itself; see busyWithRoom.
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

// busyWithRoom reports whether a write that is not answered at once would share its way through the log with
// others, and would find room in the queue. A retry must not be refused because it was not looked for.
func (l *Ledger) busyWithRoom() bool {
	queued := l.counters.queuedBytes.Load()
	return queued > 0 && queued < l.options.QueueBytes/2 && !l.draining.Load()
}
