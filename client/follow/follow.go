package follow

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"sort"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/internal/pgserver"
	"github.com/seqledger/seqledger/client/internal/rpc"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

//go:embed schema.sql
var schema string

// Schema returns the statements that make the tables of positions. They may be run again.
func Schema() string { return schema }

// DefaultName is the name of a follower, unless Options.Name says otherwise.
const DefaultName = "default"

// Options configure a follower. The zero value is usable.
type Options struct {
	// Name tells followers of one scope in one database apart. Empty means DefaultName.
	Name string
	// Logger may be nil. It gets the failures after which Into retries.
	Logger *slog.Logger
}

// Apply applies a block within a transaction, which it must not end. It may be called again for a block whose
// transaction was rolled back. PostgreSQL ends one that is idle for idle_in_transaction_session_timeout, or for five
// minutes if that is not set.
type Apply func(ctx context.Context, tx pgx.Tx, block *seqledgerv1.Block) error

// DivergedError is returned when the ledger does not have the blocks whose effects are in the database, for
// example because it was restored from a backup. Nothing was applied since. To reconcile, undo the effects of the
// blocks after Common in the database, and call [Rewind] with it.
type DivergedError struct {
	// Applied is the height of the last block whose effects are in the database.
	Applied uint64
	// Common is the greatest height known to be the same in both; 0 if none is.
	Common uint64
}

// Error implements error.
func (e *DivergedError) Error() string {
	return fmt.Sprintf("the ledger does not have the block of height %d that was applied: reconcile what was applied "+
		"after height %d", e.Applied, e.Common)
}

// Into applies the blocks of a scope, from the one after the last that was applied, until ctx ends or an error. It
// retries when the connection to the ledger or the database fails. It returns the error of ctx, of fn, a
// [*DivergedError], or a lasting error of the ledger or the database.
func Into(
	ctx context.Context, ledger *client.Client, db *pgxpool.Pool, scope *seqledgerv1.Scope, fn Apply, o Options,
) error {
	f := newFollower(ledger, db, scope, fn, o)
	for failures := 0; ; {
		before := f.applied
		err := f.run(ctx)
		if f.applied > before {
			// A block was applied: the failures before it must not prolong the pause after the next one.
			failures = 0
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !passes(err) {
			return err
		}
		_ = pgserver.Leave(db, err)
		f.log.WarnContext(ctx, "the follower failed; retrying", "error", err)
		if err := rpc.Sleep(ctx, rpc.Backoff(failures, 0)); err != nil {
			return err
		}
		failures++
	}
}

// applyError is an error of the caller's function, which ends Into unless the database caused it.
type applyError struct{ error }

func (e *applyError) Unwrap() error { return e.error }

// passes reports whether following should go on after an error.
func passes(err error) bool {
	if _, diverged := errors.AsType[*DivergedError](err); diverged || errors.Is(err, failure.ErrClosed) {
		return false
	}
	if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgserver.Passes(err)
	}
	if failed, ok := errors.AsType[*failure.Error](err); ok {
		return failed.IsTemporary()
	}
	if _, own := errors.AsType[*applyError](err); own {
		return false
	}
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	return connecting || errors.Is(err, errDatabase) || errors.Is(err, errOvertaken)
}

var (
	errDatabase  = errors.New("the connection to the database broke")
	errOvertaken = errors.New("another process has applied the block")
)

// follower is one call of Into.
type follower struct {
	ledger *client.Client
	db     *pgxpool.Pool
	scope  *seqledgerv1.Scope
	fn     Apply
	name   string
	log    *slog.Logger

	applied uint64 // the height that this process last knew
}

func newFollower(
	ledger *client.Client, db *pgxpool.Pool, scope *seqledgerv1.Scope, fn Apply, o Options,
) *follower {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &follower{ledger: ledger, db: db, scope: scope, fn: fn, name: o.Name, log: o.Logger}
}

// arguments are those of a statement about this follower.
func (f *follower) arguments(more ...any) []any {
	return append([]any{f.name, f.scope.GetOrganization(), f.scope.GetVault()}, more...)
}

// run applies blocks until an error.
func (f *follower) run(ctx context.Context) error {
	last, err := f.position(ctx)
	if err != nil {
		return databaseError(err)
	}
	f.applied = last.height
	if err := f.checkChain(ctx, last); err != nil {
		return err
	}
	request := &seqledgerv1.WatchRequest{Scope: f.scope, FromHeight: last.height + 1}
	for block, err := range f.ledger.Watch(ctx, request) {
		switch {
		case errors.Is(err, failure.ErrOtherLedger):
			return f.diverged(ctx)
		case err != nil:
			return err
		case last.height > 0 && !bytes.Equal(block.GetHeader().GetPreviousHash(), last.hash):
			return f.diverged(ctx)
		}
		if err := f.apply(ctx, last, block); err != nil {
			return err
		}
		last = position{block.GetHeader().GetHeight(), block.GetHash()}
		f.applied = last.height
	}
	return ctx.Err()
}

// position is the last block that was applied; the zero value is none.
type position struct {
	height uint64
	hash   []byte
}

// position reads where the follower stands, and makes its row if there is none.
func (f *follower) position(ctx context.Context) (p position, err error) {
	_, err = f.db.Exec(ctx, `INSERT INTO seqledger_follow (follower, organization, vault, height)
		VALUES ($1, $2, $3, 0) ON CONFLICT DO NOTHING`, f.arguments()...)
	if err != nil {
		return position{}, err
	}
	return readPosition(ctx, f.db, f, "")
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row
}

// readPosition reads the position. lock is what follows the statement.
func readPosition(ctx context.Context, q querier, f *follower, lock string) (p position, err error) {
	err = q.QueryRow(ctx, `SELECT f.height, coalesce((SELECT hash FROM seqledger_follow_blocks b
		WHERE (b.follower, b.organization, b.vault, b.height) = (f.follower, f.organization, f.vault, f.height)), '')
		FROM seqledger_follow f WHERE (f.follower, f.organization, f.vault) = ($1, $2, $3) `+lock,
		f.arguments()...).Scan(&p.height, &p.hash)
	return p, err
}

// kept is how many of the last hashes are kept; of earlier ones every kept-th is, so that the table stays small and
// diverged still finds a common block.
const kept = 1000

// boundIdle makes PostgreSQL end a transaction from which it hears nothing, unless the database has a bound of its own.
const boundIdle = `SELECT set_config('idle_in_transaction_session_timeout', '5min', true)
	WHERE current_setting('idle_in_transaction_session_timeout') = '0'`

// apply commits the effects of a block together with the position.
func (f *follower) apply(ctx context.Context, last position, block *seqledgerv1.Block) error {
	height := block.GetHeader().GetHeight()
	err := pgx.BeginFunc(ctx, f.db, func(tx pgx.Tx) error {
		// The lock keeps other processes from applying a block, and must not outlive a machine that hangs.
		if _, err := tx.Exec(ctx, boundIdle); err != nil {
			return err
		}
		at, err := readPosition(ctx, tx, f, "FOR UPDATE OF f")
		if err != nil {
			return err
		}
		// Another process has applied blocks since: run begins anew rather than apply one twice.
		if at.height != last.height || !bytes.Equal(at.hash, last.hash) {
			return errOvertaken
		}
		if err := f.fn(ctx, tx, block); err != nil {
			if tx.Conn().IsClosed() {
				return err // the database's
			}
			return &applyError{err}
		}
		batch := new(pgx.Batch)
		batch.Queue(`UPDATE seqledger_follow SET height = $4
			WHERE (follower, organization, vault) = ($1, $2, $3)`, f.arguments(height)...)
		batch.Queue(`INSERT INTO seqledger_follow_blocks (follower, organization, vault, height, hash)
			VALUES ($1, $2, $3, $4, $5)`, f.arguments(height, block.GetHash())...)
		if height > kept && (height-kept)%kept != 0 {
			batch.Queue(`DELETE FROM seqledger_follow_blocks
				WHERE (follower, organization, vault, height) = ($1, $2, $3, $4)`, f.arguments(height-kept)...)
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	return databaseError(err)
}

// databaseError marks an error that is neither the server's nor the caller's: the connection broke, so that
// whether a commit was made is not known. The position says it.
func databaseError(err error) error {
	if err == nil || errors.Is(err, errOvertaken) {
		return err
	}
	_, own := errors.AsType[*applyError](err)
	if _, server := errors.AsType[*pgconn.PgError](err); own || server {
		return err
	}
	return fmt.Errorf("%w: %w", errDatabase, err)
}

// checkChain checks that the ledger has the block that was applied last. A ledger with fewer blocks would
// otherwise be noticed only when it has grown again.
func (f *follower) checkChain(ctx context.Context, last position) error {
	if last.height == 0 {
		return nil
	}
	has, err := f.has(ctx, last)
	if err != nil || has {
		return err
	}
	return f.diverged(ctx)
}

// has reports whether the ledger has a block.
func (f *follower) has(ctx context.Context, p position) (bool, error) {
	request := &seqledgerv1.ListBlocksRequest{Scope: f.scope, FromHeight: p.height, PageSize: 1}
	for block, err := range f.ledger.ListBlocks(ctx, request) {
		if err != nil {
			return false, err
		}
		return block.GetHeader().GetHeight() == p.height && bytes.Equal(block.GetHash(), p.hash), nil
	}
	return false, nil
}

// diverged finds the last block that ledger and database have in common, and returns the error that says it.
func (f *follower) diverged(ctx context.Context) error {
	rows, err := f.db.Query(ctx, `SELECT height, hash FROM seqledger_follow_blocks
		WHERE (follower, organization, vault) = ($1, $2, $3) ORDER BY height`, f.arguments()...)
	if err != nil {
		return databaseError(err)
	}
	known, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p position, err error) {
		return p, row.Scan(&p.height, &p.hash)
	})
	if err != nil {
		return databaseError(err)
	}
	if len(known) == 0 {
		return &DivergedError{}
	}
	var failed error
	// Each block names the one before by its hash, so that all before a common one are common.
	first := sort.Search(len(known), func(i int) bool {
		has, err := f.has(ctx, known[i])
		failed = errors.Join(failed, err)
		return !has
	})
	if failed != nil {
		return failed
	}
	e := &DivergedError{Applied: known[len(known)-1].height}
	if first > 0 {
		e.Common = known[first-1].height
	}
	return e
}

// Rewind sets the position back within the caller's transaction, in which the caller undoes the effects of the
// blocks after the height. That is one of a [*DivergedError], 0, or another whose hash is kept.
func Rewind(ctx context.Context, tx pgx.Tx, scope *seqledgerv1.Scope, height uint64, o Options) error {
	f := newFollower(nil, nil, scope, nil, o)
	tag, err := tx.Exec(ctx, `UPDATE seqledger_follow SET height = $4
		WHERE (follower, organization, vault) = ($1, $2, $3) AND height >= $4::bigint
		AND ($4::bigint = 0 OR EXISTS (SELECT FROM seqledger_follow_blocks
			WHERE (follower, organization, vault, height) = ($1, $2, $3, $4)))`, f.arguments(height)...)
	if err != nil {
		return err
	}
	if tag.RowsAffected() != 1 {
		return fmt.Errorf("height %d was not applied here, or its hash is not kept", height)
	}
	_, err = tx.Exec(ctx, `DELETE FROM seqledger_follow_blocks
		WHERE (follower, organization, vault) = ($1, $2, $3) AND height > $4`, f.arguments(height)...)
	return err
}
