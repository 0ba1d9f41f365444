package core

import (
	"encoding/binary"
	"slices"

	"go.etcd.io/raft/v3"
)

// reads are the waiting reads. One read index request serves all reads that came before it.
type reads struct {
	waiting   []uint64 // not requested yet
	asked     []uint64
	context   []byte // of the request; used once
	counter   uint64
	ticks     int // since the request
	confirmed []confirmedRead
}

type confirmedRead struct {
	index uint64 // the state must have reached this index
	read  uint64
}

// Read asks when a read may look at the state so that it sees every write acknowledged before the call, by any node.
// The number comes back in Effects.Reads once there is a leader.
func (n *Node) Read(number uint64) error {
	return n.do(func() error {
		if len(n.reads.waiting)+len(n.reads.asked)+len(n.reads.confirmed) >= MaxReads {
			return ErrTooManyReads
		}
		n.reads.waiting = append(n.reads.waiting, number)
		n.askReads()
		return nil
	})
}

// AbandonRead forgets a read whose caller has left. Without a leader it would never end, and occupy one of the
// MaxReads places.
func (n *Node) AbandonRead(number uint64) {
	is := func(read uint64) bool { return read == number }
	n.reads.waiting = slices.DeleteFunc(n.reads.waiting, is)
	n.reads.asked = slices.DeleteFunc(n.reads.asked, is)
	n.reads.confirmed = slices.DeleteFunc(n.reads.confirmed, func(c confirmedRead) bool { return is(c.read) })
}

// askReads sends a read index request for the waiting reads, unless one is in progress.
func (n *Node) askReads() {
	r := &n.reads
	if len(r.waiting) == 0 || r.context != nil || n.role.Leader == 0 || n.role.Leads && n.ready != n.role.Term {
		return
	}
	r.counter++
	r.context = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, n.o.Nonce), r.counter)
	r.asked, r.waiting, r.ticks = r.waiting, nil, 0
	n.raft.ReadIndex(r.context)
}

// repeatReads sends a new request, because the previous one may be lost. An answer to the previous request must not
// count for the new one.
func (n *Node) repeatReads() {
	r := &n.reads
	r.waiting, r.asked, r.context = append(r.asked, r.waiting...), nil, nil
	n.askReads()
}

func (n *Node) tickReads() {
	if n.reads.ticks++; n.reads.context != nil && n.reads.ticks >= n.o.ElectionTicks {
		n.repeatReads()
	}
}

func (n *Node) confirmRead(s raft.ReadState) {
	r := &n.reads
	if r.context == nil || string(s.RequestCtx) != string(r.context) {
		return
	}
	for _, read := range r.asked {
		r.confirmed = append(r.confirmed, confirmedRead{s.Index, read})
	}
	r.asked, r.context = nil, nil
	n.answerReads()
	n.askReads()
}

func (n *Node) answerReads() {
	r := &n.reads
	for len(r.confirmed) > 0 && r.confirmed[0].index <= n.applied.Index {
		n.out.Reads = append(n.out.Reads, r.confirmed[0].read)
		r.confirmed = r.confirmed[1:]
	}
}
