package ledger

import (
	"sync"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
)

// contacts is when a node has heard of the others. It outlives what the consensus keeps of them, which begins anew with
// each term.
type contacts struct {
	mu    sync.Mutex
	heard map[uint64]time.Time // by node
}

// note takes in messages that came together. A stream brings those of one node.
func (c *contacts) note(messages []*pb.Message, now time.Time) {
	if len(messages) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard == nil {
		c.heard = map[uint64]time.Time{}
	}
	c.heard[messages[0].GetFrom()] = now
}

// last returns when a node was heard of last; zero: never.
func (c *contacts) last(id uint64) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard[id]
}
