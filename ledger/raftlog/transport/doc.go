// Package transport carries the messages of the consensus between the nodes of one ledger. Each pair of nodes has one
// HTTP/2 stream that both send on.
//
// # How to read it
//
// transport.go starts and closes it, peer.go has the queue to one node and the loops of its stream, handshake.go
// decides who may open a stream, guard.go which requests are let in, wire.go has the encoding.
//
// # What holds
//
//   - Messages may be lost but are never changed: the consensus resends what matters.
//     Sending never blocks: TestFullQueueDropsMessages.
//   - Memory is bounded: each queue by MaxQueueMessages and MaxQueueBytes, the data that one
//     node can make this one read at once by maxFrameBytes. Messages that do not fit into a
//     queue are dropped and reported to Options.Unreachable.
//   - A stream begins with the ids of the ledger and of the nodes on both sides. A node of another
//     ledger, a node that is not a member, and a node that was reached at a wrong address are
//     refused, and none of their messages is delivered: TestRefusals. A message whose sender or
//     recipient is another node ends the stream: TestForgedMessageEndsTheStream.
//   - With Options.TLS both sides authenticate with a certificate: TestMutualTLS.
//     Without it, only loopback addresses are used, unless Options.Insecure is set.
//   - Heartbeats and votes overtake waiting entries: TestHeartbeatsPassEntries.
//   - A peer that does not answer pings is disconnected after pingAfter and pingTimeout.
//
// The node with the lower id connects to the other one, so that each pair has one stream. If it cannot, the other one
// does.
package transport
