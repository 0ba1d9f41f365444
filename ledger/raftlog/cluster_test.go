package raftlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// stalling is a disk on which an operation may hang.
type stalling struct {
	*simdisk.Disk
	mu   sync.Mutex
	op   string        // the operation that hangs: "sync" or "write"
	gate chan struct{} // nil: none hangs
}

type stallingFile struct {
	segment.File
	disk *stalling
}

// stall makes an operation hang from now on and returns a function that ends that.
func (d *stalling) stall(op string) (release func()) {
	gate := make(chan struct{})
	d.mu.Lock()
	d.op, d.gate = op, gate
	d.mu.Unlock()
	return func() {
		d.mu.Lock()
		d.gate = nil
		d.mu.Unlock()
		close(gate)
	}
}

func (d *stalling) wait(op string) {
	d.mu.Lock()
	gate := d.gate
	hangs := gate != nil && d.op == op
	d.mu.Unlock()
	if hangs {
		<-gate
	}
}

func (d *stalling) Create(name string, size int64) (segment.File, error) {
	f, err := d.Disk.Create(name, size)
	return stallingFile{f, d}, err
}

func (d *stalling) Open(name string) (segment.File, error) {
	f, err := d.Disk.Open(name)
	return stallingFile{f, d}, err
}

func (f stallingFile) Sync() error {
	f.disk.wait("sync")
	return f.File.Sync()
}

func (f stallingFile) WriteAt(b []byte, at int64) (int, error) {
	f.disk.wait("write")
	return f.File.WriteAt(b, at)
}

// member is a node of a cluster in this process.
type member struct {
	*Log
	id      uint64
	disk    *stalling
	machine *recorder
	watch   *Watch
	inbox   chan *pb.Message
	cut     bool // guarded by cluster.mu
}

// cluster connects its members by bounded queues that drop what does not fit.
type cluster struct {
	t       *testing.T
	mu      sync.Mutex
	members map[uint64]*member
	apart   [2]uint64 // two nodes whose messages to each other are lost
	ended   chan struct{}
	ferries sync.WaitGroup
}

// newCluster starts three voters. Start and stop it within a synctest bubble.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, members: map[uint64]*member{}, ended: make(chan struct{})}
	voters := Members{Voters: []uint64{1, 2, 3}, Highest: 3}
	for _, id := range voters.Voters {
		c.members[id] = &member{
			id: id, disk: &stalling{Disk: simdisk.New()}, machine: &recorder{}, watch: NewWatch(),
			inbox: make(chan *pb.Message, 1000),
		}
	}
	for _, m := range c.members {
		createOn(t, m.disk, voters)
		m.Log = startOn(t, m.disk, m.machine, func(o *Options) {
			o.Node, o.Cluster, o.Watch = m.id, &Cluster{Send: c.send}, m.watch
		})
		c.ferries.Go(func() { // ends with ended; joined by stop
			for {
				select {
				case message := <-m.inbox:
					_ = m.Receive([]*pb.Message{message}) // fails once the host has stopped
				case <-c.ended:
					return
				}
			}
		})
	}
	return c
}

func (c *cluster) send(messages []*pb.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, message := range messages {
		to := c.members[message.GetTo()]
		from := message.GetFrom()
		if to.cut || c.members[from].cut || c.apart == [2]uint64{to.id, from} || c.apart == [2]uint64{from, to.id} {
			continue
		}
		select {
		case to.inbox <- message:
		default:
		}
	}
}

func (c *cluster) cut(id uint64, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members[id].cut = cut
}

func (c *cluster) stop() {
	for _, m := range c.members {
		_ = m.Close()
	}
	close(c.ended)
	c.ferries.Wait()
}

// leader waits until one of the nodes is ready to lead, and returns it and the others.
func (c *cluster) leader(among ...uint64) (leader *member, others []*member) {
	c.t.Helper()
	for range 1000 {
		<-time.After(10 * time.Millisecond) // in the bubble's time
		for _, id := range among {
			if m := c.members[id]; m.Role().Leads && m.ready(c.t) {
				for _, id := range among {
					if id != m.id {
						others = append(others, c.members[id])
					}
				}
				return m, others
			}
		}
	}
	c.t.Fatal("no leader")
	return nil, nil
}

// ready reports whether a node becomes ready to lead within a second.
func (m *member) ready(t *testing.T) bool {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return m.Ready(ctx) == nil
}

func inCluster(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stop()
		test(t, c)
	})
}

// A leader that is gone is replaced by one that has every acknowledged entry. If it comes back, it follows.
func TestFailover(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		first, others := c.leader(1, 2, 3)
		write(t, first.Log, numbered(100)...)
		_, err := others[0].ProposeIn(others[0].Role().Term, []byte("misplaced")).Wait()
		check.Is(t, err, ErrNotLeader, "a proposal to a follower")
		c.cut(first.id, true)
		cutOff := first.ProposeIn(first.Role().Term, []byte("cut off"))
		next, _ := c.leader(others[0].id, others[1].id)
		if got := next.machine.texts(); !slices.Equal(got, numbered(100)) {
			t.Errorf("the next leader has %d entries, want 100", len(got))
		}
		check.Is(t, check.Err(cutOff.Wait()), ErrOutcomeUnknown, "a proposal without a majority")
		write(t, next.Log, "of the next leader")
		c.cut(first.id, false)
		must.Do(t, first.ReadBarrier(t.Context()))
		want := append(numbered(100), "of the next leader")
		if got := first.machine.texts(); !slices.Equal(got, want) {
			t.Errorf("the first leader has %d entries, want %d", len(got), len(want))
		}
	})
}

// Each node answers reads that reflect every earlier acknowledged write, and answers none without a majority.
func TestClusterReads(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		leader, others := c.leader(1, 2, 3)
		for i := range 20 {
			write(t, leader.Log, fmt.Sprint(i))
			for _, m := range c.members {
				must.Do(t, m.ReadBarrier(t.Context()))
				if got := len(m.machine.texts()); got != i+1 {
					t.Fatalf("node %d reads with %d entries, and %d were acknowledged", m.id, got, i+1)
				}
			}
		}
		for _, m := range others {
			c.cut(m.id, true)
		}
		answered := make(chan error, 1)
		go func() { answered <- leader.ReadBarrier(t.Context()) }() // ends with the leader; received below
		<-time.After(time.Minute)
		select {
		case err := <-answered:
			t.Errorf("a read without a majority: %v", err)
		default:
		}
		must.Do(t, leader.Close())
		check.Is(t, <-answered, ErrClosed, "a read that waits when the host is closed")
	})
}

// unheard makes a node one whose messages are all lost.
func unheard(o *Options) { o.Cluster = &Cluster{Send: func([]*pb.Message) {}} }

// Once another voter joins, a former sole voter asks it before it answers reads.
func TestSoleVoterGetsCompany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, m := simdisk.New(), &recorder{}
		createOn(t, d, sole)
		r := startOn(t, d, m, unheard)
		must.Do(t, r.Ready(t.Context()))
		must.Do(t, r.ReadBarrier(t.Context()))
		second := uint64(2)
		change := &pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{
			{Type: pb.ConfChangeAddNode.Enum(), NodeId: &second},
		}}
		must.Do(t, r.ChangeIn(t.Context(), r.Role().Term, change))
		if members := r.Members(); !slices.Equal(members.Voters, []uint64{1, 2}) {
			t.Errorf("the members are %+v", members)
		}
		answered := make(chan error, 1)
		go func() { answered <- r.ReadBarrier(t.Context()) }() // ends with Close; received below
		<-time.After(time.Minute)
		select {
		case err := <-answered:
			t.Errorf("a read without the second voter: %v", err)
		default:
		}
		must.Do(t, r.Close())
		<-answered
		o := onDisk(d, m)
		files := must.Get(segment.Open(o.segments(true)))(t)
		o.Checkpoint = files.Last()
		members := must.Get(mustFit(&o, files))(t)
		must.Do(t, files.Abandon())
		if !slices.Equal(members.Voters, []uint64{1, 2}) {
			t.Errorf("the log says that the members are %+v", members)
		}
	})
}

// A checkpoint of the log has the addresses of all members. Nodes whose addresses would not fit are refused, because
// every node would stop at its next truncation.
func TestTooManyAddressesAreRefused(t *testing.T) {
	t.Parallel()
	for name, bytes := range map[string]int{"the longest": core.MaxAddressBytes, "usual ones": 21, "none": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, m := simdisk.New(), &recorder{}
			r := started(t, d, m, unheard)
			var err error
			nodes := 1
			for id := uint64(2); err == nil && id <= core.MaxMembers+1; id++ {
				change := &pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{
					{Type: pb.ConfChangeAddLearnerNode.Enum(), NodeId: &id},
				}}
				if bytes > 0 {
					a := core.Address{ID: id, Peer: strings.Repeat("p", bytes), Client: strings.Repeat("c", bytes)}
					a.AppendTo(change)
				}
				if err = r.ChangeIn(t.Context(), r.Role().Term, change); err == nil {
					nodes++
				}
			}
			if want := "shorter addresses"; bytes > 0 && (!errors.Is(err, ErrNotLeader) ||
				!strings.Contains(err.Error(), want)) {
				t.Errorf("%d nodes, then %v, want %q", nodes, err, want)
			}
			if nodes < 4 || bytes == 0 && nodes <= core.MaxMembers {
				t.Errorf("only %d nodes: %v", nodes, err)
			}
			write(t, r, "after it")
			at := r.Covered()
			m.checkpoint(at)
			must.Do(t, r.Truncate(at.Index))
			write(t, r, "after the truncation")
		})
	}
}
