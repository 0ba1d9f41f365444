package rpc

import (
	"context"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// Unary is a method of a generated client on the current endpoint.
type Unary[Req, Res any] func(context.Context, *Endpoint, *connect.Request[Req]) (*connect.Response[Res], error)

// method is a method of a generated client C.
type method[C, Req, Res any] func(C, context.Context, *connect.Request[Req]) (*connect.Response[Res], error)

// Ledger returns a method of LedgerService.
func Ledger[Req, Res any](m method[seqledgerv1connect.LedgerServiceClient, Req, Res]) Unary[Req, Res] {
	return func(ctx context.Context, e *Endpoint, r *connect.Request[Req]) (*connect.Response[Res], error) {
		return m(e.Ledger, ctx, r)
	}
}

// Admin returns a method of AdminService.
func Admin[Req, Res any](m method[seqledgerv1connect.AdminServiceClient, Req, Res]) Unary[Req, Res] {
	return func(ctx context.Context, e *Endpoint, r *connect.Request[Req]) (*connect.Response[Res], error) {
		return m(e.Admin, ctx, r)
	}
}

// Records returns a method of IdempotencyService.
func Records[Req, Res any](m method[seqledgerv1connect.IdempotencyServiceClient, Req, Res]) Unary[Req, Res] {
	return func(ctx context.Context, e *Endpoint, r *connect.Request[Req]) (*connect.Response[Res], error) {
		return m(e.Records, ctx, r)
	}
}

// Write is the Write procedure, which an endpoint sends itself where it can.
func Write(
	ctx context.Context, e *Endpoint, r *connect.Request[seqledgerv1.WriteRequest],
) (*connect.Response[seqledgerv1.WriteResponse], error) {
	return e.write(ctx, r)
}
