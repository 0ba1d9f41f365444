// Package admission owns the server's bounds: what all callers together may have in use, which part of it is the share
// of one credential, what is allowed before a caller is authenticated, and how long the server waits for a client.
//
// Three rules:
//
//   - Excess is refused at once, with a time after which to retry. No caller waits for another caller's client. The
//     remaining waits (a stream for its own rate and memory, a read for other reads) depend on work, which ends.
//   - Every credential has a share of every bound, so four credentials that use their whole shares do not affect each
//     other. The auth file sets the shares. Without one there are none, because callers cannot be distinguished.
//   - Before a caller is authenticated, bounds apply to each connection, to each address and in total, and the oldest
//     is closed for the newest.
//
// # The bounds
//
// "Total" applies to all callers, "share" to one credential. A share is a quarter of the total unless the auth file
// sets it (in the field with the name of the bound). A refusal is resource_exhausted with a WriteError QUEUE_FULL and
// RetryInfo. seqledger_gate_refusals_total counts refusals by the name of the bound. See the table in bounds.go.
//
//	bound                               total                share        beyond it
//	--------------------------------------------------------------------------------------------------------------
//	requests under way                  4,096 (options)      1,024        refused
//	streams that are open               1,024 (options)      256          refused
//	connections that are open           16,384 (options; see 4,096        share: refused, and the connection closed;
//	                                    package listen)                   total: the oldest unknown one is closed, or
//	                                                                      else the new one
//	message_bytes: large messages       128 MiB              32 MiB       unary: refused; stream: waits for its own,
//	being received                                                        refused by the total
//	answer_bytes: large answers         128 MiB              32 MiB       unary: refused; Watch: waits for its own,
//	being sent                          (message_bytes)                   refused by the total
//	reads building their answers        32                   8            wait
//	large_reads among them              all processors but 1 1            wait
//	decodes: messages of more than      all processors but 1 1            wait
//	64 KiB, unfolded, being decoded
//	queued_bytes: writes in the engine  64 MiB, of the       2 MiB, and   unary: refused; stream: waits
//	                                    ledger               one write
//	waiters for other owners' keys      10,000               2,500        refused if the key is in flight
//	requests_per_second that begin      –                    no limit     refused
//	writes_per_second; of more than     –                    25,000       unary: refused; stream: slowed
//	a KiB: for each whole one
//	stored_bytes                        –                    no limit; a  refused
//	                                                         quarter of
//	                                                         all while the
//	                                                         disk is tight
//	disk_reserve: free space            1 GiB, or a          –            writes are refused; below twice the reserve
//	                                    twentieth of less                 the disk is tight
//
// Before a caller is authenticated (see connections.go and visits.go):
//
//	bound                               all      of an address  of a connection  beyond it
//	--------------------------------------------------------------------------------------------------------------
//	connections without an              1,024    256            –                the oldest is closed; the newest, if
//	authenticated caller                                                         the oldest is less than 50 ms old
//	health checks, and requests         256      128            32               the oldest is cut, and its connection
//	that are refused                                                             closed if it has no caller yet
//
// How long the server waits (see deadlines.go and streamcontrols.go):
//
//	for what                                                          how long
//	--------------------------------------------------------------------------
//	a request on a connection without an authenticated caller         15 s
//	the body of a request whose caller is not known                   5 s
//	the answer to such a request to be read                           10 s
//	the body of a request; the rest of a large message of a stream    30 s
//	an answer to a read to be read                                    30 s
//	any other request, from its first byte to the last of its answer  5 min
//	a message of a stream to be read                                  2 min
//
// # What is charged
//
// A message of more than 4 KiB is charged three times its size as it arrives, because it is in memory as received,
// decoded, and encoded for the log. Announced bytes that were not sent cost nothing. A compressed message is charged
// its maximum decompressed size once it has arrived. An answer of more than 16 KiB is charged twice its size until it
// is sent. Stored bytes are about what the disk keeps of each command, sessions and keyed records included (the
// server's charge.go); a repeat or a refusal stores nothing. What was begun may be finished beyond them, with up to 64
// MiB. A kill loses the counts of the last five seconds (see accounts.go).
//
// The large writes of a credential of which more than 64 per second are refused are read later, by up to a second each:
// flow control stops a client that repeats without a pause.
//
// A write is in the engine until it is decided, also when its caller has disconnected. So goroutines that wait for
// decisions without a caller are bounded by the bytes in the engine, and end with the decisions.
package admission
