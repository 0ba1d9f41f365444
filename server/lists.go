package server

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// A page is complete when one more element than fits was seen. Only then does the answer have a token, so the last page
// never leads to an empty one.

// listEntities pages through the entities of a scope.
func (s *Server) listEntities(
	ctx context.Context, m *seqledgerv1.ListEntitiesRequest,
) (*seqledgerv1.ListEntitiesResponse, error) {
	scope, err := wire.RequireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	if len(m.Prefix) > machine.MaxKeyBytes {
		return nil, tooLong("prefix")
	}
	size, err := wire.PageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	q := wire.NewQuery("entities", scope.Organization, scope.Vault, m.Prefix)
	after, err := q.Cursor(m.PageToken)
	if err != nil {
		return nil, err
	}
	var page *entityPage
	var answer *seqledgerv1.ListEntitiesResponse
	for range maxChangedReads {
		if page, err = s.findEntities(ctx, scope, m.Prefix, string(after), size); err == nil {
			answer, err = s.readEntities(ctx, page)
		}
		if !errors.Is(err, machine.ErrChanged) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	switch read := len(answer.Entities); {
	case read > 0 && (read < len(page.entities) || page.more):
		answer.NextPageToken = q.Token([]byte(answer.Entities[read-1].Key))
	case page.resume != "": // many expired entities precede the next one
		answer.NextPageToken = q.Token([]byte(page.resume))
	}
	return answer, nil
}

// entityPage is the part of a listing that one view finds.
type entityPage struct {
	entities []machine.EntityRef
	ids      []machine.TxID
	more     bool   // there are more entities
	resume   string // there may be more after this key
}

// findEntities finds the entities of a page.
func (s *Server) findEntities(
	ctx context.Context, scope machine.Scope, prefix, after string, size int,
) (page *entityPage, err error) {
	page = new(entityPage)
	bytes := 0
	err = s.options.Ledger.View(ctx, func(v machine.View) (err error) {
		page.resume, err = v.VisitEntityRefs(scope, prefix, after, func(e machine.EntityRef) bool {
			bytes += len(e.Value)
			if len(page.entities) == size || len(page.entities) > 0 && bytes > wire.MaxPageBytes {
				page.more = true
				return false
			}
			page.entities, page.ids = append(page.entities, e), append(page.ids, v.TxIDAt(e.Version))
			return true
		})
		return err
	}, machine.TableEntities)
	return page, err
}

// readEntities reads the values of a page, or of as many of its first entities as fit in an answer.
func (s *Server) readEntities(ctx context.Context, page *entityPage) (*seqledgerv1.ListEntitiesResponse, error) {
	answer := new(seqledgerv1.ListEntitiesResponse)
	if len(page.entities) == 0 {
		return answer, nil
	}
	size := 0
	err := s.options.Ledger.Pieces(ctx, func(b machine.Blocks) (bool, error) {
		i := len(answer.Entities)
		ref := &page.entities[i]
		err := b.ReadValue(ref)
		if errors.Is(err, machine.ErrChanged) && i > 0 {
			return false, nil // the next page finds the entity as it is then
		}
		if err != nil {
			return false, err
		}
		rendered := wire.RenderEntity(&ref.Entity, page.ids[i])
		if size += proto.Size(rendered) + wire.FieldBytes; size > wire.MaxPageBytes && i > 0 {
			return false, nil
		}
		answer.Entities = append(answer.Entities, rendered)
		return len(answer.Entities) < len(page.entities), nil
	})
	return answer, err
}

func tooLong(field string) error {
	return &machine.FieldError{Field: field, Problem: fmt.Sprintf("must have at most %d bytes", machine.MaxKeyBytes)}
}

// listRelationships pages through the relationships of a scope.
func (s *Server) listRelationships(
	ctx context.Context, m *seqledgerv1.ListRelationshipsRequest,
) (*seqledgerv1.ListRelationshipsResponse, error) {
	scope, err := wire.RequireScope(m.Scope)
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
	size, err := wire.PageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	q := wire.NewQuery("relationships", scope.Organization, scope.Vault, m.Resource, m.Relation)
	after, err := q.Cursor(m.PageToken)
	if err != nil {
		return nil, err
	}
	answer := new(seqledgerv1.ListRelationshipsResponse)
	visit := func(key []byte, r machine.Relationship) bool {
		if len(answer.Relationships) == size {
			answer.NextPageToken = q.Token(after)
			return false
		}
		after = key
		answer.Relationships = append(answer.Relationships,
			&seqledgerv1.Relationship{Resource: r.Resource, Relation: r.Relation, Subject: r.Subject})
		return true
	}
	for more := true; more; { // a view steps over a bounded number of deleted ones
		err = s.options.Ledger.View(ctx, func(v machine.View) error {
			resume, err := v.VisitRelationships(scope, m.Resource, m.Relation, after, visit)
			if more = resume != nil; more {
				after = resume
			}
			return err
		}, machine.TableRelationships)
		if err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// listBlocks pages through the block headers of a scope.
func (s *Server) listBlocks(
	ctx context.Context, m *seqledgerv1.ListBlocksRequest,
) (*seqledgerv1.ListBlocksResponse, error) {
	scope, err := wire.RequireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	size, err := wire.PageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	height := max(m.FromHeight, 1)
	q := wire.NewQuery("blocks", scope.Organization, scope.Vault, fmt.Sprint(height))
	if height, err = q.Height(m.PageToken, height); err != nil {
		return nil, err
	}
	answer := new(seqledgerv1.ListBlocksResponse)
	chain, err := s.options.Ledger.Chain(ctx, scope) // the page ends where it ends now
	if err != nil || height > chain.Height {
		return answer, err
	}
	err = s.options.Ledger.Pieces(ctx, func(b machine.Blocks) (bool, error) {
		header, err := b.BlockHeader(chain, height)
		if err != nil {
			return false, err
		}
		answer.Blocks = append(answer.Blocks, wire.RenderBlock(&header))
		height++
		return height <= chain.Height && len(answer.Blocks) < size, nil
	})
	if err != nil {
		return nil, err
	}
	if height <= chain.Height {
		answer.NextPageToken = q.HeightToken(height)
	}
	return answer, nil
}
