// Package drill has faults for simulations of a cluster that chance brings about too seldom: several things go wrong
// in the order in which they do harm. A simulation implements [World] and [Node], and runs a [Drill] beside its
// random faults.
//
// One drill changes the members twice, the second time right behind the first. One voter is away for the first
// change, and another one for the second, so that the first of them, which is back, is needed for it. That voter dies
// at an unlucky moment and restarts. Then the network splits: on one side a majority of the voters from before both
// changes, on the other side the leader with a majority of the new ones. A voter that forgot what it acknowledged is
// elected then, and two leaders commit entries.
//
// Drills differ from each other: voters are added, replaced in one joint change, or removed without hearing of it;
// the voter that was away gets entries, or the state behind the change; it dies right behind an acknowledgement, or
// its state machine stands still; the leader dies between the commit and the apply of a change.
//
// Another drill makes a node replace entries of its own by committed ones, and tears that write.
package drill
