// Package redis keeps the records of idempotency keys in Redis, version 6.2 and later, or Valkey.
//
//	store, err := redis.Open(ctx, "redis://cache.example.com:6379/0?prefix=shop", redis.Options{})
//	defer store.Close()
//	handler = idempotency.Middleware(store, options)(handler)
//
// # How it decides
//
// The store reads a record, applies the rules of package idempotency, and writes the record with a script if its
// version has not changed since the read. Redis runs a script atomically. All keys of a store have the same hash tag,
// so that the scripts' keys are always in one slot. Times are the server's.
//
// This is not a lock, and not Redlock, which is a lock without a fencing token: a holder that was paused continues
// after its time is over, and nothing can refuse it. Here the record takes the place of the lock: it stays when the
// lease ends, its token grows with every ownership, and a result is accepted only from its owner.
//
// Tokens and versions come from one counter in Redis, which takes the higher of its last value plus one and the
// server's clock in microseconds. So they grow even if Redis loses the counter's last values, unless the clock is set
// back by as much as was lost. A reservation that arrives after its validity, by the server's clock, is not made.
//
// A record is a hash with the fields version, record (as internal/keyed encodes it) and description (in JSON:
// organization, vault, namespace, principal, and the SHA-256 of the client's key; for people and lists). The open keys
// of a principal are also in a sorted set, for Options.MaxOpen.
//
// In a cluster all keys of a store are in one slot, on one master: a cluster lets a store survive the loss of a node,
// but does not make it faster. Stores with different prefixes are on different masters. While the slot moves to another
// node, calls may fail; they are retried with the same attempt.
//
// # What can be lost
//
// A store is as durable as its Redis, and Redis acknowledges writes that it can lose. A lost record is a free key: the
// work runs again.
//
//	appendfsync always                  nothing in a crash or a power failure
//	appendfsync everysec                what was written in the last two seconds before a power failure
//	no append-only file                 what was written since the last snapshot
//	failover to a replica               what the replica did not have; Options.MinReplicas makes that rare
//	failover with MinReplicas           an acknowledged write is on that many replicas, but Sentinel
//	                                    may promote another one
//
// The loss covers the most recent changes, in order, of all keys of the store alike. A key that was reserved in that
// time is free. A key that was finished in it is pending again, until its owner retries storing the result or its lease
// ends; a result that the client already has is then an unknown outcome.
//
// After a failover tokens can also decrease, for a reservation that was lost: if the promoted server did not have the
// counter's last values, and its clock lags the old server's clock by more than the time that was lost. A resource
// that compares tokens then refuses the new owner until the clock has caught up. With MinReplicas that happens only if
// Sentinel promotes a replica that does not have the reservation; keep the clocks of the servers synchronized.
//
// With MinReplicas the retry of an owner's call also waits for the replicas, because the first call may have changed
// the record although it failed.
//
// Each new connection is checked, because an address may lead to another server than at the start, or to one that was
// restarted with other settings. The store logs a warning for each of the first cases that it finds. It refuses a
// server that evicts keys when its memory is full (a maxmemory-policy other than noeviction), and a replica. A server
// that becomes a replica, or loses its master or its cluster, is left: the store uses none of its connections again,
// and makes new ones to where the address leads. Where running work twice is not acceptable, use the ledger or
// PostgreSQL.
//
// A server whose memory is full refuses new keys with an [*idempotency.QuotaError]. It then refuses results, too, which
// the middleware's journal keeps.
package redis
