package server

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// Records returns IdempotencyService for the process that the server runs in: its calls pass no
// connection and no encoding. They are counted and refused like those that come over the network, but
// for the bound of open requests, which is the caller's. It is only for a server without Auth, because
// a call has no credential: another one refuses each of them.
func (s *Server) Records() seqledgerv1connect.IdempotencyServiceClient { return records{s} }

type records struct{ server *Server }

// local makes a call of this process.
func local[P, R any](
	ctx context.Context, s *Server, procedure string, r *connect.Request[P],
	handle func(context.Context, *P) (*R, error),
) (response *connect.Response[R], err error) {
	began := time.Now()
	defer func() {
		if p := recover(); p != nil {
			response, err = nil, s.panicked(ctx, procedure, p)
		}
		err = (&observer{s}).done(ctx, procedure, began, err)
	}()
	if s.options.Auth != nil {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("a call in the process has no credential"))
	}
	answer, err := handle(ctx, r.Msg)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(answer), nil
}

// Reserve implements seqledgerv1connect.IdempotencyServiceClient.
func (l records) Reserve(
	ctx context.Context, r *connect.Request[seqledgerv1.ReserveRequest],
) (*connect.Response[seqledgerv1.ReserveResponse], error) {
	return local(ctx, l.server, seqledgerv1connect.IdempotencyServiceReserveProcedure, r, l.server.reserve)
}

// Complete implements seqledgerv1connect.IdempotencyServiceClient.
func (l records) Complete(
	ctx context.Context, r *connect.Request[seqledgerv1.CompleteRequest],
) (*connect.Response[seqledgerv1.CompleteResponse], error) {
	return local(ctx, l.server, seqledgerv1connect.IdempotencyServiceCompleteProcedure, r, l.server.complete)
}

// Reject implements seqledgerv1connect.IdempotencyServiceClient.
func (l records) Reject(
	ctx context.Context, r *connect.Request[seqledgerv1.RejectRequest],
) (*connect.Response[seqledgerv1.RejectResponse], error) {
	return local(ctx, l.server, seqledgerv1connect.IdempotencyServiceRejectProcedure, r, l.server.reject)
}

// Release implements seqledgerv1connect.IdempotencyServiceClient.
func (l records) Release(
	ctx context.Context, r *connect.Request[seqledgerv1.ReleaseRequest],
) (*connect.Response[seqledgerv1.ReleaseResponse], error) {
	return local(ctx, l.server, seqledgerv1connect.IdempotencyServiceReleaseProcedure, r, l.server.release)
}

// Heartbeat implements seqledgerv1connect.IdempotencyServiceClient.
func (l records) Heartbeat(
	ctx context.Context, r *connect.Request[seqledgerv1.HeartbeatRequest],
) (*connect.Response[seqledgerv1.HeartbeatResponse], error) {
	return local(ctx, l.server, seqledgerv1connect.IdempotencyServiceHeartbeatProcedure, r, l.server.heartbeat)
}

// Checkpoint implements seqledgerv1connect.IdempotencyServiceClient.
func (l records) Checkpoint(
	ctx context.Context, r *connect.Request[seqledgerv1.CheckpointRequest],
) (*connect.Response[seqledgerv1.CheckpointResponse], error) {
	return local(ctx, l.server, seqledgerv1connect.IdempotencyServiceCheckpointProcedure, r, l.server.checkpoint)
}

// GetRecord implements seqledgerv1connect.IdempotencyServiceClient.
func (l records) GetRecord(
	ctx context.Context, r *connect.Request[seqledgerv1.GetRecordRequest],
) (*connect.Response[seqledgerv1.GetRecordResponse], error) {
	return local(ctx, l.server, seqledgerv1connect.IdempotencyServiceGetRecordProcedure, r, l.server.getRecord)
}

// ListRecords implements seqledgerv1connect.IdempotencyServiceClient.
func (l records) ListRecords(
	ctx context.Context, r *connect.Request[seqledgerv1.ListRecordsRequest],
) (*connect.Response[seqledgerv1.ListRecordsResponse], error) {
	return local(ctx, l.server, seqledgerv1connect.IdempotencyServiceListRecordsProcedure, r, l.server.listRecords)
}

// PurgeRecord implements seqledgerv1connect.IdempotencyServiceClient.
func (l records) PurgeRecord(
	ctx context.Context, r *connect.Request[seqledgerv1.PurgeRecordRequest],
) (*connect.Response[seqledgerv1.PurgeRecordResponse], error) {
	return local(ctx, l.server, seqledgerv1connect.IdempotencyServicePurgeRecordProcedure, r, l.server.purgeRecord)
}

// ResolveRecord implements seqledgerv1connect.IdempotencyServiceClient.
func (l records) ResolveRecord(
	ctx context.Context, r *connect.Request[seqledgerv1.ResolveRecordRequest],
) (*connect.Response[seqledgerv1.ResolveRecordResponse], error) {
	return local(ctx, l.server, seqledgerv1connect.IdempotencyServiceResolveRecordProcedure, r, l.server.resolveRecord)
}
