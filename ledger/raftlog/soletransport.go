package raftlog

import "github.com/hashicorp/raft"

// soleTransport is the transport of a node without others. The only message that
// ever arrives on it is there from the beginning and tells the node to stand for
// election: it would find out by waiting for a leader that cannot exist, for one to
// two times soleTimeout, and nobody is served meanwhile.
//
// Open refuses a node that has others and no real transport, so that the message never
// reaches one whose leader may be alive.
type soleTransport struct {
	*raft.InmemTransport

	messages chan raft.RPC
}

func newSoleTransport(node string) soleTransport {
	_, inner := raft.NewInmemTransport(raft.ServerAddress(node))
	t := soleTransport{inner, make(chan raft.RPC, 1)}
	t.messages <- raft.RPC{
		Command: &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}},
		// Nobody waits for the answer.
		RespChan: make(chan raft.RPCResponse, 1),
	}
	return t
}

// Consumer implements raft.Transport.
func (t soleTransport) Consumer() <-chan raft.RPC { return t.messages }
