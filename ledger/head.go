package ledger

import (
	"sync"
	"time"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Head describes the state after the last entry that this node has applied.
type Head struct {
	Created  bool             // the first command was applied, which gives the ledger its id
	Ledger   machine.LedgerID // zero unless Created
	Index    uint64           // ledger index
	Time     int64            // ledger time, Unix nanoseconds
	Digest   machine.Hash
	Streams  uint64
	Pending  uint64 // keys that are reserved
	Config   machine.Config
	Retained machine.Retained

	pause  time.Duration       // the longest step of ledger time so far
	header machine.EntryHeader // of the next proposed entry, without its time
}

// heads has the last Head. Whoever describes the node reads it here, because the state itself is locked while an entry
// is applied, and for as long as the disk hangs meanwhile.
type heads struct {
	mu   sync.Mutex
	last Head
}

func (h *heads) get() Head {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// setHead notes the head of a view.
func (l *Ledger) setHead(v machine.View) {
	head := Head{
		Created: v.Created(), Index: v.Index(), Time: v.Time(), Digest: v.Digest(),
		Streams: v.Streams(), Pending: v.PendingKeys(), Config: v.Config(), Retained: v.Retained(),
		pause: time.Duration(v.LongestPause()), header: l.machine.Header(),
	}
	if head.Created {
		head.Ledger = v.LedgerID()
	}
	l.heads.mu.Lock()
	l.heads.last = head
	l.heads.mu.Unlock()
}

// Head returns the head of the state as this node has it, which may lack acknowledged writes; see Reader.Fresh.
// It waits for nothing.
func (l *Ledger) Head() Head { return l.heads.get() }
