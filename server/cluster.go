package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// getCluster describes the nodes that keep the ledger.
func (s *Server) getCluster(
	context.Context, *seqledgerv1.GetClusterRequest,
) (*seqledgerv1.GetClusterResponse, error) {
	return &seqledgerv1.GetClusterResponse{Cluster: s.cluster()}, nil
}

// changeCluster makes one change of the nodes.
func (s *Server) changeCluster(
	ctx context.Context, m *seqledgerv1.ChangeClusterRequest,
) (*seqledgerv1.ChangeClusterResponse, error) {
	if s.isDraining() {
		return nil, ledger.ErrDraining
	}
	var err error
	switch change := m.Change.(type) {
	case *seqledgerv1.ChangeClusterRequest_Remove:
		err = s.options.Ledger.Cluster().Remove(ctx, change.Remove, m.Force)
	case *seqledgerv1.ChangeClusterRequest_Promote:
		err = s.options.Ledger.Cluster().Promote(ctx, change.Promote, m.Force)
	case *seqledgerv1.ChangeClusterRequest_Transfer:
		err = s.options.Ledger.Cluster().TransferLeadership(ctx, change.Transfer)
	default:
		return nil, &machine.FieldError{Field: "change", Problem: "must be one of remove, promote and transfer"}
	}
	if err != nil {
		return nil, changeError(err)
	}
	return &seqledgerv1.ChangeClusterResponse{Cluster: s.cluster()}, nil
}

// changeError returns the error of a change as the operator gets it.
func changeError(err error) error {
	switch {
	case errors.Is(err, cluster.ErrAlone), errors.Is(err, cluster.ErrNoSuchNode), errors.Is(err, cluster.ErrNoChange),
		errors.Is(err, cluster.ErrNoSuccessor):
		return connect.NewError(connect.CodeFailedPrecondition, err)
	case errors.Is(err, cluster.ErrUnknownChange):
		return connect.NewError(unknownCode(err), err)
	default:
		return err
	}
}

func (s *Server) cluster() *seqledgerv1.Cluster {
	status := s.options.Ledger.Cluster().Status()
	c := &seqledgerv1.Cluster{
		Self: status.Self, Leader: status.Leader.ID, Term: status.Leader.Term,
		AppliedIndex: status.Applied, CommittedIndex: status.Committed,
	}
	if status.Compared.Index > 0 {
		c.ComparedIndex, c.ComparedDigest = status.Compared.Index, fmt.Sprintf("%016x", status.Compared.Digest)
	}
	if status.Lagging != nil {
		c.TimeLags, c.TimeMayLag = status.Lagging.Error(), durationpb.New(status.MayLag)
	}
	for _, m := range status.Members {
		member := &seqledgerv1.ClusterMember{
			Id: m.ID, Voter: m.Voter, PeerAddress: m.Peer, ClientAddress: m.Client, Active: m.Active,
			MatchedIndex: m.Matched, State: seqledgerv1.StateComparison(m.State),
			DiskFreeBytes: m.Disk.Free, DiskSizeBytes: m.Disk.Size, DiskLow: m.Room.Low(),
			Stalled: m.Stalled, OldCopy: m.OldCopy,
		}
		if m.Answers {
			member.ClockAhead = durationpb.New(m.ClockAhead)
		}
		if !m.Heard.IsZero() {
			member.SinceContact = durationpb.New(time.Since(m.Heard))
		}
		c.Members = append(c.Members, member)
	}
	return c
}
