// Package direct implements both ends of an upgraded connection, which carries one WriteStream.
//
// A stream over HTTP/2 shares its connection with others, which has a cost: on each side a
// message passes through two or three more goroutines than necessary, each with its wake-up. A
// WriteStream is already multiplexed, because it carries the writes of any number of streams.
// So a client with a long-lived WriteStream asks for the whole connection, with an HTTP/1.1
// upgrade:
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
// From then on both sides send the messages of Connect's streaming protocol, each preceded by a
// byte of flags and its length as a big-endian uint32. The server's last message is the end of
// the stream in JSON. Authentication, limits, metrics and errors are those of any other
// request, because the handler is the same. A server or an intermediary that does not know the
// protocol does not answer with 101, and the client uses an ordinary stream.
//
// HTTP/2 detects a vanished peer with pings. Here each side sends an empty message as a
// keepalive when it has sent nothing for a while, also while it waits for a disk (a slow disk
// must not look like a dead server), and ends the connection if the peer stays silent.
package direct
