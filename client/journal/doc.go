// Package journal keeps, durably, what a Writer of package client must not
// forget: the session it has, the attempt to open one, and every write that is
// not known to be settled.
//
// A Writer appends each write before it is sent and waits for Sync, which one
// fsync serves for all Writers that share a [File]. That a write is settled is
// noted without waiting, because a Writer that starts again asks the ledger.
//
// # Tags
//
// A write may carry a tag, the application's own name for it. A write with a
// tag stays in the journal when it is settled, together with its receipt, until
// the application acknowledges that it has noted the outcome. So a tag that is
// not in the journal was never sent, was not executed, or has been noted. The tag
// of an acknowledged write is refused for a time longer (Options.RememberTags), for
// programs that are run again and keep no books of their own.
//
// # What the disk may do
//
// A group of records, that of one fsync, has one checksum (CRC-32C) and counts
// as a whole or not at all. A torn group at the end is left out by Open, which
// is safe because its fsync never returned and nothing in it was sent. Anything
// else that is wrong is a [*DamageError] and nothing is opened. A failed write
// or fsync is final for a File: the next Open reads what the disk has and
// writes it anew.
//
// The last group may also be bad because the disk lost what it had promised to
// keep. The file alone cannot tell that from a torn one. The ledger can: it has
// then committed beyond what the journal knows, and the Writer refuses to go on.
//
// client/JOURNAL.md describes the file byte by byte. [Inspect] reads one without
// touching it.
package journal
