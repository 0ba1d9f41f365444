// Package writer writes a stream: the writes of one (scope, client id). A [Writer] numbers them, pipelines them, and
// settles each one in spite of lost answers, broken connections and server restarts.
//
//	c, err := client.New(client.Options{Server: "127.0.0.1:7450"})
//	w, err := writer.Open(ctx, c, writer.Options{Scope: scope, ClientID: "billing-1"})
//	receipt, err := w.Write(ctx, op.Append(invoice), op.Set("invoice/7", total, op.IfAbsent()))
//
// # What an application may conclude
//
//   - A receipt: the write is committed, once, and durable.
//   - [failure.ErrNotExecuted]: it was not executed and never will be. Submitting the
//     same operations again is a new write and cannot double the old one.
//   - [failure.ErrOutcomeUnknown]: the outcome is not known on this side. While the Writer lives it still settles the
//     write: the error has the [Pending] to wait on. Once the Writer has ended, [UnsettledError] lists such writes.
//   - journal.ErrTagInUse, from [Writer.SubmitTagged] only: this is not a new write. The
//     one that has the tag is under way or committed.
//
// No error of a Writer means anything else, so an application never guesses.
// The Write of a client.Client has the same errors, but each is about the copies that this one call
// has sent: its caller numbers the writes, and knows what it sent before.
//
// # After a refusal
//
// When write n is refused (a condition failed, for example) the later writes are not executed either, because they may
// depend on n. The Writer reports n with the refusal and the others with a [StoppedError]. It takes no more writes
// until [Writer.Resume]; without that stop, later writes would run although an earlier one is missing. After Resume the
// next write takes number n.
//
// Calls of [Writer.Write] do not need that stop. Each caller waits for its write and gets the
// refusal before it does anything else. The Writer therefore continues without Resume when n
// and all later writes came from Write and their callers still wait.
//
// # Why a refusal is final when it is reported
//
// The ledger decides a request when it is applied, and a refusal changes nothing: the same request may succeed a moment
// later, because conditions change and gaps fill. What matters is whether a *copy* of the request can still be under
// way. Suppose n was refused and n+1 was sent after it:
//
//   - Each was sent once, on one stream that stayed up, and each was answered with a decision. The server decides a
//     stream's writes in order, so no copy exists and the numbers are free.
//   - n was sent twice, because a connection broke. The refusal answers one copy; the other may be in a queue of a
//     server and commit later. The same holds after OUTCOME_UNKNOWN, which says that a proposal may be in the log.
//   - n was sent once and refused, and then the connection broke before n+1 was answered. n cannot come back. But a new
//     write that takes number n fills the gap, and the old n+1 then commits, although it was reported as not executed.
//
// So a write counts as doubtful when it was sent more than once, when its stream broke before the answer, or when the
// answer left the outcome open. If the refused write or any later one is doubtful, the Writer opens a new session
// before it reports anything. Sessions are opened in the same log as writes. A copy that is applied before the new
// session shows in last_committed_sequence; a later copy is fenced. The Writer opens the session with expected_session,
// so all commits since the last one are its own. If last_committed_sequence has reached n, then n did commit, through a
// copy. The Writer sends n again under the new session, gets the receipt, and continues with the later writes.
// Otherwise neither n nor a later write can have committed, because sequences have no holes: the refusal is final.
//
// A commit needs none of this: nothing undoes it. A commit *after* a refused write proves that the refused one
// committed through a copy, and is treated like a doubtful write. Writes are settled in order, so an application never
// sees n+1 committed while n is open.
//
// Every copy has the same bytes, because Submit encodes the operations and the Writer keeps
// nothing else. The argument holds for several servers too, because all of them write one log.
//
// # Rounds
//
// A Writer works in rounds. In a round it sends each write once, in order. The first answer that is not a commit, or
// the loss of the stream, halts it; once everything it has in flight is answered or lost, it looks at all answers
// together (resolve, in settle.go) and either starts a new round with what is open, under the same numbers and keys, or
// opens a session, or stops, or ends.
//
// # How a Writer ends
//
// Only the ledger can end one: with a WriteError, with answers that contradict each other, or by refusing the token for
// a minute, which leaves every write undecided. [Writer.Done] and [Writer.Err] report the end. The Writer waits out
// errors of an intermediary: a load balancer without a live server may answer 401, 403 or 404 for half a second.
//
//   - [failure.ErrFenced]: another process opened a session on the stream.
//   - [failure.ErrExpired]: the stream was evicted while writes were unanswered. An idle Writer whose stream is gone
//     opens it again. An idle Writer also keeps its stream alive, every third of client_ttl.
//   - [failure.ErrProtocol]: answers that show other writes than this Writer's under its session, or another ledger.
//     ALREADY_COMMITTED counts as a commit only of a write that was sent before; of a first and only copy it means that
//     another client took the number. Receipts name their ledger, which cannot change while a session lives.
//   - A number or key that the ledger knows with other contents, a session
//     required, a sequence exhausted, a permission that is missing.
//   - [failure.ErrUnauthenticated], once the ledger itself has refused the token for a minute.
//     client.Options.Token is called for each new stream, so renewing a token does not end a Writer.
//   - Close, of the Writer or of the Client, and Shutdown.
//
// A write is refused when it exceeds the message size of a server with a smaller limit. The
// writes that were in the same message are sent again in smaller ones.
//
// # Sending
//
// One goroutine sends on the stream. While it sends a frame, the writes for the next frame collect; there are no
// timers. A write that finds nothing under way is sent by its caller's own goroutine. Another goroutine receives, and
// matches results with writes by their order. A Writer has at most receipt_window writes unanswered, so that a repeat
// of the oldest still finds its receipt; Submit blocks when it has as many. A small write may go ahead of a large one
// that waits for room, but no more than 64 do. When a server answers that it cannot take a write now (DRAINING,
// NOT_LEADER, QUEUE_FULL, OUTCOME_UNKNOWN) the stream takes nothing more, ends once everything on it is answered, and
// is opened again after a pause, to the next server if there are several; that pause is shared by all Writers.
//
// # A journal
//
// With [Options].Journal every write is on disk before it is sent, and a program continues after a crash. A
// journal.File holds any number of streams; all Writers of a process share one, and with it each fsync.
//
// The next Open opens a session, which succeeds only if the journal's session was still the stream's. Then no other
// process has written: the writes that the ledger has committed are done, and the rest are sent again under the new
// session with the same numbers and keys. [Writer.Recovered] returns all of them. If the stream was evicted, taken
// over, or belongs to another ledger (the server's id is asked for before anything is sent), Open sends nothing and
// returns an [UnsettledError] with the open writes; they stay in the journal until the application calls
// journal.File.Forget.
//
// To do its own work once, too, an application names each write with a tag
// ([Writer.SubmitTagged]) and follows this order:
//
//  1. Note durably what is intended.
//  2. Submit it under its tag, and wait for the outcome.
//  3. Note the outcome durably.
//  4. [Pending.Acknowledge]: only now does the journal drop the write.
//
// After a restart it handles [Writer.Recovered] from step 3 on, because it may not have seen those outcomes. Then it
// submits every other intention that has no outcome. A tag that is neither in the journal nor noted was never sent, or
// was dropped from the journal before it was reported as not executed. Package client/payments is such a program.
//
// When a Writer with a journal ends, it reports no write as not executed, because the next Writer may send it. When the
// journal is full, Submit waits until outcomes are acknowledged; a program that submits and never acknowledges blocks.
//
// The package cannot repair a journal that is lost or restored from a copy. journal.Options.MustExist detects a lost
// one. A copy is refused if a session was opened after it was made. A copy from within the last session is detected if
// the ledger has committed more than the copy contains, or other writes under its numbers: the next Writer sends
// nothing beyond the committed writes until receipts show that those commits are its own. A copy is not detected if
// nothing was committed after it was made. Then its writes are sent again, including a write that was refused, reported
// as not executed and dropped from the journal since. So do not restore a journal from a copy. If a journal is lost,
// find out from the ledger what was committed and begin a new one.
//
// A journal is always a journal.File. All Writers wait for it at each write, which a database
// would be too slow for, and no program has needed another implementation.
package writer
