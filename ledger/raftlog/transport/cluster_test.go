package transport

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

// decode decodes the messages of a frame.
func decode(f *frame) ([]*pb.Message, error) { return core.DecodeMessages(f.bytes) }

// member is a node of a cluster with a log.
type member struct {
	*node
	log  *raftlog.Log
	mu   sync.Mutex
	have []string
}

// Apply implements raftlog.Machine.
func (m *member) Apply(_ raftlog.Position, entry []byte) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.have = append(m.have, string(entry))
	return nil
}

func (m *member) texts() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.have)
}

// newMember starts one of three voters.
func newMember(t *testing.T, id uint64) *member {
	t.Helper()
	m := &member{}
	members := core.Members{Voters: []uint64{1, 2, 3}, Highest: 3}
	m.node = start(t, id, func(o *Options) {
		o.Receive = func(messages []*pb.Message) { _ = m.log.Receive(messages) } // fails once the log has stopped
		o.Unreachable = func(id uint64) { _ = m.log.Unreachable(id) }
	})
	o := raftlog.Options{
		Dir: filepath.Join(t.TempDir(), "log"), Identity: fmt.Append(nil, "node ", id), SegmentBytes: 256 << 10,
		Node: id, Machine: m, Cluster: &raftlog.Cluster{Send: m.node.Send, Tick: 20 * time.Millisecond},
		Logger: slog.New(slog.DiscardHandler),
	}
	must.Do(t, raftlog.CreateAt(o, raftlog.Position{}, members.Encode(), raftlog.State{}))
	m.log = must.Get(raftlog.Open(o))(t)
	t.Cleanup(m.stop)
	return m
}

func (m *member) stop() {
	m.node.stop()
	_ = m.log.Close()
}

// Three nodes elect a leader over real connections and commit entries; the remaining two continue without it.
func TestCluster(t *testing.T) {
	t.Parallel()
	members := []*member{newMember(t, 1), newMember(t, 2), newMember(t, 3)}
	join(t, members[0].node, members[1].node, members[2].node)
	leaderOf := func(among []*member) *member {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ready := make(chan *member, len(among))
		for _, m := range among {
			go func() { // ends with the context; not joined on nodes that do not lead
				if m.log.Ready(ctx) == nil {
					ready <- m
				}
			}()
		}
		select {
		case m := <-ready:
			return m
		case <-ctx.Done():
			t.Fatal("no leader")
			return nil
		}
	}
	var want []string
	write := func(among []*member, text string) {
		t.Helper()
		for {
			_, err := leaderOf(among).log.ProposeIn(leaderOf(among).log.Role().Term, []byte(text)).Wait()
			if err == nil {
				want = append(want, text)
				return
			}
			must.Is(t, err, raftlog.ErrNotLeader) // it may have lost the leadership meanwhile
		}
	}
	for i := range 100 {
		write(members, fmt.Sprint("entry ", i))
	}
	leader := leaderOf(members)
	leader.stop()
	rest := slices.DeleteFunc(slices.Clone(members), func(m *member) bool { return m == leader })
	for i := range 20 {
		write(rest, fmt.Sprint("without it ", i))
	}
	for _, m := range rest {
		must.Do(t, m.log.ReadBarrier(t.Context()))
		if got := m.texts(); !slices.Equal(got, want) {
			t.Errorf("node %d has %d entries, want %d", m.o.ID, len(got), len(want))
		}
	}
}
