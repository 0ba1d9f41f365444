package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/internal/pgserver"
)

// WithTx returns a store within a transaction, which the caller begins and ends. A reservation, the work and its result
// commit together. If the transaction is rolled back, or the process ends, the key is free again and nothing has
// happened:
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		pay := func(ctx context.Context, _ *idempotency.Owner) ([]byte, error) {
//			_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - $1 WHERE id = $2", amount, id)
//			return []byte("done"), err
//		}
//		done, err = idempotency.Do(ctx, store.WithTx(tx), key, pay)
//		return err
//	})
//
// A caller with the same key waits in its reservation until the first transaction has ended, or until its context ends
// (with [idempotency.Do], after Settings.StoreTimeout), and then gets the result. Two transactions that reserve two
// keys in different orders deadlock; PostgreSQL resolves that by failing one.
//
// In a repeatable read or serializable transaction, PostgreSQL fails the call that lost a race; retry the whole
// transaction, as for any other serialization failure. An error of the store leaves the transaction in the failed
// state: roll it back.
//
// A reservation that waits for another transaction until its own lease or validity is over fails, and so does its
// transaction.
//
// The table must be in the search_path of the transaction. The store must not be used after the transaction, nor while
// the caller uses tx in another goroutine. Only the heartbeats of a reservation made in the same transaction may come
// at any time, because no other transaction sees that reservation yet.
func (s *Store) WithTx(tx pgx.Tx) idempotency.Store {
	b := &txBackend{tx: tx, changed: map[string]bool{}, pool: s.backend.pool}
	return &txStore{Store: idempotency.NewStore(b), reserved: map[idempotency.AttemptID]uint64{}}
}

// txStore is a store within a transaction.
type txStore struct {
	idempotency.Store

	mu       sync.Mutex
	reserved map[idempotency.AttemptID]uint64 // tokens of the reservations made in this transaction
}

// Reserve implements idempotency.Store.
func (s *txStore) Reserve(
	ctx context.Context, request *idempotency.ReserveRequest,
) (*idempotency.Reservation, error) {
	r, err := s.Store.Reserve(ctx, request)
	if err == nil && r.Outcome == idempotency.Acquired {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reserved[request.AttemptID] = r.Token
	}
	return r, err
}

// Heartbeat implements idempotency.Store. No other transaction sees the lease of an uncommitted reservation. So a
// heartbeat for one runs no statement, because the caller may be using the transaction.
func (s *txStore) Heartbeat(
	ctx context.Context, owner *idempotency.Ownership, lease time.Duration,
) (*idempotency.Answer, error) {
	s.mu.Lock()
	token, own := s.reserved[owner.AttemptID]
	s.mu.Unlock()
	if lease < 0 || !own || token != owner.Token {
		return s.Store.Heartbeat(ctx, owner, lease)
	}
	if lease == 0 {
		lease = idempotency.DefaultLease
	}
	return &idempotency.Answer{Outcome: idempotency.OK, Expires: time.Now().Add(lease)}, ctx.Err()
}

// txBackend is an idempotency.Backend within a transaction. It announces no wait and receives no notifications, because
// an announcement would lock the record that another owner wants to finish.
type txBackend struct {
	tx   pgx.Tx
	pool *pgxpool.Pool // which tx may be of
	// changed holds the records that this transaction has changed, and so has locked until its end.
	changed map[string]bool
}

// Load implements idempotency.Backend.
func (b *txBackend) Load(ctx context.Context, key idempotency.Key) ([]byte, string, time.Time, error) {
	record, version, now, err := load(ctx, b.tx, key)
	return record, version, now, pgserver.Leave(b.pool, err)
}

// CompareAndSwap implements idempotency.Backend.
func (b *txBackend) CompareAndSwap(
	ctx context.Context, key idempotency.Key, version string, record []byte, keepUntil, deadline time.Time,
) (bool, error) {
	if version == "" || b.changed[key.Name] {
		// A swap that is late because it waited for another caller's transaction fails this transaction. A savepoint
		// would avoid that, but would cost every reservation two round trips.
		swapped, err := swap(ctx, b.tx, key, version, record, keepUntil, deadline)
		b.changed[key.Name] = b.changed[key.Name] || swapped
		return swapped, pgserver.Leave(b.pool, err)
	}
	// An update that waits for another one and then does not match leaves the record locked. The owner could not finish
	// the record while this transaction waits for that. The end of the savepoint unlocks it.
	inner, err := b.tx.Begin(ctx)
	if err != nil {
		return false, err
	}
	swapped, err := swap(ctx, inner, key, version, record, keepUntil, deadline)
	if late(err) {
		return false, inner.Rollback(ctx)
	}
	if err != nil || !swapped {
		return false, errors.Join(pgserver.Leave(b.pool, err), inner.Rollback(ctx))
	}
	b.changed[key.Name] = true
	return true, inner.Commit(ctx)
}

// Confirm implements idempotency.Confirmer. It makes the transaction write, so that its commit waits for standbys.
func (b *txBackend) Confirm(ctx context.Context, key idempotency.Key, version string) (bool, error) {
	confirmed, err := confirm(ctx, b.tx, key, version)
	return confirmed, pgserver.Leave(b.pool, err)
}

// NextToken implements idempotency.TokenSource.
func (b *txBackend) NextToken(ctx context.Context) (uint64, error) {
	token, err := nextToken(ctx, b.tx)
	return token, pgserver.Leave(b.pool, err)
}
