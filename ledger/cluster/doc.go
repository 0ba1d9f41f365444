// Package cluster is a node's part in its cluster: who leads, who belongs to it, and how that changes. The log and the
// consensus are package raftlog's, and the state and its commands the ledger's; this package connects them to the other
// nodes. A server uses the [Node] of a ledger. The ledger itself has the [Driver] around it, and tells it by a [Host]
// what it may do with the ledger.
//
//	options.go    how a node is configured
//	node.go       the node and its ledger
//	status.go     what is known of the leader and the members
//	leader.go     the loops: a term begins or ends, learners become voters
//	change.go     members are promoted and removed, the leadership is transferred
//	join.go       a node asks to join, or tells its new addresses
//	token.go      the join token, which all nodes share
//	transport.go  connections and requests between nodes
//	digests.go    the states of the nodes are compared
//	pulse.go      the nodes' clocks are compared, and what hangs is told
//
// Requests between nodes are HTTP at the paths /seqledger.peer.v1/…, over the transport of package raftlog/transport.
// Most tests are in package ledger, because a node needs a ledger.
package cluster
