package cluster

import (
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
)

func TestContacts(t *testing.T) {
	t.Parallel()
	var c contacts
	from := func(id uint64) []*pb.Message { return []*pb.Message{{From: &id}, {From: &id}} }
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	c.note(nil, early) // a stream that was opened and is silent
	if !c.last(0).IsZero() || !c.last(2).IsZero() {
		t.Error("a node was heard of that said nothing")
	}
	c.note(from(2), early)
	c.note(from(3), early)
	c.note(from(2), late)
	if c.last(2) != late || c.last(3) != early || !c.last(1).IsZero() {
		t.Errorf("heard of 1 at %v, of 2 at %v, of 3 at %v", c.last(1), c.last(2), c.last(3))
	}
}
