package postgres

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/internal/describe"
)

// listRecords streams the rows, so that at most one response is in memory. A pending record (2) may turn out to have an
// unknown outcome (5).
const listRecords = `SELECT namespace, principal, key_hash, record, clock_timestamp() FROM idempotency_records
	WHERE organization = $1::text AND vault = $2::text AND ($3::text = '' OR namespace = $3)
	AND ($4::boolean OR principal = $5::text) AND ($6::int = 0 OR state = $6 OR $6 = 5 AND state = 2 OR $6 = 7 AND state IN (2, 3, 4, 5))`

// List implements [idempotency.Lister]. It reads what was committed when it began. It keeps a connection until its
// caller has all records or stops.
func (s *Store) List(
	ctx context.Context, request *idempotency.ListRequest,
) iter.Seq2[*idempotency.ListedRecord, error] {
	return func(yield func(*idempotency.ListedRecord, error) bool) {
		conn, err := s.backend.acquire(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		defer conn.Release()
		rows, err := conn.Query(ctx, listRecords, text(request.Scope.Organization), text(request.Scope.Vault),
			text(request.Namespace), request.EveryPrincipal, text(request.Principal), int(request.State))
		if err != nil {
			yield(nil, err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			var d describe.Description
			var value []byte
			var now time.Time
			var listed *idempotency.ListedRecord
			err := rows.Scan(&d.Namespace, &d.Principal, &d.KeyHash, &value, &now)
			if err == nil {
				listed, err = d.Listed(request, value, now)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if listed != nil && !yield(listed, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(nil, err)
		}
	}
}

// text replaces the character that PostgreSQL does not accept in text.
func text(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }
