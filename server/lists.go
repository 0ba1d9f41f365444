package server

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// A page is complete when one element more than fits was seen; only then does
// the answer have a token, so that the last page never leads to an empty one.

// listEntities pages through the entities of a scope.
func (s *Server) listEntities(
	ctx context.Context, m *seqledgerv1.ListEntitiesRequest,
) (*seqledgerv1.ListEntitiesResponse, error) {
	scope, err := requireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	if len(m.Prefix) > machine.MaxKeyBytes {
		return nil, tooLong("prefix")
	}
	size, err := pageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	q := newQuery("entities", scope.Organization, scope.Vault, m.Prefix)
	after, err := q.cursor(m.PageToken)
	if err != nil {
		return nil, err
	}
	var entities []machine.Entity
	var ids []machine.TxID
	more, bytes := false, 0
	var resume string
	err = s.options.Ledger.ViewOrdered(ctx, machine.TableEntities, func(v machine.View) (err error) {
		resume, err = v.VisitEntities(scope, m.Prefix, string(after), func(e machine.Entity) bool {
			bytes += len(e.Value)
			if len(entities) == size || len(entities) > 0 && bytes > maxPageBytes {
				more = true
				return false
			}
			entities, ids = append(entities, e), append(ids, v.TxIDAt(e.Version))
			return true
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	answer := new(seqledgerv1.ListEntitiesResponse)
	for i := range entities {
		answer.Entities = append(answer.Entities, renderEntity(&entities[i], ids[i]))
	}
	switch {
	case more:
		answer.NextPageToken = q.token([]byte(entities[len(entities)-1].Key))
	case resume != "": // many expired ones lie before the next
		answer.NextPageToken = q.token([]byte(resume))
	}
	return answer, nil
}

func tooLong(field string) error {
	return &machine.FieldError{Field: field, Problem: fmt.Sprintf("must have at most %d bytes", machine.MaxKeyBytes)}
}

// listRelationships pages through the relationships of a scope.
func (s *Server) listRelationships(
	ctx context.Context, m *seqledgerv1.ListRelationshipsRequest,
) (*seqledgerv1.ListRelationshipsResponse, error) {
	scope, err := requireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	switch {
	case m.Relation != "" && m.Resource == "":
		return nil, &machine.FieldError{Field: "relation", Problem: "needs resource"}
	case len(m.Resource) > machine.MaxKeyBytes:
		return nil, tooLong("resource")
	case len(m.Relation) > machine.MaxKeyBytes:
		return nil, tooLong("relation")
	}
	size, err := pageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	q := newQuery("relationships", scope.Organization, scope.Vault, m.Resource, m.Relation)
	after, err := q.cursor(m.PageToken)
	if err != nil {
		return nil, err
	}
	answer := new(seqledgerv1.ListRelationshipsResponse)
	var last []byte
	err = s.options.Ledger.ViewOrdered(ctx, machine.TableRelationships, func(v machine.View) error {
		visit := func(key []byte, r machine.Relationship) bool {
			if len(answer.Relationships) == size {
				answer.NextPageToken = q.token(last)
				return false
			}
			last = key
			answer.Relationships = append(answer.Relationships,
				&seqledgerv1.Relationship{Resource: r.Resource, Relation: r.Relation, Subject: r.Subject})
			return true
		}
		return v.VisitRelationships(scope, m.Resource, m.Relation, after, visit)
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// listBlocks pages through the block headers of a scope.
func (s *Server) listBlocks(
	ctx context.Context, m *seqledgerv1.ListBlocksRequest,
) (*seqledgerv1.ListBlocksResponse, error) {
	scope, err := requireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	size, err := pageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	height := max(m.FromHeight, 1)
	q := newQuery("blocks", scope.Organization, scope.Vault, fmt.Sprint(height))
	cursor, err := q.cursor(m.PageToken)
	if err != nil {
		return nil, err
	}
	if cursor != nil {
		if len(cursor) != 8 {
			return nil, &machine.FieldError{Field: "page_token", Problem: "is not one that this server gave out"}
		}
		height = binary.BigEndian.Uint64(cursor)
	}
	var headers []machine.BlockHeader
	var newest uint64
	err = s.options.Ledger.View(ctx, func(v machine.View) (err error) {
		if newest, _, err = v.ChainHead(scope); err != nil {
			return err
		}
		for ; height <= newest && len(headers) < size; height++ {
			header, err := v.BlockHeader(scope, height)
			if err != nil {
				return err
			}
			headers = append(headers, header)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	answer := new(seqledgerv1.ListBlocksResponse)
	for i := range headers {
		answer.Blocks = append(answer.Blocks, renderBlock(&machine.Block{Header: headers[i]}))
	}
	if height <= newest {
		answer.NextPageToken = q.token(binary.BigEndian.AppendUint64(nil, height))
	}
	return answer, nil
}
