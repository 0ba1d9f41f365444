package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/internal/describe"
	"github.com/seqledger/seqledger/client/idempotency/internal/waiters"
)

// channel is the notification channel. The payload of a notification is the key, in hex.
const channel = "idempotency_records"

// The statements. Parameters have casts, because the statements are sent without first asking the server for the
// parameter types.
const (
	loadRecord = `SELECT r.record, r.version, clock_timestamp()
		FROM (VALUES (1)) AS one LEFT JOIN idempotency_records r ON r.key = $1::bytea`

	// The two writing statements return a row, or none if they did not write. If the clock is past the deadline after
	// the write, they fail with a division by zero, and so write nothing. They read the clock at that point, not at the
	// start, because they may wait for a lock in between.
	insertRecord = `INSERT INTO idempotency_records
		(key, version, record, keep_until, organization, vault, namespace, principal, key_hash)
		VALUES ($1::bytea, nextval('idempotency_tokens'), $2::bytea, $3::timestamptz, $4::text, $5::text, $6::text,
			$7::text, $8::bytea)
		ON CONFLICT (key) DO NOTHING
		RETURNING 1 / (clock_timestamp() <= $9::timestamptz)::int, NULL::text`

	updateRecord = `WITH swapped AS (
		UPDATE idempotency_records
		SET version = nextval('idempotency_tokens'), record = $3::bytea, keep_until = $4::timestamptz
		WHERE key = $1::bytea AND version = $2::bigint
		RETURNING waited_until, 1 / (clock_timestamp() <= $5::timestamptz)::int AS one)
		SELECT one, CASE WHEN waited_until > clock_timestamp()
			THEN pg_notify('` + channel + `', encode($1::bytea, 'hex'))::text END FROM swapped`

	// Changes nothing. Its commit is acknowledged only when everything before it is as durable as the server's
	// synchronous_commit requires.
	confirmRecord = `UPDATE idempotency_records SET version = version WHERE key = $1::bytea AND version = $2::bigint`

	// Renewed rarely, so that polling callers do not write each time.
	announceWait = `UPDATE idempotency_records SET waited_until = clock_timestamp() + interval '60 seconds'
		WHERE key = $1::bytea AND version = $2::bigint
		AND (waited_until IS NULL OR waited_until < clock_timestamp() + interval '30 seconds')`

	recordVersion = `SELECT version FROM idempotency_records WHERE key = $1::bytea`

	drawToken = `SELECT nextval('idempotency_tokens')`
)

// querier is a connection or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, arguments ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row
}

// rowOf returns the key of a row, and the number of its version, 0 for none.
func rowOf(key idempotency.Key, version string) (row []byte, number int64, err error) {
	if row, err = hex.DecodeString(key.Name); err == nil && version != "" {
		number, err = strconv.ParseInt(version, 10, 64)
	}
	return row, number, err
}

// load reads a record.
func load(
	ctx context.Context, q querier, key idempotency.Key,
) (record []byte, version string, now time.Time, err error) {
	name, _, err := rowOf(key, "")
	if err != nil {
		return nil, "", time.Time{}, err
	}
	var number *int64
	if err := q.QueryRow(ctx, loadRecord, name).Scan(&record, &number, &now); err != nil {
		return nil, "", time.Time{}, err
	}
	if number == nil {
		return nil, "", now, nil
	}
	return record, strconv.FormatInt(*number, 10), now, nil
}

// swap writes a record if the stored one has the given version.
func swap(
	ctx context.Context, q querier, key idempotency.Key, version string, record []byte, keepUntil, deadline time.Time,
) (bool, error) {
	name, number, err := rowOf(key, version)
	if err != nil {
		return false, err
	}
	var row pgx.Row
	if version != "" {
		row = q.QueryRow(ctx, updateRecord, name, number, record, keepUntil, deadline)
	} else {
		d := describe.Of(key.Record)
		row = q.QueryRow(ctx, insertRecord, name, record, keepUntil, text(d.Organization), text(d.Vault),
			text(d.Namespace), text(d.Principal), d.KeyHash, deadline)
	}
	var one int
	var notified *string
	if err = row.Scan(&one, &notified); errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// confirm waits until a version of a record is as durable as a commit.
func confirm(ctx context.Context, q querier, key idempotency.Key, version string) (bool, error) {
	name, number, err := rowOf(key, version)
	if err != nil {
		return false, err
	}
	tag, err := q.Exec(ctx, confirmRecord, name, number)
	return err == nil && tag.RowsAffected() == 1, err
}

// nextToken draws a token.
func nextToken(ctx context.Context, q querier) (uint64, error) {
	var token int64
	err := q.QueryRow(ctx, drawToken).Scan(&token)
	return uint64(token), err
}

// backend is an idempotency.Backend in which every call is its own transaction.
type backend struct {
	connections

	listener *waiters.Listener
	maxOpen  int // Options.MaxOpen
}

// Load implements idempotency.Backend.
func (b *backend) Load(
	ctx context.Context, key idempotency.Key,
) (record []byte, version string, now time.Time, err error) {
	for {
		err = b.use(ctx, true, func(q querier) (err error) {
			record, version, now, err = load(ctx, q, key)
			return err
		})
		if ctx.Err() != nil || !overtaken(err) { // a read can be rolled back, too
			return record, version, now, refused(err)
		}
	}
}

// refused marks an error by which the server denies a role its access or a statement, or has no such table: it has
// answered, and will answer so again.
func refused(err error) error {
	failure, ok := errors.AsType[*pgconn.PgError](err)
	if ok && (strings.HasPrefix(failure.Code, "28") || strings.HasPrefix(failure.Code, "42")) {
		return fmt.Errorf("%w: %w", idempotency.ErrRefused, err)
	}
	return err
}

// CompareAndSwap implements idempotency.Backend.
func (b *backend) CompareAndSwap(
	ctx context.Context, key idempotency.Key, version string, record []byte, keepUntil, deadline time.Time,
) (bool, error) {
	swapped := false
	err := b.use(ctx, false, func(q querier) error {
		err := admit(ctx, q, key, record, b.maxOpen)
		if err == nil {
			swapped, err = swap(ctx, q, key, version, record, keepUntil, deadline)
		}
		return err
	})
	if overtaken(err) || late(err) {
		return false, nil
	}
	return swapped, refused(err)
}

// Confirm implements idempotency.Confirmer. If a statement is canceled while its commit waits for a standby, the server
// keeps the commit and makes it visible, although no standby may have it.
func (b *backend) Confirm(ctx context.Context, key idempotency.Key, version string) (bool, error) {
	confirmed := false
	err := b.use(ctx, true, func(q querier) (err error) {
		confirmed, err = confirm(ctx, q, key, version)
		return err
	})
	if overtaken(err) {
		return false, nil
	}
	return confirmed, refused(err)
}

// late reports whether a statement wrote nothing because it ran after its deadline.
func late(err error) bool {
	failure, ok := errors.AsType[*pgconn.PgError](err)
	return ok && failure.Code == "22012" // division by zero
}

// overtaken reports whether a transaction was rolled back in favor of another one. That happens to single statements if
// the database's default isolation is repeatable read or serializable.
func overtaken(err error) bool {
	failure, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (failure.Code == "40001" || failure.Code == "40P01")
}

// NextToken implements idempotency.TokenSource.
func (b *backend) NextToken(ctx context.Context) (uint64, error) {
	var token uint64
	err := b.use(ctx, true, func(q querier) (err error) {
		token, err = nextToken(ctx, q)
		return err
	})
	return token, refused(err)
}

// Changed implements idempotency.Notifier.
func (b *backend) Changed(ctx context.Context, key idempotency.Key, version string) error {
	name, number, err := rowOf(key, version)
	if err != nil {
		return err
	}
	return b.listener.Changed(ctx, key.Name, func() (bool, error) {
		var current int64
		err := b.use(ctx, true, func(q querier) error {
			if _, err := q.Exec(ctx, announceWait, name, number); err != nil && !overtaken(err) {
				return err
			}
			// A swap before the announcement sends no notification, but is visible here.
			return q.QueryRow(ctx, recordVersion, name).Scan(&current)
		})
		if errors.Is(err, pgx.ErrNoRows) {
			return true, nil
		}
		return current != number, err
	})
}
