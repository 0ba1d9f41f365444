package cluster

import (
	"crypto/tls"
	"net"
	"time"
)

// Options configure a node of a cluster.
type Options struct {
	// Listener accepts the connections of other nodes. The ledger owns it.
	Listener net.Listener
	// Peer and Client are the addresses, host and port, at which other nodes and clients reach this node. Peer defaults
	// to the address of Listener; Client may be empty.
	Peer, Client string
	// Nodes are addresses of other nodes, as Peer is this node's. The node announces its own address to them, in
	// addition to those that its log names, and does not open the ledger if they have another one.
	Nodes []string
	// TLS is used in both directions between nodes; see transport.Options. If it is nil, connections are not encrypted.
	TLS *tls.Config
	// Insecure allows addresses that are not loopback without TLS.
	Insecure bool
	// Token is the join token, a secret shared by all nodes of the cluster. Each node sends it with every request to
	// another node, and refuses requests without it. It is stored in the data directory. If Token is empty, the stored
	// token is used; the first node of a cluster generates one. See Node.JoinToken.
	Token string
	// Tick is the heartbeat interval; an election begins after ten to twenty intervals without a heartbeat. 0 means 50
	// ms.
	Tick time.Duration
}
