package main

import (
	"context"
	"fmt"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type clusterCommand struct {
	Status   clusterStatusCommand   `cmd:"" default:"withargs" help:"Describe the nodes of the cluster."`
	Remove   clusterRemoveCommand   `cmd:"" help:"Take a node out of the cluster, also a dead one."`
	Promote  clusterPromoteCommand  `cmd:"" help:"Make a learner a voter."`
	Transfer clusterTransferCommand `cmd:"" help:"Hand the leadership to another node."`
}

func (*clusterCommand) Help() string {
	return `A node joins by itself: start it with an empty data directory and serve --join, and it becomes a voter once it
has the log. Ask any node; the answer is the leader's while there is one.

    seqledger serve --data n2 --listen 127.0.0.1:7460 --peer-listen 127.0.0.1:7461 --join 127.0.0.1:7451 \
      --join-token-file n1/JOIN-TOKEN
    seqledger cluster status
    seqledger cluster transfer 2
    seqledger cluster remove 3

The numbers of nodes are those of cluster status, in the order in which the nodes joined. They say nothing about
directories, machines or ports.`
}

type clusterStatusCommand struct {
	clientFlags `embed:""`
}

func (c *clusterStatusCommand) Run(e *environment) error {
	return ask(e, &c.clientFlags, admin.GetCluster, showCluster)
}

// showCluster prints one line for each node.
func showCluster(t *table, c *seqledgerv1.Cluster) {
	leader := "none: an election goes on, or most voters are away"
	if c.Leader != 0 {
		leader = number(c.Leader)
	}
	t.row("leader", leader)
	t.row("term", number(c.Term))
	t.row("log", number(c.AppliedIndex)+" applied, "+number(c.CommittedIndex)+" committed")
	if c.ComparedIndex > 0 {
		t.row("digest", c.ComparedDigest+"… at index "+number(c.ComparedIndex))
	}
	if c.TimeLags != "" {
		t.row("ledger time", "lags, by "+age(c.TimeMayLag.AsDuration())+" at most: "+oneLine(c.TimeLags))
	}
	t.row("")
	t.row("NODE", "ROLE", "STATE", "BEHIND", "HEARD OF", "CLOCK", "DIGEST", "DISK FREE", "FOR NODES", "FOR CLIENTS")
	for _, m := range c.Members {
		role, state, behind := "learner", "?", "?"
		if m.Voter {
			role = "voter"
		}
		if m.Id == c.Leader {
			role = "leader"
		}
		if c.Self == c.Leader { // only the leader knows this
			state, behind = "away", number(c.CommittedIndex-min(c.CommittedIndex, m.MatchedIndex))
			if m.Active {
				state = "alive"
			}
		}
		switch {
		case m.OldCopy:
			state = "OLD-COPY"
		case m.Stalled != "":
			state = "STALLED"
		}
		heard := "?"
		switch {
		case m.Id == c.Self:
			heard = "-"
		case m.SinceContact != nil:
			heard = age(m.SinceContact.AsDuration()) + " ago"
		case c.Self == c.Leader:
			heard = "never"
		}
		t.row(number(m.Id), role, state, behind, heard, clockText(m, c.Self), digestText(m.State), diskText(m),
			m.PeerAddress, m.ClientAddress)
	}
}

// clockText returns how far a node's clock is from that of the node that answers.
func clockText(m *seqledgerv1.ClusterMember, self uint64) string {
	ahead := m.ClockAhead.AsDuration()
	switch {
	case m.Id == self:
		return "-"
	case m.ClockAhead == nil:
		return "?"
	case ahead.Abs() < time.Second:
		return "same"
	case ahead < 0:
		return age(-ahead) + " behind"
	}
	return age(ahead) + " ahead"
}

// digestText returns the result of the last comparison of a node's state.
func digestText(s seqledgerv1.StateComparison) string {
	switch s {
	case seqledgerv1.StateComparison_STATE_COMPARISON_SAME:
		return "same"
	case seqledgerv1.StateComparison_STATE_COMPARISON_DIFFERS:
		return "DIFFERS"
	}
	return "?"
}

// diskText returns the free space on a node's disk.
func diskText(m *seqledgerv1.ClusterMember) string {
	if m.DiskSizeBytes == 0 {
		return "?"
	}
	text := fmt.Sprintf("%s (%d%%)", byteSize(m.DiskFreeBytes), 100*m.DiskFreeBytes/m.DiskSizeBytes)
	if m.DiskLow {
		text += " LOW"
	}
	return text
}

// memberFlags name a node.
type memberFlags struct {
	ID          uint64 `arg:"" help:"Number of the node, as cluster status shows it."`
	Force       bool   `help:"Make the change even if it leaves no majority of live voters. The cluster then takes no writes, and no change that would undo it, until there is one."`
	clientFlags `embed:""`
}

type clusterRemoveCommand struct {
	memberFlags `embed:""`
}

func (*clusterRemoveCommand) Help() string {
	return `The node stops by itself if it is alive. Its number is never used again; to let the machine join again, empty its
data directory. The leader is not removed: transfer the leadership first. Remove a dead node before you replace it,
because while it is a voter it counts for the majority. Look at cluster status first: a removal that would leave no
majority of voters that are alive and caught up is refused.

    seqledger cluster status
    seqledger cluster remove 3`
}

func (c *clusterRemoveCommand) Run(e *environment) error {
	return c.change(e, &seqledgerv1.ChangeClusterRequest{
		Change: &seqledgerv1.ChangeClusterRequest_Remove{Remove: c.ID}, Force: c.Force,
	})
}

type clusterPromoteCommand struct {
	memberFlags `embed:""`
}

func (c *clusterPromoteCommand) Run(e *environment) error {
	return c.change(e, &seqledgerv1.ChangeClusterRequest{
		Change: &seqledgerv1.ChangeClusterRequest_Promote{Promote: c.ID}, Force: c.Force,
	})
}

type clusterTransferCommand struct {
	ID          uint64 `arg:"" optional:"" help:"Number of the voter that takes over. Default: the voter with most of the log."`
	clientFlags `embed:""`
}

func (*clusterTransferCommand) Help() string {
	return `The node must be alive, caught up, and have room on its disk. A leader that is stopped with SIGTERM hands over.

    seqledger cluster transfer
    seqledger cluster transfer 2`
}

func (c *clusterTransferCommand) Run(e *environment) error {
	return c.change(e, &seqledgerv1.ChangeClusterRequest{
		Change: &seqledgerv1.ChangeClusterRequest_Transfer{Transfer: c.ID},
	})
}

// change makes a change and prints the resulting cluster.
func (f *clientFlags) change(e *environment, request *seqledgerv1.ChangeClusterRequest) error {
	return ask(e, f, func(ctx context.Context, conn *client.Client) (*seqledgerv1.Cluster, error) {
		return admin.ChangeCluster(ctx, conn, request)
	}, showCluster)
}
