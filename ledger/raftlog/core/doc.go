// Package core is the consensus of one node without goroutines, clock, disk or
// network: events go in, effects come out. It hosts [go.etcd.io/raft/v3]. The same
// events give the same effects, so that a simulation runs it as it is, but for the
// election timeouts, which the library draws from crypto/rand.Reader. Package
// host drives it.
//
// # How to read it
//
// node.go has the events and the effects, members.go who belongs to the cluster,
// store.go the log as the library sees it. world_test.go and worldnode_test.go simulate
// a cluster.
//
// A host calls [New], then one method at a time, and takes [Node.Effects] after
// each. It sends Send at once; writes Append in order, with one sync for as many as
// it likes, and then calls [Node.Appended]; applies Apply in order, and then calls
// [Node.Done]. These may go on in three goroutines; none of them keeps the
// node from ticks and messages.
//
// # Traps of the library
//
// Each is held by a test:
//
//   - A slow sync must not stop heartbeats, and entries leave before the leader's
//     own sync: TestTicksAndMessagesPassASlowDisk.
//   - A vote and the receipt of entries leave after they are durable:
//     TestResponsesWaitForTheDisk, TestPreVoteWaitsForTheDisk. Of a snapshot the state is durable first, then the
//     log is reset, then Raft's state and the entries: TestSnapshotIsDurableBeforeItsAnswer.
//     It also shows that a follower gets nothing more until SnapshotSent is called.
//   - The commit index is not synced, and a start panics when it is below what was
//     applied: TestRestartKnowsWhatItAppliedIsCommitted.
//   - A node that stands for election reads what the library takes for not applied, and a log that has
//     dropped it is a panic: TestLogIsDroppedWithinWhatIsApplied.
//   - A commit index that reaches the disk without the entries that it covers commits what
//     the log had in their places: TestTornAppendCommitsNothing.
//   - A sole voter answers a read with what it knew in an earlier life:
//     TestSoleVoterReadsInItsOwnTerm. A question to a majority may be lost, and the
//     name of one may not be used twice: TestLostReadIsAskedAgain.
//   - Reads rely on no clock, a leader without a majority steps down, a node that
//     returns deposes no leader: TestLeaderWithoutMajorityStepsDown,
//     TestReturningNodeDeposesNoLeader.
//   - Proposals are not forwarded: TestFollowerProposesNothing. What is uncommitted and
//     what is on its way is bounded: TestUncommittedAndInflightAreBounded. Messages are not sent in
//     vain to a node after Unreachable: TestUnreachableIsProbed.
//   - Members change when a change is applied; the library turns a refused one into an
//     empty entry and panics at one that is impossible: TestChangeOfMembers,
//     TestImpossibleChangeIsPassedOver. Ids are used once: TestChangeOfMembers.
//   - A leader that was removed steps down: TestRemovedLeaderStepsDown. That a change is
//     committed is durable before it holds, or the last of two voters would wait for
//     the one that was removed: TestRemovedVoterIsNotNeeded. A leader does not remove itself.
//   - A snapshot with members of before the node joined is ignored by that node:
//     Options.Snapshot is told from where on, and TestCluster meets it.
//   - The library goes by the members of a snapshot when it receives it, and changes of
//     before may still be applied then: TestCluster.
//   - Panics stop the node for good: TestPanicIsFinal.
//   - Proposals have no index, and an error means three things, in each of which nothing
//     was proposed: TestProposalsKeepTheirNumbers, TestTransfer.
//   - Election timeouts come from crypto/rand.Reader: TestSameSeedSameTrace.
//   - Log and state may not belong together: TestStartIsChecked.
//
// # The simulation
//
// TestCluster runs three nodes and more under faults: messages are lost, doubled,
// delayed and reordered, ways are cut in one direction, nodes are killed or lose
// power with what was not synced, syncs are slow or fail, members join, leave and are
// replaced, snapshots are installed. It checks as it goes that one node leads a term
// and has all that was committed, that equal positions hold equal entries, that a
// node votes once a term, that states and members are equal at equal indexes, and
// that a read sees what was acknowledged before it. It fails when a fault was never
// met. A failure prints the line that repeats it. Package drill has faults that chance brings
// about too seldom. TestMutantsAreFound breaks a rule of the host, which one of the first
// seeds must find.
package core
