package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/internal/describe"
	"github.com/seqledger/seqledger/internal/keyed"
)

// The state of rows that count; see schema.sql.
const statePending = 2

// openKeys counts the other keys of a principal that have no result, up to the quota; not those that have expired and
// are to be deleted. For a key that is already pending it returns no row, because that key has been counted: its owner
// must be able to renew its lease.
const openKeys = `SELECT count(*) FROM (SELECT FROM idempotency_records
		WHERE organization = $2::text AND vault = $3::text AND principal = $4::text AND state IN (2, 5)
		AND keep_until > clock_timestamp() LIMIT $5::bigint) AS counted
	HAVING NOT EXISTS (SELECT FROM idempotency_records WHERE key = $1::bytea AND state IN (2, 5))`

// openRecords are the records that openKeys counts.
const openRecords = `SELECT record, clock_timestamp() FROM idempotency_records
	WHERE organization = $1::text AND vault = $2::text AND principal = $3::text AND state IN (2, 5)
	AND keep_until > clock_timestamp()`

// stillOpen counts the open keys of a principal, up to the quota, without those whose outcome has been given up: a key
// that is remembered keeps its row for longer.
func stillOpen(ctx context.Context, q querier, d *describe.Description, most int) (open int, err error) {
	rows, err := q.Query(ctx, openRecords, text(d.Organization), text(d.Vault), text(d.Principal))
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for open < most && rows.Next() {
		var record []byte
		var now time.Time
		if err := rows.Scan(&record, &now); err != nil {
			return 0, err
		}
		if r, err := keyed.Decode(record); err != nil || r.OpenUntil() > now.UnixNano() {
			open++ // a damaged one, too
		}
	}
	rows.Close()
	return open, rows.Err()
}

// admit returns an [*idempotency.QuotaError] if a record would exceed the number of open keys of its principal.
func admit(ctx context.Context, q querier, key idempotency.Key, record []byte, most int) error {
	const stateAt = 1 // as the generated column has it
	if most <= 0 || len(record) <= stateAt || record[stateAt] != statePending {
		return nil
	}
	name, _, err := rowOf(key, "")
	if err != nil {
		return err
	}
	d := describe.Of(key.Record)
	var open int
	err = q.QueryRow(ctx, openKeys, name, text(d.Organization), text(d.Vault), text(d.Principal), most).Scan(&open)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil && open >= most {
		open, err = stillOpen(ctx, q, d, most)
	}
	switch {
	case err != nil:
		return err
	case open >= most:
		return &idempotency.QuotaError{Cause: fmt.Errorf("%w: %d", idempotency.ErrOpenKeys, most)}
	}
	return nil
}
