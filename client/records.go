package client

import (
	"context"
	"iter"

	"github.com/seqledger/seqledger/client/internal/rpc"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Reserve takes an idempotency key, or returns the state of its record. Like every call about records it is repeated
// with the same attempt_id until it is answered or ctx ends: the owner then gets its own token again. Most programs
// want package client/idempotency.
//
// Set valid_until. A request without it is valid for five minutes from the time it arrives, so a copy that the
// network delays could make a reservation that has no owner.
func (c *Client) Reserve(
	ctx context.Context, request *seqledgerv1.ReserveRequest,
) (*seqledgerv1.ReserveResponse, error) {
	return rpc.Call(ctx, c.core, (*rpc.Endpoint).Reserve, request, nil)
}

// Complete stores the result of finished work.
func (c *Client) Complete(
	ctx context.Context, request *seqledgerv1.CompleteRequest,
) (*seqledgerv1.CompleteResponse, error) {
	return rpc.Call(ctx, c.core, (*rpc.Endpoint).Complete, request, nil)
}

// Reject stores a refusal as the final result of the work.
func (c *Client) Reject(ctx context.Context, request *seqledgerv1.RejectRequest) (*seqledgerv1.RejectResponse, error) {
	return rpc.Call(ctx, c.core, (*rpc.Endpoint).Reject, request, nil)
}

// Release frees a key. Only an owner that has executed nothing may call it.
func (c *Client) Release(
	ctx context.Context, request *seqledgerv1.ReleaseRequest,
) (*seqledgerv1.ReleaseResponse, error) {
	return rpc.Call(ctx, c.core, (*rpc.Endpoint).Release, request, nil)
}

// Heartbeat extends the lease of an owner.
func (c *Client) Heartbeat(
	ctx context.Context, request *seqledgerv1.HeartbeatRequest,
) (*seqledgerv1.HeartbeatResponse, error) {
	return rpc.Call(ctx, c.core, (*rpc.Endpoint).Heartbeat, request, nil)
}

// Checkpoint stores progress for the next owner.
func (c *Client) Checkpoint(
	ctx context.Context, request *seqledgerv1.CheckpointRequest,
) (*seqledgerv1.CheckpointResponse, error) {
	return rpc.Call(ctx, c.core, (*rpc.Endpoint).Checkpoint, request, nil)
}

// GetRecord reads the record of a key; an absent one is [failure.ErrNotFound].
func (c *Client) GetRecord(
	ctx context.Context, request *seqledgerv1.GetRecordRequest,
) (*seqledgerv1.IdempotencyRecord, error) {
	response, err := rpc.Call(ctx, c.core, (*rpc.Endpoint).GetRecord, request, nil)
	return response.GetRecord(), err
}

// ListRecords yields the records of a scope without their responses and checkpoints, as
// ListEntities does the entities, by principal, namespace and hash of the key.
func (c *Client) ListRecords(
	ctx context.Context, request *seqledgerv1.ListRecordsRequest,
) iter.Seq2[*seqledgerv1.IdempotencyRecord, error] {
	return listing(ctx, c, (*rpc.Endpoint).ListRecords, request, (*seqledgerv1.ListRecordsResponse).GetRecords)
}

// PurgeRecord deletes a finished record, which frees its key. If the first answer is lost, the repeat may be answered
// with NOT_FOUND.
func (c *Client) PurgeRecord(
	ctx context.Context, request *seqledgerv1.PurgeRecordRequest,
) (*seqledgerv1.PurgeRecordResponse, error) {
	return rpc.Call(ctx, c.core, (*rpc.Endpoint).PurgeRecord, request, nil)
}

// ResolveRecord sets the result of work whose outcome is unknown.
func (c *Client) ResolveRecord(
	ctx context.Context, request *seqledgerv1.ResolveRecordRequest,
) (*seqledgerv1.ResolveRecordResponse, error) {
	return rpc.Call(ctx, c.core, (*rpc.Endpoint).ResolveRecord, request, nil)
}
