// Package host runs one node's consensus: it drives [core.Node] and the files of [segment.Log] with goroutines and a
// clock.
//
// # How to read it
//
// host.go starts and ends a node and passes it its events in turn; drivers.go has the loops that write, apply and
// tick; watch.go tells whether they advance; proposal.go and read.go have what callers wait for.
//
// One goroutine appends and syncs, another one applies. Neither holds the node's lock while it does so, so messages and
// ticks are not delayed by a slow disk or a slow state machine (TestHeartbeatsPassASlowDisk). A sole voter applies
// small entries on the goroutine that has written them, because waking the other goroutine would take longer. For the
// same reason it lets a caller write and apply on its own goroutine (ProposeHere).
//
// # What holds
//
//   - [Proposal.Wait] returns a result only after the entry is durable on a majority and
//     applied here: TestPowerLossKeepsTheAcknowledged, TestKilledProcess.
//   - The first error of the disk, of the state machine or of the consensus itself is
//     final. Nothing is written after it, Options.OnFailure is called once, and then every
//     waiting call ends: TestFailedSyncStopsTheHost, TestFailEndsWaits.
//   - Whatever a node must do to serve is watched by one rule (watch.go). A leader whose log or state machine hangs
//     is silent after one election timeout and replaced, or no leader any more, within about three, and Stalled names
//     what hangs: TestStalledLeaderIsReplaced, TestStalledLeaderStepsDown. Until it advances again, the node wins no
//     election and takes no leadership: TestStalledNodeDoesNotTakeOver. Shorter stalls, and work that is slow and
//     advances, change nothing: TestHeartbeatsPassASlowDisk.
//   - What describes a node is read without waiting for its disk or delaying its ticks: TestStatusWaitsForNoDisk.
//   - A sole voter answers reads after one atomic load, and only in a term in which it has
//     applied everything committed before; otherwise a node asks a majority: TestClusterReads.
//   - The log is dropped only up to a position that the caller reports as durable in the
//     state store, and keeps the members as of that position: TestTruncate.
//   - Close answers every proposal made before it: TestClose.
package host
