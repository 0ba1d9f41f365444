// Package raftlog is the durable log of the ledger: the only place where a write becomes
// durable. It puts together the files of package segment and the consensus of packages core
// and host; a single node is a cluster of one voter, so that there is one commit path and one
// set of bugs.
//
// # How to read it
//
// [Open] checks that the files belong to the state store (open.go), starts the consensus, and
// hands every committed entry behind the state store to the [Machine] in log order.
// [Log.Propose] appends an entry and returns a [Proposal] to wait on. [Log.Truncate] has the
// machine make its state durable and then drops the files behind it (log.go). [Convert] makes
// such a log of one that an older program has written (convert.go); package legacy reads that.
//
// # What holds
//
//   - [Proposal.Wait] returns a result only after the entry is on disk and applied. After a
//     crash at any moment every such entry is in the log again, in the same order.
//   - The first storage error is final: nothing is written after it, every waiting proposal
//     ends with [ErrOutcomeUnknown], and Options.OnFailure is told once (package host).
//   - A log that is missing, foreign, shorter than the state store, truncated behind it, or
//     damaged is refused with a [*DamageError]; it is never replaced by an empty one
//     (TestLogMustFit, TestDamage_LogBits, TestDamage_LogCuts, TestDamage_LogSectors).
//   - The remains of a write that was interrupted are removed, with a warning in the log.
//     Damage to the very last record of a log that was not closed looks like them, unless the
//     state store is known to be further.
//   - The log is truncated only behind what the machine has called durable (TestTruncate).
//   - A conversion that is interrupted is begun again or has come to its end, and until then
//     the old log is not changed (TestConvertSurvivesKills). A damaged old log is refused
//     (TestConvertRefusesDamage).
//
// # On disk
//
//	Dir/segments/*.log    the log; package segment says what is in them
//	Dir/segments.tmp/     a creation or a conversion that was interrupted; never read
//	Dir/segments.before/  the log of a cluster that is being given to one node; see Alone
//	Dir/wal.copy/         a conversion that was interrupted; never read
//	Dir/wal/, snapshots/  a log that is not converted yet, or what is left of it
//
// The caller must hold a lock on the data directory for as long as the log is open.
package raftlog
