package s3

import (
	"context"
	"encoding/hex"
	"fmt"
	"iter"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/internal/describe"
)

const (
	listBatch = 100 // objects per step of a list
	listAhead = 16  // concurrent reads
)

// List implements [idempotency.Lister]. It reads every record of the scope, with one request each.
func (s *Store) List(
	ctx context.Context, request *idempotency.ListRequest,
) iter.Seq2[*idempotency.ListedRecord, error] {
	return func(yield func(*idempotency.ListedRecord, error) bool) {
		for page, err := range s.backend.objects.List(ctx, recordsName+scopeName(request.Scope)+"/", listBatch) {
			found := make([]*idempotency.ListedRecord, len(page.Objects))
			group, ctx := errgroup.WithContext(ctx)
			group.SetLimit(listAhead)
			for i, o := range page.Objects {
				// Ends with its request; the Wait below joins it.
				group.Go(func() (err error) {
					found[i], err = s.backend.listed(ctx, o.Name, request)
					return err
				})
			}
			if failed := group.Wait(); err == nil {
				err = failed
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for _, record := range found {
				if record != nil && !yield(record, nil) {
					return
				}
			}
		}
	}
}

// listed returns a record as a list shows it, or nil if the request excludes it.
func (b *backend) listed(
	ctx context.Context, name string, request *idempotency.ListRequest,
) (*idempotency.ListedRecord, error) {
	o, _, now, err := b.read(ctx, name)
	if err != nil || o == nil { // deleted meanwhile
		return nil, err
	}
	hash, err := hex.DecodeString(o.ClientKeyHash)
	if err != nil {
		return nil, fmt.Errorf("%w: the object %s", idempotency.ErrDamaged, name)
	}
	d := &describe.Description{
		// The scope in the object's name.
		Organization: describe.Text(request.Scope.Organization), Vault: describe.Text(request.Scope.Vault),
		Namespace: o.Namespace, Principal: o.Principal, KeyHash: hash,
	}
	if !d.Matches(request) {
		return nil, nil
	}
	listed, err := d.Listed(request, o.Record, now)
	if err != nil {
		return nil, fmt.Errorf("the object %s: %w", name, err)
	}
	return listed, nil
}
