// Package raftlog is the durable log of the ledger: the only place where a write becomes durable. It drives the
// consensus of package core and the files of package segment with goroutines and a clock. A single node is a cluster of
// one voter, so that there is one commit path and one set of bugs.
//
// # How to read it
//
// [Open] checks that the files match the state store (open.go), starts the consensus (log.go), and passes every
// committed entry after the state store's position to the [Machine] in log order. drivers.go has the loops that write,
// apply and tick; watch.go tells whether they advance; proposal.go and reads.go have what callers wait for.
// [Log.Truncate] drops the files before a position that the machine has in its own store.
//
// One goroutine appends and syncs, another one applies. Neither holds the node's lock while it does so, so messages and
// ticks are not delayed by a slow disk or a slow state machine (TestHeartbeatsPassASlowDisk). A sole voter applies
// small entries on the goroutine that has written them, because waking the other goroutine would take longer. For the
// same reason it lets a caller write and apply on its own goroutine ([Log.ProposeHere]).
//
// # What holds
//
//   - [Proposal.Wait] returns a result only after the entry is durable on a majority and applied here. After a crash at
//     any moment every such entry is in the log again, in the same order: TestPowerLossKeepsTheAcknowledged,
//     TestKilledProcess.
//   - The first error of the disk, of the state machine or of the consensus itself is final. Nothing is written after
//     it, Options.OnFailure is called once, and then every waiting call ends: TestFailedSyncStopsTheLog,
//     TestFailEndsWaits.
//   - Whatever a node must do to serve is watched by one rule (watch.go). A leader whose log or state machine hangs
//     is silent after one election timeout and replaced, or no leader any more, within about three, and Stalled names
//     what hangs: TestStalledLeaderIsReplaced, TestStalledLeaderStepsDown. Until it advances again, the node wins no
//     election and takes no leadership: TestStalledNodeDoesNotTakeOver, TestVotesForAStalledNodeWait in package core.
//     Shorter stalls, and work that is slow and advances, change nothing: TestHeartbeatsPassASlowDisk.
//   - What describes a node is read without waiting for its disk or delaying its ticks: TestStatusWaitsForNoDisk.
//   - A sole voter answers reads after one atomic load, and only in a term in which it has applied everything committed
//     before; otherwise a node asks a majority: TestClusterReads.
//   - A log that is missing, belongs to another ledger, ends before the state store's position, begins after it, or is
//     damaged is refused with a [*DamageError]; it is never replaced by an empty one: TestLogMustFit,
//     TestDamage_LogBits, TestDamage_LogCuts, TestDamage_LogSectors.
//   - The remains of an interrupted write are removed, with a warning in the server's log. Damage to the very last
//     record of a log that was not closed looks the same, unless the state store is known to be further.
//   - The log is truncated only up to a position that the machine has reported durable, and keeps the members as of
//     that position: TestTruncate, TestSoleVoterGetsCompany.
//   - Close answers every proposal made before it: TestClose.
//
// # On disk
//
//	Dir/segments/*.log    the log; package segment describes the format
//	Dir/segments.tmp/     an interrupted creation; never read
//	Dir/segments.before/  the log of a cluster while Alone replaces it
//
// The caller must hold a lock on the data directory for as long as the log is open.
package raftlog
