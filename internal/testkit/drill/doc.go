// Package drill injects faults into simulated clusters that chance produces too rarely: several failures in exactly the
// order that does harm. A simulation implements [World] and [Node], and runs a [Drill] in addition to its random
// faults.
//
// One drill changes the members twice, the second time right after the first. One voter is away during the first change
// and another during the second, so that the first of them, which is back by then, is needed for the second change.
// That voter dies at an unlucky moment and restarts. Then the network splits: on one side is a majority of the voters
// from before both changes, on the other side the leader with a majority of the new voters. If the restarted voter
// forgot what it acknowledged, its side elects a leader, and two leaders commit entries.
//
// Drills vary: voters are added, replaced in one joint change, or removed without learning of it; the voter that was
// away gets the missing entries or a snapshot that includes the change; it dies right after an acknowledgement, or its
// state machine is paused; the leader dies between the commit and the apply of a change.
//
// Another drill makes a node replace its own entries with committed ones, and tears that write.
package drill
