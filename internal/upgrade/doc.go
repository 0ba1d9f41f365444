// Package upgrade implements both ends of an upgraded connection, which carries one WriteStream.
//
// A stream over HTTP/2 shares its connection with others, which has a cost: on each side a message passes through two
// or three more goroutines than necessary, each with its wake-up. A WriteStream is already multiplexed, because it
// carries the writes of any number of streams. So a client with a long-lived WriteStream asks for the whole connection,
// as a WebSocket (RFC 6455) of the sub-protocol seqledger.v1. Browsers and proxies know WebSocket.
//
// Both sides send binary messages with the envelopes of Connect's streaming protocol, each preceded by a byte of flags
// and its length as a big-endian uint32. A message has one envelope or several. The server's last envelope is the end
// of the stream in JSON; the client's, which closes its direction only, has the same flag and the contents {}.
// Authentication, limits, metrics and errors are those of any other request, because the handler is the same.
//
// A browser cannot set headers. It offers its credential as a second sub-protocol, "bearer." and the base64url encoding
// of the key. See [MoveCredential].
//
// The server sends a ping every [PingEvery], also while it waits for a disk: a slow disk must not look like a dead
// server. A client that receives nothing for two or three times receiveEvery ends the connection, and so does a server
// that receives nothing, not even a pong, for receiveLimit.
package upgrade
