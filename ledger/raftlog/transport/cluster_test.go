package transport

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/host"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// decode decodes the messages of a frame.
func decode(f *frame) ([]*pb.Message, error) { return core.DecodeMessages(f.bytes) }

// member is a node of a cluster with a host.
type member struct {
	*node
	host *host.Host
	log  *segment.Log
	mu   sync.Mutex
	have []string
}

func (m *member) apply(_ segment.Position, entry []byte) any {
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
	o := segment.Options{
		Disk: simdisk.New(), Identity: fmt.Append(nil, "node ", id), SegmentBytes: 256 << 10, Random: zeros{},
		Logger: slog.New(slog.DiscardHandler),
	}
	must.Do(t, segment.Create(o, segment.Checkpoint{Data: members.Encode()}, segment.State{}))
	m.log = must.Get(segment.Open(o))(t)
	m.node = start(t, id, func(o *Options) {
		o.Receive = func(messages []*pb.Message) { _ = m.host.Receive(messages...) } // fails once the host has stopped
		o.Unreachable = func(id uint64) { _ = m.host.Unreachable(id) }
	})
	m.host = must.Get(host.Start(host.Options{
		ID: id, Log: m.log, Members: members, Apply: m.apply, Send: m.node.Send, Tick: 20 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	}))(t)
	t.Cleanup(func() { m.stop(); _ = m.log.Close() })
	return m
}

func (m *member) stop() {
	m.node.stop()
	_ = m.host.Close()
}

// zeros is an insecure source of salts.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

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
				if m.host.Ready(ctx) == nil {
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
			_, err := leaderOf(among).host.ProposeIn(leaderOf(among).host.Role().Term, []byte(text)).Wait()
			if err == nil {
				want = append(want, text)
				return
			}
			must.Is(t, err, host.ErrNotLeader) // it may have lost the leadership meanwhile
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
		must.Do(t, m.host.ReadBarrier(t.Context()))
		if got := m.texts(); !slices.Equal(got, want) {
			t.Errorf("node %d has %d entries, want %d", m.o.ID, len(got), len(want))
		}
	}
}
