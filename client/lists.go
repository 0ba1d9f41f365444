package client

import (
	"context"
	"iter"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/internal/rpc"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// listRequest is a request for a page; PR is a pointer to the message R.
type listRequest[R any] interface {
	*R
	proto.Message
	GetPageSize() uint32
}

// listing yields the items of all pages in order and reads each page when it is needed. It ends
// after an error.
func listing[Req, Res, T any, R listRequest[Req]](
	ctx context.Context, c *Client, method rpc.Unary[Req, Res], request R,
	turn func(request R, token string), items func(*Res) ([]T, string),
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		request := proto.CloneOf(request)
		for {
			page, err := rpc.Call(ctx, c.core, method, (*Req)(request), nil)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			found, token := items(page)
			for _, item := range found {
				if !yield(item, nil) {
					return
				}
			}
			if token == "" {
				return
			}
			turn(request, token)
		}
	}
}

// ListEntities yields the entities of a scope in the order of their keys. It reads pages of
// request.page_size entities as they are needed, beginning after request.page_token. Each page
// shows the ledger at the time of its read. An error ends the sequence.
func (c *Client) ListEntities(
	ctx context.Context, request *seqledgerv1.ListEntitiesRequest,
) iter.Seq2[*seqledgerv1.Entity, error] {
	return listing(ctx, c, rpcListEntities, request,
		func(r *seqledgerv1.ListEntitiesRequest, token string) { r.PageToken = token },
		func(page *seqledgerv1.ListEntitiesResponse) ([]*seqledgerv1.Entity, string) {
			return page.GetEntities(), page.GetNextPageToken()
		})
}

// ListRelationships yields the relationships of a scope, as ListEntities does its
// entities, in a stable order.
func (c *Client) ListRelationships(
	ctx context.Context, request *seqledgerv1.ListRelationshipsRequest,
) iter.Seq2[*seqledgerv1.Relationship, error] {
	return listing(ctx, c, rpcListRelationships, request,
		func(r *seqledgerv1.ListRelationshipsRequest, token string) { r.PageToken = token },
		func(page *seqledgerv1.ListRelationshipsResponse) ([]*seqledgerv1.Relationship, string) {
			return page.GetRelationships(), page.GetNextPageToken()
		})
}

// ListBlocks yields the headers and hashes of a scope's blocks, as ListEntities does
// its entities, in the order of their heights and without their transactions.
func (c *Client) ListBlocks(
	ctx context.Context, request *seqledgerv1.ListBlocksRequest,
) iter.Seq2[*seqledgerv1.Block, error] {
	return listing(ctx, c, rpcListBlocks, request,
		func(r *seqledgerv1.ListBlocksRequest, token string) { r.PageToken = token },
		func(page *seqledgerv1.ListBlocksResponse) ([]*seqledgerv1.Block, string) {
			return page.GetBlocks(), page.GetNextPageToken()
		})
}

// ListClients yields the streams of a scope, or of all, as ListEntities does the
// entities.
func (c *Client) ListClients(
	ctx context.Context, request *seqledgerv1.ListClientsRequest,
) iter.Seq2[*seqledgerv1.ClientEntry, error] {
	return listing(ctx, c, rpcListClients, request,
		func(r *seqledgerv1.ListClientsRequest, token string) { r.PageToken = token },
		func(page *seqledgerv1.ListClientsResponse) ([]*seqledgerv1.ClientEntry, string) {
			return page.GetClients(), page.GetNextPageToken()
		})
}
