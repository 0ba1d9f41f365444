// Package postgres keeps the records of idempotency keys in PostgreSQL, version 13 and later.
//
//	store, err := postgres.Open(ctx, "postgres://app@db.example.com/shop", postgres.Options{})
//	defer store.Close()
//	handler = idempotency.Middleware(store, options)(handler)
//
// The table and the sequence are made once, by [Init] or by seqledger store init URL; [Schema] has
// the statements. They are in the first schema of the search_path, which the URL may set
// (?search_path=keys).
//
// # How it decides
//
// The store reads a record, decides by the rules of package idempotency, and writes the record in one
// statement if its version is still the one that was read. That compare-and-swap is the only
// exclusion. Advisory locks are not used: they belong to a session, so that they end with a
// connection that breaks while its owner still works, they do not survive a restart, and behind
// PgBouncer's transaction mode the client cannot tell which session holds one. A record with a lease and a fencing
// token has none of these problems. Tokens come from a sequence, and times from the server's clock.
//
// A caller that waits for another owner is woken by NOTIFY, and polls once a second besides, so that a
// lost notification delays it and no more. A change is notified only while a caller waits,
// because a NOTIFY makes PostgreSQL commit one transaction after the other.
//
// # In the caller's own transaction
//
// [Store.WithTx] returns a store within a transaction: reservation, effect and result commit
// together, or none of them does. Nothing is unknown then, however the process ends. That holds for
// effects in the same database, and for no others.
//
// # Durability
//
// What PostgreSQL has committed. The store is refused at the start by a server that acknowledges
// before it has stored (fsync or synchronous_commit off), and by a standby. A failover to an
// asynchronous standby loses what had not reached it, keys and tokens as well as everything else in the
// database; with synchronous standbys it loses nothing.
//
// PgBouncer's transaction mode is supported: no prepared statements are used unless the URL asks for them with
// default_query_exec_mode. Notifications do not pass it; Options.ListenURL (listen_url in the URL) names the server
// itself for them, and without it callers that wait poll.
//
// The table grows with the keys that are in use; Options.MaxOpen bounds the open ones of a principal.
//
// # Why the table is not partitioned by day
//
// Deleting expired records by dropping the partition of a day would be cheaper than deleting rows. But PostgreSQL
// keeps a key unique within a partition alone, unless the partition is chosen by the key itself: the INSERT … ON
// CONFLICT DO NOTHING of two owners, one on each side of midnight, would both succeed. The time until which a record
// is kept also changes with every extended lease and with the result, so that each would move a row between
// partitions, and an update of a row that moves fails for the others that wait for it. And a partition can only be
// dropped when nothing in it is pending or unknown, which waits for up to 60 days. So rows are deleted, a thousand in
// a statement, by an index, past rows that are locked.
package postgres
