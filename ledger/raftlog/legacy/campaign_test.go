package legacy

import (
	"log/slog"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func TestASoleVoterStandsForElectionAtOnce(t *testing.T) {
	t.Parallel()
	conf := raft.DefaultConfig()
	conf.LocalID = "a"
	conf.Logger = newHclog(slog.New(slog.DiscardHandler), "raft")
	// Whoever waits for these to run out, or half of them, does not become leader in
	// this test.
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = time.Hour, time.Hour, time.Minute
	_, transport := raft.NewInmemTransport("a")
	store, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
	first := raft.Configuration{Servers: []raft.Server{{ID: "a", Address: transport.LocalAddr(), Suffrage: raft.Voter}}}
	if err := raft.BootstrapCluster(conf, store, store, snapshots, transport, first); err != nil {
		t.Fatal(err)
	}
	node, err := raft.NewRaft(conf, &raft.MockFSM{}, store, store, snapshots, transport)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := node.Shutdown().Error(); err != nil {
			t.Error(err)
		}
	}()
	if err := campaign(node); err != nil {
		t.Fatal(err)
	}
	select {
	case leads := <-node.LeaderCh():
		if !leads {
			t.Fatal("lost what it never had")
		}
	case <-t.Context().Done():
	case <-time.After(time.Minute):
		t.Fatal("no leader")
	}
}
