// Package sim simulates the ledger: engine, disk, network, clocks and clients
// on one thread, driven by one seed, with a model that decides what is right.
// It consists of tests; nothing of it is built into a program.
//
//	make sim                              # a million commands, a new seed
//	make sim SEED=17 COMMANDS=8000        # what a failure tells you to run
//
// A run is a row of episodes with consecutive seeds. A seed draws a plan (how
// bad the network is, how often the node dies, the configuration, who the
// clients are), and from then on every decision; equal seeds give equal traces.
//
// # Who is who
//
//   - world (world_test.go): the queue of what is to happen, and the clocks.
//   - node (node_test.go, crash_test.go): the host of the real parts. The state
//     machine is the real one, and so are the decisions of package decide: what
//     fits in an entry, where ledger time begins, which retry is answered
//     without the log. Goroutines are not deterministic, so their work is done
//     here by steps, and between any two the node may die.
//   - logDisk, stateDisk: what survives. In one episode of eight the state is a
//     real boltstore in a file.
//   - retain_test.go: the removal of block files and the copies to the archive,
//     which is the real one on an archiveDisk. A mount takes that away, fills it,
//     exchanges it, or cuts its power.
//   - network_test.go: datagrams that are lost, doubled, delayed and reordered,
//     and connections that deliver in order until they break.
//   - writer, simple, buggy, stale, operator, historian: the clients. A writer follows the
//     client's rules to the letter, with a journal, and dies like the node.
//   - oracle and model: what was applied, acknowledged and promised,
//     and what every command ought to have been answered.
//   - audit_test.go: what is checked once an episode has come to rest.
//   - bugs (tamper_test.go): the controls. Each must be caught.
//
// # A cluster
//
//	make sim-cluster SEEDS=100            # new seeds; SEED=17 SEEDS=1 repeats one
//	make sim-cluster SEED=17 SEEDS=1 WITHOUT=changes,clocks
//	make sim-cluster DURATION=8h SUMMARY=night.txt
//
// The same clients, oracle, model and audit, over three nodes and more:
//
//   - member (clusternode_test.go): a node. The consensus (raftlog/core), its
//     log (raftlog/segment) and the state machine are the real ones; the state
//     file is stateDisk's simulated one, with real block files. What the drivers
//     of raftlog/host do in goroutines is here done by steps.
//   - cluster (cluster_test.go): the network between the nodes, the changes of
//     members, the snapshots, and what is checked as it goes: one node leads a
//     term and has all that was committed, equal positions hold equal entries, a
//     node votes once a term, what was applied at an index stays, members are
//     equal at equal indexes, ledger time never runs backwards, and a read sees
//     what was acknowledged before it. That outcomes and digests are equal on all
//     nodes is checked by the oracle, for which a follower's apply is a replay.
//   - clusterrun_test.go draws the plan and the order of faults, and audits the
//     state of every member after the power has failed everywhere.
//   - clustercampaign_test.go runs seed after seed and sums up what they met.
//   - clusterdrill_test.go is a cluster as package raftlog/drill sees it, which has faults that
//     chance brings about too seldom.
//   - clusterdisk_test.go has disks that are full, return damaged reads, or have rotted while
//     the node was down: the node stops, or does not start until its disk is mended.
//   - clustermutants_test.go has the controls.
//
// Not simulated there: answers from the state without the log, the comparison of
// clocks before a term, restores, upgrades, the transfer of a snapshot piece by
// piece (its state arrives whole or not at all), and the real state file.
//
// ledger/DESIGN.md tells what is simulated, what is not, and what each control
// shows.
package sim
