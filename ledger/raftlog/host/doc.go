// Package host runs one node's consensus: it drives [core.Node] and the files of
// [segment.Log] with goroutines and a clock.
//
// # How to read it
//
// host.go starts and ends a node and hands it its events one at a time; drivers.go has
// the loops that write, apply and tick; proposal.go and read.go what callers wait for.
//
// One goroutine appends and syncs, another one applies, and none of them holds the
// node's lock meanwhile: messages and ticks pass a slow disk and a slow state machine
// (TestHeartbeatsPassAStalledDisk). A node that decides alone applies what is small on the
// goroutine that has written it, because waking the other one would take longer.
//
// # What holds
//
//   - [Proposal.Wait] returns a result only after the entry is durable on a majority and
//     applied here: TestPowerLossKeepsTheAcknowledged, TestKilledProcess.
//   - The first error of the disk, of the state machine or of the consensus itself is
//     final. Nothing is written after it, Options.OnFailure is told once, and then every
//     waiting call ends: TestFailedSyncStopsTheHost, TestFailEndsWaits.
//   - A leader whose disk hangs is replaced within three election timeouts, and Writing tells of it:
//     TestLeaderWithAHungDiskIsReplaced. Shorter stalls change nothing: TestHeartbeatsPassAStalledDisk.
//   - A sole voter answers reads after one atomic load, and only in a term in which it has
//     applied all that was committed before; others ask a majority: TestClusterReads.
//   - The log is dropped only up to a position that the caller names as durable in the
//     state store, and keeps the members as of there: TestTruncate.
//   - Close answers what was proposed before: TestClose.
package host
