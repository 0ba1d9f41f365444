// Package transport carries the messages of the consensus between the nodes of one ledger. Each pair
// of nodes has one HTTP/2 stream that both send on.
//
// # How to read it
//
// transport.go begins and ends it, peer.go has the queue to one node and what runs on its
// stream, handshake.go who may open one, wire.go the bytes.
//
// # What holds
//
//   - Messages may be lost and are never changed: the consensus sends again what matters.
//     Nothing that is sent blocks: TestFullQueueDropsMessages.
//   - Memory is bounded: each queue by MaxQueueMessages and MaxQueueBytes, what one node
//     can make this one read at once by maxFrameBytes. What a queue has no room for is
//     dropped and told to Options.Unreachable.
//   - A stream begins with the ids of ledger and nodes on both sides. A node of another
//     ledger, one that is no member, and one that was reached by a wrong address are refused, and
//     no message of theirs is delivered: TestRefusals. A message that says that it is from or to
//     another node ends the stream: TestForgedMessageEndsTheStream.
//   - With Options.TLS both sides prove who they are by a certificate: TestMutualTLS.
//     Without it, only loopback addresses are used, unless Options.Insecure is set.
//   - Heartbeats and votes pass entries that wait: TestHeartbeatsPassEntries.
//   - A peer that does not answer pings is given up after pingAfter and pingTimeout.
//
// The node with the lower id connects to the other one, so that there is one stream for each pair.
package transport
