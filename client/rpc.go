package client

import (
	"context"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// unary is a method of a generated client on the current endpoint.
type unary[Req, Res any] func(context.Context, *endpoint, *connect.Request[Req]) (*connect.Response[Res], error)

// The unary methods of the API.
var (
	rpcWrite             = writeMethod
	rpcOpenSession       = ledgerMethod(seqledgerv1connect.LedgerServiceClient.OpenSession)
	rpcGetClientState    = ledgerMethod(seqledgerv1connect.LedgerServiceClient.GetClientState)
	rpcGetEntity         = ledgerMethod(seqledgerv1connect.LedgerServiceClient.GetEntity)
	rpcGetTransaction    = ledgerMethod(seqledgerv1connect.LedgerServiceClient.GetTransaction)
	rpcGetBlock          = ledgerMethod(seqledgerv1connect.LedgerServiceClient.GetBlock)
	rpcListEntities      = ledgerMethod(seqledgerv1connect.LedgerServiceClient.ListEntities)
	rpcListRelationships = ledgerMethod(seqledgerv1connect.LedgerServiceClient.ListRelationships)
	rpcListBlocks        = ledgerMethod(seqledgerv1connect.LedgerServiceClient.ListBlocks)
	rpcGetStatus         = adminMethod(seqledgerv1connect.AdminServiceClient.GetStatus)
	rpcListClients       = adminMethod(seqledgerv1connect.AdminServiceClient.ListClients)
	rpcUpdateConfig      = adminMethod(seqledgerv1connect.AdminServiceClient.UpdateConfig)
)

// method is a method of a generated client C.
type method[C, Req, Res any] func(C, context.Context, *connect.Request[Req]) (*connect.Response[Res], error)

func ledgerMethod[Req, Res any](m method[seqledgerv1connect.LedgerServiceClient, Req, Res]) unary[Req, Res] {
	return func(ctx context.Context, e *endpoint, r *connect.Request[Req]) (*connect.Response[Res], error) {
		return m(e.ledger, ctx, r)
	}
}

func adminMethod[Req, Res any](m method[seqledgerv1connect.AdminServiceClient, Req, Res]) unary[Req, Res] {
	return func(ctx context.Context, e *endpoint, r *connect.Request[Req]) (*connect.Response[Res], error) {
		return m(e.admin, ctx, r)
	}
}

// writeMethod is the Write procedure, which an endpoint sends itself where it can.
func writeMethod(
	ctx context.Context, e *endpoint, r *connect.Request[seqledgerv1.WriteRequest],
) (*connect.Response[seqledgerv1.WriteResponse], error) {
	return e.write(ctx, r)
}
