package redis

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/internal/describe"
)

// listBatch is approximately how many keys one step of a list examines.
const listBatch = 500

// List implements [idempotency.Lister]. It scans every key of the server's database, in batches, and reads the
// records that may match the request. It fails if a cluster moves the store's keys meanwhile.
func (s *Store) List(
	ctx context.Context, request *idempotency.ListRequest,
) iter.Seq2[*idempotency.ListedRecord, error] {
	return func(yield func(*idempotency.ListedRecord, error) bool) {
		if err := s.backend.list(ctx, request, func(r *idempotency.ListedRecord) bool {
			return yield(r, nil)
		}); err != nil {
			yield(nil, err)
		}
	}
}

// globQuoter escapes the special characters of a pattern.
var globQuoter = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)

// list passes records to show until there are no more, or show returns false.
func (b *backend) list(
	ctx context.Context, request *idempotency.ListRequest, show func(*idempotency.ListedRecord) bool,
) error {
	node, err := b.node(ctx)
	if err != nil {
		return err
	}
	seen := map[string]bool{} // a scan may return a key twice
	pattern := globQuoter.Replace(b.records) + "*"
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		var names []string
		if names, cursor, err = node.Scan(ctx, cursor, pattern, listBatch).Result(); err != nil {
			return err
		}
		described, err := b.described(ctx, node, names)
		if err != nil {
			return err
		}
		for hash, d := range described {
			if seen[hash] || !d.Matches(request) {
				continue
			}
			seen[hash] = true
			value, _, now, err := b.Load(ctx, idempotency.Key{Name: hash})
			if err != nil {
				return err
			}
			listed, err := d.Listed(request, value, now)
			if err != nil {
				return err
			}
			if listed != nil && !show(listed) {
				return nil
			}
		}
	}
	return nil
}

// described returns the descriptions of records by the hash in their names. They are read before the records, because
// records may have responses of a megabyte.
func (b *backend) described(
	ctx context.Context, node *redis.Client, names []string,
) (map[string]*describe.Description, error) {
	texts := map[string]*redis.StringCmd{}
	pipeline := node.Pipeline()
	for _, name := range names {
		texts[strings.TrimPrefix(name, b.records)] = pipeline.HGet(ctx, name, "description")
	}
	_, _ = pipeline.Exec(ctx) // each command has its own error
	found := map[string]*describe.Description{}
	for hash, command := range texts {
		text, err := command.Result()
		if errors.Is(err, redis.Nil) {
			continue // expired meanwhile
		}
		if err != nil {
			return nil, err
		}
		if found[hash], err = describe.Parse(text); err != nil {
			return nil, fmt.Errorf("%w: the description of the record %s: %w", idempotency.ErrDamaged, hash, err)
		}
	}
	return found, nil
}
