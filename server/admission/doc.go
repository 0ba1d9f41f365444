// Package admission owns the server's bounds: how much all callers may have under way together, how much of that is the
// share of one credential, what is allowed before a caller is known, and how long the server waits for a client.
//
// Three rules:
//
//   - Excess is refused at once, with a time after which to retry. No caller waits for
//     another caller's client. The remaining waits (a stream for its own rate and room,
//     a read for its own reads and for the processor) depend only on the credential
//     itself, and on work, which ends.
//   - Every credential has a share of every bound, so four credentials that use their
//     whole shares do not affect each other. The auth file sets the shares. Without one
//     there are none, because callers cannot be distinguished.
//   - Before a caller is known, bounds apply to each connection, to each address and in
//     total, and the oldest is closed for the newest.
//
// # The bounds
//
// "Total" applies to all callers, "share" to one credential. A share is a quarter of the total unless the auth file
// sets it (the field is in parentheses). A refusal is resource_exhausted with a WriteError QUEUE_FULL and RetryInfo.
// seqledger_gate_refusals_total counts refusals by the name in brackets.
//
//	bound                          total                 share              beyond it
//	---------------------------------------------------------------------------------
//	requests under way [requests]  Options.MaxRequests   (requests)         refused
//	                               4,096                 1,024
//	requests begun a second        –                     (requests_per_     refused
//	[requests_per_second]                                second) no limit
//	open streams [streams]         Options.MaxStreams    (streams)          refused
//	                               1,024                 256
//	open connections               Options.MaxConnec-    (connections)      share: the request is refused
//	[connections]                  tions 16,384, or less 4,096              and its connection closed; total:
//	                               with few files (see                      the oldest unknown one is closed,
//	                               package listen)                          or else the new one
//	large messages that arrive     128 MiB               (message_bytes)    unary: refused; stream: waits for
//	[message_bytes]                                      32 MiB             its own, refused by the total
//	large answers that are sent    128 MiB               (message_bytes)    unary: refused; Watch: waits for
//	[answer_bytes]                                       32 MiB             its own, refused by the total
//	reads that make their answers  32                    (reads) 8          wait for their own, then for the
//	                                                                        processor
//	writes a second                –                     (writes_per_       unary: refused; stream: slowed
//	[writes_per_second]; of more                         second) 25,000
//	than a KiB: for each whole one
//	writes in the engine           the ledger's queue,   2 MiB, and one     unary: refused; stream: waits for
//	[queued_bytes]                 64 MiB                write in any case  its own
//	stored bytes [stored_bytes]    –                     (stored_bytes) no  refused
//	                                                     limit; a quarter
//	                                                     of all when the
//	                                                     disk is tight
//	free disk space                Options.DiskReserve   –                  writes are refused; below twice
//	[disk_reserve]                 1 GiB, or a                              the reserve the disk is tight
//	                               twentieth of it
//
// Before a caller is known (see connections.go and visits.go):
//
//	bound                          of all   of an address  of a connection  beyond it
//	---------------------------------------------------------------------------------
//	connections on which no caller 1,024    256            –                the oldest is closed; the newest, if
//	was authenticated                                                       the oldest is less than 50 ms old
//	health checks, and requests    256      128            32               the oldest is cut, and its connection
//	that are refused                                                        closed if it has no caller yet
//
// How long the server waits (see deadlines.go and streamcontrols.go):
//
//	for what                                                          how long
//	--------------------------------------------------------------------------
//	a request on a connection without an authenticated caller         15 s
//	the body of a request whose caller is not known                   5 s
//	the answer to such a request to be taken                          10 s
//	the body of a request; the rest of a large message of a stream    30 s
//	an answer to a read to be taken                                   30 s
//	any other request, from its first byte to the last of its answer  5 min
//	a message of a stream to be taken                                 2 min
//
// # What is charged
//
// A message of more than 4 KiB is charged three times its size as it arrives, because it is in memory as received,
// decoded, and encoded for the log. Announced bytes that were not sent cost nothing. A compressed message is charged
// its maximum decompressed size once it has arrived. An answer of more than 16 KiB is charged twice its size until it
// is sent. Stored bytes are about what the disk keeps of each command, sessions and keyed records included (the
// server's charge.go); a repeat or a refusal stores nothing. What was begun may be finished beyond them, with up to 64
// MiB. They are stored in a file (see accounts.go); a kill loses the counts of the last five seconds.
//
// A credential of which more than 64 large writes a second are refused has the next ones read later, by up to a second
// each: flow control stops a client that repeats without a pause.
//
// A write is in the engine until it is decided, also when its caller has disconnected. So goroutines that wait for
// decisions without a caller are bounded by the bytes in the engine, and end with the decisions.
package admission
