package postgres

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
)

// listRecords streams the rows, so that at most one response is in memory. A pending record (2) may turn out to have an
// unknown outcome (5).
const listRecords = `SELECT namespace, principal, key_hash, record, clock_timestamp() FROM idempotency_records
	WHERE organization = $1::text AND vault = $2::text AND ($3::text = '' OR namespace = $3)
	AND ($4::boolean OR principal = $5::text) AND ($6::int = 0 OR state = $6 OR $6 = 5 AND state = 2)`

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
			var listed idempotency.ListedRecord
			var hash, value []byte
			var now time.Time
			err := rows.Scan(&listed.Namespace, &listed.Principal, &hash, &value, &now)
			if err == nil {
				listed.Record, err = idempotency.ListedAs(value, now)
			}
			if err != nil {
				yield(nil, fmt.Errorf("the record of the key with the SHA-256 %x: %w", hash, err))
				return
			}
			copy(listed.KeyHash[:], hash)
			if listed.Record == nil || request.State != 0 && listed.Record.State != request.State {
				continue
			}
			if !yield(&listed, nil) {
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
