// Package postgres keeps the records of idempotency keys in PostgreSQL, version 13 and later.
//
//	store, err := postgres.Open(ctx, "postgres://app@db.example.com/shop", postgres.Options{})
//	defer store.Close()
//	handler = idempotency.Middleware(store, options)(handler)
//
// Create the table and the sequence once, with [Init] or seqledger store init URL; [Schema] returns the statements.
// They are in the first schema of the search_path, which the URL may set (?search_path=keys).
//
// # How it decides
//
// The store reads a record, applies the rules of package idempotency, and writes the record in one statement if its
// version has not changed since the read. That compare-and-swap is the only mutual exclusion. Advisory locks are not
// used, because they belong to a session: they end with a broken connection while the owner still works, they do not
// survive a restart, and in PgBouncer's transaction mode the client cannot tell which session holds one. A record
// with a lease and a fencing token has none of these problems. Tokens come from a sequence, and times from the server's
// clock.
//
// NOTIFY wakes a caller that waits for another owner. The caller also polls once a second, so that a lost notification
// only delays it. A change is notified only while a caller waits, because a NOTIFY makes PostgreSQL serialize commits.
//
// # In the caller's own transaction
//
// [Store.WithTx] returns a store within a transaction: reservation, effect and result commit together or not at all.
// The outcome is then never unknown, however the process ends. That holds only for effects in the same database.
//
// # Durability
//
// Records are as durable as PostgreSQL's commits. On each new connection the store refuses a server that acknowledges
// before it has stored (fsync or synchronous_commit off), a standby, and a role that lacks a privilege. A server that
// becomes read-only or shuts down is left: the pool closes its connections, and new ones go where the address leads. So
// a failover that keeps the address needs no restart. A failover to an asynchronous standby loses whatever had not
// reached it, keys and tokens as well as everything else in the database; with synchronous standbys it loses nothing.
//
// PgBouncer's transaction mode is supported: the store uses no prepared statements unless the URL asks for them with
// default_query_exec_mode. Notifications do not pass through it. Options.ListenURL (listen_url in the URL) gives the
// server's own address for them; without it waiting callers poll.
//
// The table grows with the keys in use; Options.MaxOpen bounds the open ones of a principal.
//
// # Why the table is not partitioned by day
//
// Dropping the partition of a day would be cheaper than deleting expired rows. But PostgreSQL enforces unique keys only
// within a partition, unless the partition is chosen by the key itself: the INSERT … ON CONFLICT DO NOTHING of two
// owners, one on each side of midnight, would both succeed. Also, the time until which a record is kept changes with
// every extended lease and with the result, so each would move a row between partitions, and an update that moves a row
// fails for the others that wait for it. And a partition can be dropped only when nothing in it is pending or unknown,
// which takes up to 60 days. So expired rows are deleted through an index, a thousand per statement, skipping locked
// rows.
package postgres
