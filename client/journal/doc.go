// Package journal durably stores the state that a Writer of package client needs after a crash:
// its session, the attempt to open one, and every write that is not known to be settled.
//
// A Writer appends each write before it is sent and waits for Sync, which one fsync serves for all Writers that share a
// [File]. Settled writes are recorded without waiting, because a Writer that starts again asks the ledger.
//
// # Tags
//
// A write may carry a tag, the application's own name for it. A write with a tag stays in the journal when it is
// settled, together with its receipt, until the application acknowledges that it has noted the outcome. So a tag that
// is not in the journal was never sent, was not executed, or has been noted. The tag of an acknowledged write stays
// refused for a time (Options.RememberTags), for programs that are run again and keep no records of their own.
//
// # Failures of the disk
//
// The records of one fsync form a group with one checksum (CRC-32C). A group is valid as a whole or not at all. Open
// drops a torn group at the end, which is safe because its fsync never returned and nothing in it was sent. Any other
// defect is a [*DamageError], and Open fails. A failed write or fsync is final for a File: the next Open reads what is
// on disk and writes it anew.
//
// The last group may also be bad because the disk lost data after a successful fsync. The file alone does not show the
// difference. The ledger does: it has committed more than the journal contains, and the Writer refuses to continue.
//
// client/JOURNAL.md describes the file byte by byte. [Inspect] reads a journal without changing it.
package journal
