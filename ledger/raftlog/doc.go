// Package raftlog is the durable log of the ledger: the only place where a write becomes durable. It combines the files
// of package segment with the consensus of packages core and host. A single node is a cluster of one voter, so that
// there is one commit path and one set of bugs.
//
// # How to read it
//
// [Open] checks that the files match the state store (open.go), starts the consensus, and passes every committed entry
// after the state store's position to the [Machine] in log order. [Log.Propose] appends an entry and returns a
// [Proposal] to wait on. [Log.Truncate] has the machine make its state durable and then drops the files before that
// position (log.go).
//
// # What holds
//
//   - [Proposal.Wait] returns a result only after the entry is on disk and applied. After a
//     crash at any moment every such entry is in the log again, in the same order.
//   - The first storage error is final: nothing is written after it, every waiting proposal
//     ends with [ErrOutcomeUnknown], and Options.OnFailure is called once (package host).
//   - A log that is missing, belongs to another ledger, ends before the state store's position,
//     begins after it, or is damaged is refused with a [*DamageError]; it is never replaced by an
//     empty one (TestLogMustFit, TestDamage_LogBits, TestDamage_LogCuts, TestDamage_LogSectors).
//   - The remains of an interrupted write are removed, with a warning in the server's log.
//     Damage to the very last record of a log that was not closed looks the same, unless the
//     state store is known to be further.
//   - The log is truncated only up to a position that the machine has reported durable
//     (TestTruncate).
//
// # On disk
//
//	Dir/segments/*.log    the log; package segment describes the format
//	Dir/segments.tmp/     an interrupted creation; never read
//	Dir/segments.before/  the log of a cluster while Alone replaces it
//
// The caller must hold a lock on the data directory for as long as the log is open.
package raftlog
