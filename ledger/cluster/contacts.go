package cluster

import (
	"sync"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
)

// contacts records when a node last heard from the others. It survives changes of term, unlike the consensus's own
// record, which starts over in each term.
type contacts struct {
	mu    sync.Mutex
	heard map[uint64]time.Time // by node
}

// note records messages that arrived together. A stream delivers messages of a single node.
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

// last returns when a node was last heard from; zero means never.
func (c *contacts) last(id uint64) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard[id]
}
