// Package admin makes the calls of an operator: backups, the nodes of the cluster, the replicated configuration, and
// what a server has refused. Each takes the [client.Client] to call with. They are repeated as its own calls are,
// except Backup and BackupSince.
package admin

import (
	"context"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/internal/rpc"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// GetCluster describes the nodes that keep the ledger.
func GetCluster(ctx context.Context, c *client.Client) (*seqledgerv1.Cluster, error) {
	response, err := rpc.Call(ctx, c.Core(), (*rpc.Endpoint).GetCluster, &seqledgerv1.GetClusterRequest{}, nil)
	return response.GetCluster(), err
}

// ChangeCluster makes one change to the nodes that keep the ledger, and returns them as they are afterwards.
func ChangeCluster(
	ctx context.Context, c *client.Client, request *seqledgerv1.ChangeClusterRequest,
) (*seqledgerv1.Cluster, error) {
	response, err := rpc.Call(ctx, c.Core(), (*rpc.Endpoint).ChangeCluster, request, nil)
	return response.GetCluster(), err
}

// UpdateConfig changes the fields that are set in the request. Repeating it is safe because it
// assigns values and never increments them.
func UpdateConfig(
	ctx context.Context, c *client.Client, request *seqledgerv1.UpdateConfigRequest,
) (*seqledgerv1.Config, error) {
	response, err := rpc.Call(ctx, c.Core(), (*rpc.Endpoint).UpdateConfig, request, nil)
	return response.GetConfig(), err
}

// ArchivePoint copies everything that was acknowledged before the call to the archive, and returns up to where that is.
// Repeating it is safe.
func ArchivePoint(ctx context.Context, c *client.Client) (*seqledgerv1.ArchivePointResponse, error) {
	return rpc.Call(ctx, c.Core(), (*rpc.Endpoint).ArchivePoint, new(seqledgerv1.ArchivePointRequest), nil)
}

// ListRefusals returns the commands of clients that a server has refused last, the oldest first: those with numbers
// above after. It asks one of the servers, and each has its own.
func ListRefusals(ctx context.Context, c *client.Client, after uint64) (*seqledgerv1.ListRefusalsResponse, error) {
	request := &seqledgerv1.ListRefusalsRequest{After: after}
	return rpc.Call(ctx, c.Core(), (*rpc.Endpoint).ListRefusals, request, nil)
}
