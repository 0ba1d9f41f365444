package harness

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/internal/load"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// ServeCommand is seqledger serve, as users start it. peer is its address for other nodes, "" for a server without any;
// token is the file with the join token. It joins others, or makes the ledger where there are none.
func ServeCommand(binary, dir, address, peer, token string, others ...string) *exec.Cmd {
	c := exec.Command(binary, "serve", "--no-console", "--data", dir, "--listen", address)
	if peer != "" {
		c.Args = append(c.Args, "--peer-listen", peer, "--join-token-file", token)
	}
	for _, other := range others {
		c.Args = append(c.Args, "--join", other)
	}
	return c
}

// AwaitVoters waits until n nodes have a vote and one of them leads, and returns the cluster as the leader sees it.
// Until then, the loss of a node could leave no majority.
func AwaitVoters(ctx context.Context, servers string, n int) (*seqledgerv1.Cluster, error) {
	const patience = time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := client.New(client.Options{Server: servers})
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // It has only read.
	without := func(m *seqledgerv1.ClusterMember) bool { return !m.GetVoter() }
	for {
		attempt, stop := context.WithTimeout(ctx, 2*time.Second)
		cluster, err := admin.GetCluster(attempt, c)
		stop()
		if err == nil && cluster.GetSelf() == cluster.GetLeader() && len(cluster.GetMembers()) == n &&
			!slices.ContainsFunc(cluster.GetMembers(), without) {
			return cluster, nil
		}
		if ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("not all nodes have a vote after %s: %v", patience, cluster), err)
		}
		load.Pause(ctx, 50*time.Millisecond)
	}
}
