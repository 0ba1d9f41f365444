// Package core is the consensus of one node without goroutines, clock, disk or network: events go in, effects come out.
// It wraps [go.etcd.io/raft/v3]; a node that has no others decides without it (alone.go). The same events give the same
// effects, so a simulation can run it unchanged. Only the election timeouts differ, because the library draws them from
// crypto/rand.Reader. Package host drives it.
//
// # How to read it
//
// node.go has the events and the effects, members.go the membership, store.go the log as the library sees it.
// Package sim simulates clusters of nodes.
//
// A host calls [New], then the methods one after the other, and takes [Node.Effects] after each. It sends Send at once.
// It writes Append in order, with one sync for any number of them, and then calls [Node.Appended]. It applies Apply in
// order and then calls [Node.Done]. The three may run in separate goroutines; none of them delays the node's ticks and
// messages.
//
// # Traps of the library
//
// Each one is covered by a test:
//
//   - A slow sync must not stop heartbeats, and entries are sent before the leader's
//     own sync: TestTicksAndMessagesPassASlowDisk.
//   - A vote and the acknowledgement of entries are sent once they are durable:
//     TestResponsesWaitForTheDisk, TestPreVoteWaitsForTheDisk. For a snapshot, the state
//     becomes durable first, then the log is reset, then Raft's state and the entries are written:
//     TestSnapshotIsDurableBeforeItsAnswer. The test also shows that a follower receives
//     nothing more until SnapshotSent is called.
//   - The commit index is not synced, and a start panics if it is below the applied
//     index: TestRestartKnowsWhatItAppliedIsCommitted.
//   - A candidate reads the entries that the library considers unapplied, and the library
//     panics if the log has dropped them: TestLogIsDroppedWithinWhatIsApplied.
//   - A commit index that reaches the disk without the entries that it covers commits the
//     entries that the log had at those indexes: TestTornAppendCommitsNothing.
//   - A sole voter answers a read with the commit index it knew before its restart:
//     TestSoleVoterReadsInItsOwnTerm. A read index request may be lost, and its
//     context must not be reused: TestLostReadIsAskedAgain.
//   - Reads rely on no clock, a leader without a majority steps down, and a node that
//     returns does not depose the leader: TestLeaderWithoutMajorityStepsDown,
//     TestReturningNodeDeposesNoLeader.
//   - A follower passes read index requests and transfers on to the leader in the name of
//     another node: TestFollowerPassesNothingOn.
//   - At a heartbeat about entries that a node has lost, the library panics:
//     TestForgottenEntriesStopTheNode.
//   - Proposals are not forwarded: TestFollowerProposesNothing. Uncommitted and in-flight
//     entries are bounded: TestUncommittedAndInflightAreBounded. After Unreachable the leader
//     probes a node instead of streaming to it: TestUnreachableIsProbed.
//   - Members change when a change is applied; the library turns a refused change into an
//     empty entry and panics at an impossible one: TestChangeOfMembers,
//     TestImpossibleChangeIsPassedOver. Ids are used once: TestChangeOfMembers.
//   - A leader that was removed steps down: TestRemovedLeaderStepsDown. The commit of a
//     change is durable before the change takes effect; otherwise the last of two voters would
//     wait for the removed one: TestRemovedVoterIsNotNeeded, TestChangeWaitsForItsCommit. A leader does not remove itself.
//   - A node ignores a snapshot whose members do not include it yet: Options.Snapshot gets
//     the lowest index it may return: TestSnapshotHasTheLastChange, TestCluster of package sim.
//   - The library adopts the members of a snapshot when it receives it, and earlier
//     changes may still be applied afterwards: TestCluster of package sim.
//   - Panics stop the node for good: TestPanicIsFinal.
//   - Proposals have no index, and an error has three meanings; in each of them nothing
//     was proposed: TestProposalsKeepTheirNumbers, TestTransfer.
//   - Election timeouts come from crypto/rand.Reader: TestOneSeedIsOneCluster of package sim.
//   - Log and state may not belong together: TestStartIsChecked.
package core
