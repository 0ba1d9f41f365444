// Package sim simulates the ledger: engine, disk, network, clocks and clients on one thread, driven by one seed, with a
// model that decides what is right. It consists of tests; nothing of it is built into a program.
//
//	make sim                              # a million commands, a new seed
//	make sim SEED=17 COMMANDS=8000        # what a failure tells you to run
//
// A run is a series of episodes with consecutive seeds. A seed determines a plan (how bad the network is, how often the
// node dies, the configuration, the clients) and every later decision; equal seeds give equal traces.
//
// # The parts
//
//   - world (world_test.go): the event queue and the clocks.
//   - node (node_test.go, crash_test.go): the host of the real parts. The state
//     machine is the real one, and so is package engine: the queue, what goes into
//     an entry and when, which outcome belongs to which command, where ledger
//     time begins, which retry is answered without the log, and which checkpoint,
//     truncation or removal of files is next. Goroutines are not deterministic, so steps do their work
//     here, and between any two steps the node may die.
//   - simdisk, stateDisk: what survives. The log is the real one (raftlog/segment) on a
//     simulated disk, and so is the consensus of a node without others (raftlog/core).
//     In one episode of eight the state is a real boltstore in a file.
//   - retain_test.go: the removal of block files and the copies to the archive,
//     which is the real one on an archiveDisk. A mount unmounts that disk, fills
//     it, replaces it, or cuts its power.
//   - network_test.go: datagrams that are lost, duplicated, delayed and reordered,
//     and connections that deliver in order until they break.
//   - writer, simple, buggy, stale, operator, historian: the clients. A writer follows the
//     client's rules to the letter, with a journal, and dies like the node.
//   - owner, jobber (keys_test.go): clients with keys. Owners of few keys reserve, renew,
//     complete, come too late, resolve and die; jobbers make keyed writes.
//   - oracle and model: what was applied, acknowledged and promised,
//     and the correct answer to every command.
//   - keysOracle (keysoracle_test.go): what keys promise, from the outcomes alone. Tokens
//     grow, one owner holds a lease, no second one has an unknown outcome, an old token
//     completes nothing, a result is the same until it expires, a keyed write commits
//     once, and a record is shown under no other key.
//   - audit_test.go: the checks once an episode has come to rest.
//   - bugs (tamper_test.go): the controls. Each must be detected.
//
// # A cluster
//
//	make sim-cluster SEEDS=100            # new seeds; SEED=17 SEEDS=1 repeats one
//	make sim-cluster SEED=17 SEEDS=1 WITHOUT=changes,clocks
//	make sim-cluster DURATION=8h SUMMARY=night.txt
//
// The same clients, oracle, model and audit, over three or more nodes:
//
//   - member (clusternode_test.go): a node. The consensus (raftlog/core), its
//     log (raftlog/segment) and the state machine are the real ones; the state
//     file is stateDisk's simulated one, with real block files. Steps replace the
//     goroutines of package raftlog. A step of the applier may hang for seconds.
//   - cluster (cluster_test.go): the network between the nodes, membership changes,
//     snapshots, and the continuous checks: only one node leads a term and it has
//     every committed entry, equal positions hold equal entries, a node votes once
//     a term, the entry applied at an index does not change, members are equal at
//     equal indexes, ledger time never runs backwards, and a read reflects every
//     write acknowledged before it. Clocks of a minority of the voters are wrong from
//     each election on, and no entry is ahead of the right ones; at the end, ledger time
//     does not lag. A node whose applier hangs neither leads for long nor is elected.
//     The oracle checks that outcomes and digests are equal on all nodes: it treats a
//     follower's apply as a replay.
//   - clusterrun_test.go draws the plan and the order of faults, and audits the
//     state of every member after a power loss of all nodes. One cluster of five begins
//     as a node that decides alone in some of its lives, without the library.
//   - clustercampaign_test.go runs seed after seed and summarizes the events.
//   - clusterdrill_test.go has faults that chance produces too rarely.
//   - clusterdisk_test.go has disks that are full, return damaged reads, or have rotted while
//     the node was down: the node stops, or does not start until its disk is mended. State
//     files are full, too, and rot in a page, while the node runs or not: the first read or
//     write of the page, or a scrub, ends the node for good, and another one replaces it.
//   - clustermutants_test.go has the controls.
//
// Not simulated there: answers from the state without the log, restores, the
// chunked transfer of a snapshot (its state arrives as a whole or not at all), and the real state file:
// that it finds what has rotted in its pages is assumed here, and shown in package boltstore.
//
// ledger/DESIGN.md says what is simulated and what is not.
package sim
