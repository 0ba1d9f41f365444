// Package conformance checks that a client program keeps the duties of a client: it sends writes
// through faults, crashes and takeovers, and each of them is in the ledger once or not at all, as
// the client says.
//
// The client is any program that speaks the protocol of docs/conformance.md (protocol.go) on its
// standard input and output. [Run] starts for each case a server, a fault proxy and the client, and
// plays the application: it says what to write, kills the client, starts it again, and keeps the
// books of what the client said (books.go). At the end of a case it reads the ledger, past the
// proxy, and compares (audit.go).
//
// The cases are in the files whose names begin with cases, and bed.go has what they are made of. The proxy is proxy.go
// for single calls and relay.go for streams, over package faultproxy; copies.go looks at the writes in both.
// [Drive] is the client program for the Writer of package client/writer.
package conformance
