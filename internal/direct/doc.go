// Package direct gives one WriteStream a connection to itself: both ends of it.
//
// A stream over HTTP/2 shares its connection with others, and pays for it: on each
// side a message passes two or three more goroutines than it has to, and the
// machine wakes up for every one of them. A WriteStream is multiplexed already,
// since it carries the writes of any number of streams. So a client that will
// have one for long asks for the whole connection, by HTTP/1.1's own means:
//
//	POST /seqledger.v1.LedgerService/WriteStream HTTP/1.1
//	Connection: Upgrade
//	Upgrade: seqledger-direct
//	Content-Type: application/connect+proto
//	Connect-Protocol-Version: 1
//	Authorization: …
//
//	HTTP/1.1 101 Switching Protocols
//	Connection: Upgrade
//	Upgrade: seqledger-direct
//
// From then on both sides send what Connect's streaming protocol has in its
// bodies: messages, each behind a byte of flags and its length as a big-endian
// uint32; the last of the server's is the end of the stream in JSON. Authentication,
// limits, metrics and errors are those of every other request, because the handler
// behind it is the same. A server, or something before it, that does not
// know the protocol answers with anything but 101, and the client goes the
// ordinary way.
//
// HTTP/2 finds out by pings whether the other side is still there. Here each side
// sends an empty message when it has sent nothing for a while, whatever else it
// waits for (a slow disk must not look like a server that is gone), and gives up on
// one that stays silent.
package direct
