// Package outbox writes rows of a PostgreSQL table to the ledger, each exactly once. An application inserts
// a row in the transaction that changes its own data; a relay sends the row afterwards, and writes the receipt,
// or the refusal, back into it.
//
//	tx, err := db.Begin(ctx)
//	…                                                        // the application's own statements
//	id, err := outbox.Insert(ctx, tx, "", "orders", op.Append(order))
//	err = tx.Commit(ctx)
//
//	relay, err := outbox.NewRelay(ledger, db, outbox.Options{Scope: scope})
//	err = relay.Run(ctx)                                     // here, or in another process
//
// Programs in other languages insert into the table by themselves: a stream, and the operations in the JSON of the API.
//
//	INSERT INTO seqledger_outbox (stream, operations)
//	VALUES ('orders', '[{"append": {"payload": "b25l"}}]');
//
// # Streams and order
//
// The rows of one stream are written one after another, by one client id, and a row is written only after all rows
// before it. Their order is that in which the relay finds them: by id, among the rows that are committed when it looks.
// Two transactions that run at the same time have no order before that. Streams are independent of each other.
//
// # Why a row is written once
//
// The table is the journal of the writes. A row gets its number, its key and the bytes of its write in a transaction
// that ends before anything is sent. The relay sends these bytes under this number until the ledger has decided. The
// ledger commits a number once. A relay that starts, after a crash of the relay, the database or the ledger, opens a
// new session of the stream, with the old one as expected_session: it fences all earlier copies, and succeeds only if
// no other program has written to the stream since. Then it sends the rows with a number and no outcome again.
//
// A refusal is final only after another new session, which fences the copies of the refused row and of later rows that
// may still be under way. If last_committed_sequence has reached the row by then, one of the copies has committed, and
// the row is sent again for its receipt. Otherwise the refusal is final, and its number and the later ones are free.
//
// Each change of a stream's rows by a relay is a transaction that first locks the stream's row and checks that
// the relay still owns the stream. A relay owns a stream for some seconds and renews that. Ownership keeps two
// relays from fencing each other in turns; correctness does not depend on it, nor on any clock. A relay that hangs
// within such a transaction holds the lock; PostgreSQL ends the transaction when it was idle for as
// long as a relay owns a stream (idle_in_transaction_session_timeout, set for the transaction).
//
// The points between two changes have names, in step.go: the tests kill the relay at each of them, restart
// the database and the ledger there, and let another relay overtake one that waits there.
//
// # What stops a stream
//
//   - A refused row, unless Options.Park is set. [Retry] lets the row be written again, [Skip] leaves it out.
//   - Another program that opened a session on the client id, or wrote under it.
//   - A database that was restored from a backup: the ledger has numbers, or a session, that the table did not give.
//     The rows that were written since the backup are new again.
//   - Another ledger than before, such as one that was restored from a backup, which may lack rows that were committed.
//   - A stream that the ledger has evicted (client_ttl) while rows had numbers and no outcome.
//
// After any but the first, compare the open rows with the ledger, say with [Settle] which are committed, and call
// [Resume]. [ReadStatus] lists them. The other streams go on.
//
// # What an eviction hides
//
// The ledger forgets a stream that was idle for client_ttl, which is not an error: the next row begins the stream anew.
// It then cannot say that the table was set back. So a restore of the database is found only if the ledger still has
// the stream. If the newest write that the backup lacks may be older than client_ttl, compare before the relay starts.
// A client_ttl longer than the age of any backup that may be restored avoids that.
package outbox
