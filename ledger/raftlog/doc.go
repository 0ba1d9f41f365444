// Package raftlog is the replicated, durable log of the ledger: the only place
// where a write becomes durable. It runs [github.com/hashicorp/raft] over
// [github.com/hashicorp/raft-wal]; a single node is a cluster of one voter, so
// that there is one commit path and one set of bugs.
//
// # How to read it
//
// [Open] repairs the end of the log on disk (tail.go, frames.go), checks that it
// is the one that belongs to the state store (open.go, inspect.go), starts Raft,
// and hands every committed entry to the [Machine] in log order (fsm.go).
// [Log.Propose] appends an entry and returns a [Proposal] to wait on.
// [Log.Truncate] has the machine make its state durable and then drops the log
// behind it.
//
// # What holds
//
//   - [Proposal.Wait] returns a result only after the entry is on disk on a
//     majority and applied here. After a crash at any moment every such entry is
//     in the log again, in the same order.
//   - An entry that is found at a start is on disk before it is served: what a
//     killed process or a failed fsync left in the system's cache is written once
//     more and synced (tail.go), the index and the directory's entries included.
//   - The remains of a write that was interrupted are removed, with a warning in
//     the log, and never taken for damage because of what a client put into it
//     (frames.go says how far that goes). Whole batches behind something
//     unreadable were acknowledged: such a log is refused.
//   - The first storage error is final (store.go). hashicorp/raft by itself steps
//     down, wins the next election milliseconds later and goes on, and after a
//     restart commits entries whose write had failed. Here nothing is written
//     after the first error: Raft is shut down before the failing call returns,
//     every waiting proposal ends with [ErrOutcomeUnknown], and
//     Options.OnFailure is told once.
//   - A log that is missing, foreign, shorter than the state store, or has a gap
//     behind it is refused with a [*DamageError]; it is never replaced by an
//     empty one. raft-wal alone would do that when wal-meta.db is lost.
//   - Every command carries a CRC-32C (checksum.go), checked for the whole log
//     at Open and for each entry that is read later.
//   - The log is truncated only behind what the machine has called durable, and
//     only after the snapshot that says so is on disk with its name (snapshot.go).
//   - A newest segment that held acknowledged entries and was deleted, emptied or
//     cut off is refused (segmentfiles.go), and so are snapshots whose metadata
//     changed (snapshot.go).
//
// What cannot be told apart: damage to the very last batch, with nothing whole
// behind it, looks like an interrupted write and is removed like one, unless the
// state store or the newest snapshot is known to be further (inspect.go).
//
// # On disk
//
//	Dir/wal/wal-meta.db   segments, Raft's term and vote, the identity
//	Dir/wal/*.wal         segments of entries
//	Dir/wal.tmp/          a creation that was interrupted; never read
//	Dir/snapshots/        positions up to which the state store is durable
//
// A local snapshot holds no state: only the identity and the position of the
// last command that the state store held durably when it was taken.
//
// The caller must hold a lock on the data directory for as long as the log is
// open, because raft-wal waits without limit for a second opener to leave.
package raftlog
