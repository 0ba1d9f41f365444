// Package client is the Go client of seqledger.
//
// [Client] makes calls: reads, sessions, and writes that the caller numbers
// itself. [Writer] is what most programs want: a stream of writes for one
// (scope, client id) that numbers them, pipelines them, and carries each to its
// outcome through lost answers, broken connections and restarts of the server.
//
//	c, err := client.New(client.Options{Server: "127.0.0.1:7450"})
//	w, err := c.NewWriter(ctx, client.WriterOptions{Scope: scope, ClientID: "billing-1"})
//	receipt, err := w.Write(ctx, client.Append(invoice), client.Set("invoice/7", total, client.IfAbsent()))
//
// # What an application may conclude
//
//   - A receipt: the write is committed, once, and durable.
//   - [ErrNotExecuted]: it was not executed and never will be. Submitting the
//     same operations again is a new write and cannot double the old one.
//   - [ErrOutcomeUnknown]: the outcome is not known on this side. While the Writer
//     lives it still settles the write: the error has the [Pending] to wait on. Once
//     the Writer has ended, [UnsettledError] lists such writes.
//   - journal.ErrTagInUse, of [Writer.SubmitTagged] alone: this is no new write. The
//     one that has the tag is under way or committed.
//
// No error of a Writer means anything else, so an application never guesses.
// [Client.Write] has the same errors, but each is about the copies that this one call
// has sent: its caller numbers the writes, and knows what it sent before.
//
// # After a refusal
//
// When write n is refused (a condition failed, say) the writes behind it are not
// executed either: they were submitted in the belief that n commits. The Writer
// reports n with the refusal and the others with a [StoppedError], and takes nothing
// more until [Writer.Resume]: going on by itself would run later writes on top of a
// hole. After Resume the next write takes number n.
//
// Between calls of [Writer.Write] nothing has to stop. Each caller waits for its write
// and learns of the refusal before it does anything else, so the Writer goes on by
// itself when n and all behind it came from Write and are still waited for.
//
// # Why a refusal is final when it is reported
//
// The ledger decides a request when it is applied, and a refusal changes
// nothing: the same request may succeed a moment later, because conditions
// change and gaps fill. So what matters is whether a *copy* of the request can
// still be under way. Suppose n was refused and n+1 sent behind it:
//
//   - Each was sent once, on one stream that stayed up, and each was answered
//     with a decision. The server decides a stream's writes in order, so no
//     copy exists and the numbers are free.
//   - n was sent twice, because a connection broke. The refusal answers one
//     copy; the other may be in a queue of a server and commit later. The same
//     holds after OUTCOME_UNKNOWN, which says that a proposal may be in the log.
//   - n was sent once and refused, and then the connection broke before n+1 was
//     answered. n cannot come back. But a new write that takes number n fills
//     the gap, and the old n+1 then commits, although it was reported as not
//     executed.
//
// So a write counts as doubtful when it was sent more than once, when its
// stream broke before the answer, or when the answer left the outcome open. If
// the write that was refused, or any behind it, is doubtful, the Writer opens a
// new session before it reports anything. Sessions are opened in the same log
// as writes: every copy is either applied before, and then shows in
// last_committed_sequence, or after, and then it is fenced for ever. It opens
// with expected_session, so that all commits since are known to be its own. If
// last_committed_sequence has reached n, then n did commit, through a copy; it
// is sent again under the new session, which answers with the receipt, and the
// writes behind it go on. Otherwise neither n nor anything behind it can have
// committed, because sequences have no holes: the refusal is final.
//
// A commit needs none of this: nothing undoes it. A commit *behind* a refused
// write proves that the refused one committed through a copy, and is treated
// like a doubtful write. Writes are settled in order, so an application never
// sees n+1 committed while n is open.
//
// Every copy has the same bytes, because Submit encodes the operations and the Writer
// keeps nothing else. Which of several servers a copy went to makes no difference to
// the argument: all of them write one log.
//
// # Rounds
//
// A Writer works in rounds. In a round it sends each write once, in order. The
// first answer that is not a commit, or the loss of the stream, halts it; once
// everything it has in flight is answered or lost, it looks at all answers
// together (resolve, in settle.go) and either starts a new round with what is
// open, under the same numbers and keys, or opens a session, or stops, or ends.
//
// # How a Writer ends
//
// Only the ledger can end one: with a WriteError, with answers that contradict each
// other, or by refusing the token for a minute, which decides no write. [Writer.Done] and
// [Writer.Err] tell. What something between says (a load balancer without a server
// behind it answers 401, 403 or 404 for half a second) is waited out.
//
//   - [ErrFenced]: another process opened a session on the stream.
//   - [ErrExpired]: the stream was evicted while writes were unanswered. An
//     idle Writer whose stream is gone opens it again by itself. An idle Writer
//     also keeps its stream alive, every third of client_ttl.
//   - [ErrProtocol]: answers that show other writes than this Writer's under
//     its session, or another ledger. ALREADY_COMMITTED counts as a commit
//     only of a write that was sent before; of a first and only copy it means
//     that another client took the number. Receipts name their ledger, which
//     cannot change while a session lives.
//   - A number or key that the ledger knows with other contents, a session
//     required, a sequence exhausted, a permission that is missing.
//   - [ErrUnauthenticated], once the ledger itself has refused the token for a minute.
//     Options.Token is asked for each stream that is opened, so a token that is renewed
//     ends nothing.
//   - Close, of the Writer or of the Client, and Shutdown.
//
// A write that a server takes in no message, because it allows fewer bytes than others,
// is refused; what travelled in one message with it is sent again in smaller ones.
//
// A program that keeps [WriterState].Session can open its next Writer with
// ExpectedSession and so learn whether anyone wrote in between.
//
// # Which answers are repeated
//
// A call is repeated, with the same bytes, until its context ends (or
// Options.MaxAttempts is reached). Every call may be: writes and sessions are recognised
// by sequence, key and attempt_id, UpdateConfig sets values and never adds to them. A
// WriteError decides by its code: QUEUE_FULL, NOT_LEADER, DRAINING and OUTCOME_UNKNOWN
// are repeated, all others are the answer. Without a WriteError it is the code of the
// call:
//
//	code                 repeated  why
//	canceled             yes       a proxy or the server gave up; the caller has not
//	unknown              yes       an answer that broke off, or says nothing
//	deadline_exceeded    yes       a time limit on the way; the caller's own is not over
//	resource_exhausted   yes       as many requests as the server takes
//	aborted              yes       a proxy's word for "again"
//	internal             yes       the server failed; the next one, or a restart, may not
//	unavailable          yes       no connection, no server, a server that goes away
//	unauthenticated      once      if Options.Token returns another token by then
//	invalid_argument     no        the same request is as wrong the next time
//	permission_denied    no        an operator has to change something first
//	unimplemented        no        another program, or an older server
//	not_found, already_exists, failed_precondition, out_of_range, data_loss
//	                     no        the answer
//
// An answer that is not in Connect's form is something between's. It is repeated when
// its HTTP status is 408, 425, 429 or from 500 on, except 501 and 505; other statuses
// tell of a wrong address or a missing right, and the caller should hear of that at
// once. A certificate that is not trusted is told at once, too. A Writer, which has no
// caller that waits, repeats all of these until it is closed.
//
// Only a WriteError decides a write. What a call does not repeat is told to its caller,
// who can correct the token, the address or the request, and then call again with the same
// sequence and key.
//
// A write counts as perhaps executed when any of it may have been sent and the answer
// was not the ledger's decision, or a refusal in Connect's form of the whole call
// (unauthenticated, permission_denied, unimplemented, invalid_argument). What was never
// sent, because no connection could be had, is not executed.
//
// # Connections
//
// Calls go over HTTP/1.1 connections that are kept open, up to 256 for each server;
// further calls wait for one. The caller's own goroutine writes the request and reads
// the answer, which takes about half of the time that HTTP/2 takes, on both sides. Over
// TLS the server says whether it speaks HTTP/1.1, in cleartext it is asked once (with
// OPTIONS, which executes nothing); where it does not, and through a proxy of the
// environment, calls go over HTTP/2. So do Watch and Backup.
//
// All Writers of a Client share one WriteStream. It has a connection to itself
// where the server gives it one (an HTTP/1.1 upgrade to "seqledger-direct", which
// saves the wake-ups of HTTP/2), else a stream of an HTTP/2 connection. A server that
// refuses the upgrade, or does not answer it within a second, is not asked again for
// five minutes. Options.HTTP2 turns off both, the upgrade and HTTP/1.1 for calls.
//
// One goroutine sends on the stream: a frame is whatever waits while the one before is
// being sent, without timers. A write that finds nothing under way goes out from its
// caller's own goroutine. One receives and matches results with writes by their order. A
// Writer has at most receipt_window writes unanswered, so that a repeat of the oldest
// still finds its receipt; Submit blocks when it has as many. A small write may go ahead
// of a large one that waits for room, but no more than 64 do. When a server answers that
// it cannot take a write now (DRAINING, NOT_LEADER, QUEUE_FULL, OUTCOME_UNKNOWN) the
// stream takes nothing more, ends once everything on it is answered, and is opened again
// after a pause, to the next server if there are several; that pause is shared by all
// Writers.
//
// Frames are put together of what Submit has encoded. Other writes, and the answers, are
// encoded and decoded by code that is generated for them (vtprotobuf, the methods that
// end in VT), because walking messages by reflection took a good part of this package's
// time. Everything else is left to package proto, and so is every write for which the
// generated code would give other bytes, and every answer that has text which is not
// UTF-8: codec.go looks for those, so that it makes no difference to an application
// which of the two was used.
//
// # A journal
//
// With [WriterOptions].Journal every write is on disk before it is sent, and a
// program that crashed goes on where it was. A journal.File holds any number of
// streams; all Writers of a process share one, and with it each fsync.
//
// The next NewWriter opens a session that only succeeds if the journal's was
// still the stream's. Then nobody else has written: what the ledger has
// committed is done, and the rest is sent again under the new session, with the
// same numbers and keys. [Writer.Recovered] has them all. If the stream was
// evicted, taken over, or belongs to another ledger (the server's id is asked
// for before anything is sent), NewWriter sends nothing and returns an
// [UnsettledError] with the open writes; they stay in the journal until the
// application calls journal.File.Forget.
//
// For its own work to happen once too, an application gives each write a tag,
// its own name for it ([Writer.SubmitTagged]), and keeps to this order:
//
//  1. Note durably what is intended.
//  2. Submit it under its tag, and wait for the outcome.
//  3. Note the outcome durably.
//  4. [Pending.Acknowledge]: only now the journal forgets the write.
//
// After a restart it goes through [Writer.Recovered] from step 3 on: those
// outcomes it may not have seen. Whatever else it intends and has no outcome
// for, it submits: a tag that is neither in the journal nor noted was never
// sent, or was reported as not executed and is out of the journal since before
// that report. Directory till is a program that works so.
//
// A tag that is submitted a second time is refused with journal.ErrTagInUse while
// its write is in the journal, and for journal.Options.RememberTags (24 hours) after
// it was acknowledged. So a program that notes nothing itself and is run twice does
// its work once. What must hold for longer it has to note: the memory has a bound.
//
// What has to be known beside: a Writer that ends with a journal reports no
// write as not executed, because the next one may send it; and when the journal
// is full, Submit waits until outcomes are acknowledged, so that a program which
// submits and never acknowledges waits for ever.
//
// A journal that is lost or put back from a copy is the one thing that it cannot
// make good. A lost one is recognised by journal.Options.MustExist. A copy is
// refused when a session was opened since it was made. One from within the last
// session is recognised when the ledger has committed more than it knows, or
// something else under its numbers: the next Writer sends nothing beyond what is
// committed already until the receipts show that those commits are its own. It
// is not recognised when nothing was committed since that it does not know: then
// what it holds is sent again, also a write that was refused, reported as not
// executed and taken out of the journal after the copy was made. So do not
// restore a journal from a copy; when it is gone, find out from the ledger what
// was committed and begin a new one.
//
// A journal is a journal.File and nothing else: it is written to for each write while
// all Writers wait, which a database could not bear, and no program has needed another.
//
// # Large blocks
//
// A server refuses to send a block that is too large for one message. [Client.GetBlock],
// [Client.Watch] and [Client.GetTransaction] therefore ask for parts of less than 3 MiB
// and join them: what they return is whole, and in memory as a whole. A part that does
// not begin where the one before ended, or is of another block or transaction, is an
// [ErrProtocol]. Proofs and hashes are checked of what was joined.
//
// # Proofs
//
// A receipt or a transaction that was asked for with include_proof comes with
// the header of its block and a Merkle proof. [VerifyTransaction] and
// [VerifyReceipt] check them without believing the server anything, and
// [BlockHash] gives the hash by which the block is known to others. [Client.Watch]
// checks that each block follows from the one before.
package client
