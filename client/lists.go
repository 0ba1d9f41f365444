package client

import (
	"context"
	"iter"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/seqledger/seqledger/client/internal/rpc"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// listRequest is a request for a page, a pointer to the message M, and listAnswer the answer.
type listRequest[M any] interface {
	*M
	proto.Message
	GetPageToken() string
}

type listAnswer[M any] interface {
	*M
	GetNextPageToken() string
}

// listing yields the items of all pages in order and reads each page when it is needed. It ends after an error.
func listing[Req, Res, T any, R listRequest[Req], A listAnswer[Res]](
	ctx context.Context, c *Client, method rpc.Unary[Req, Res], request R, items func(A) []T,
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		request := proto.CloneOf(request)
		m := request.ProtoReflect()
		token := m.Descriptor().Fields().ByName("page_token")
		for more := true; more; more = request.GetPageToken() != "" {
			page, err := rpc.Call(ctx, c.core, method, (*Req)(request), nil)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items(page) {
				if !yield(item, nil) {
					return
				}
			}
			m.Set(token, protoreflect.ValueOfString(A(page).GetNextPageToken()))
		}
	}
}

// ListEntities yields the entities of a scope in the order of their keys. It reads pages of
// request.page_size entities as they are needed, beginning after request.page_token. Each page
// shows the ledger at the time of its read. An error ends the sequence.
func (c *Client) ListEntities(
	ctx context.Context, request *seqledgerv1.ListEntitiesRequest,
) iter.Seq2[*seqledgerv1.Entity, error] {
	return listing(ctx, c, (*rpc.Endpoint).ListEntities, request, (*seqledgerv1.ListEntitiesResponse).GetEntities)
}

// ListRelationships yields the relationships of a scope, as ListEntities does its entities, in a stable order.
func (c *Client) ListRelationships(
	ctx context.Context, request *seqledgerv1.ListRelationshipsRequest,
) iter.Seq2[*seqledgerv1.Relationship, error] {
	return listing(ctx, c, (*rpc.Endpoint).ListRelationships, request,
		(*seqledgerv1.ListRelationshipsResponse).GetRelationships)
}

// ListBlocks yields the headers and hashes of a scope's blocks, as ListEntities does
// its entities, in the order of their heights and without their transactions.
func (c *Client) ListBlocks(
	ctx context.Context, request *seqledgerv1.ListBlocksRequest,
) iter.Seq2[*seqledgerv1.Block, error] {
	return listing(ctx, c, (*rpc.Endpoint).ListBlocks, request, (*seqledgerv1.ListBlocksResponse).GetBlocks)
}

// ListClients yields the streams of a scope, or of all, as ListEntities does the entities.
func (c *Client) ListClients(
	ctx context.Context, request *seqledgerv1.ListClientsRequest,
) iter.Seq2[*seqledgerv1.ClientEntry, error] {
	return listing(ctx, c, (*rpc.Endpoint).ListClients, request, (*seqledgerv1.ListClientsResponse).GetClients)
}
