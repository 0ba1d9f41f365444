// Package conformance checks that a client program meets the requirements for clients: it sends writes through faults,
// crashes and takeovers, and each write is in the ledger once or not at all, as the client reports.
//
// The client is any program that speaks the protocol of docs/conformance.md (protocol.go) on its standard input and
// output. For each case, [Run] starts a server, a fault proxy and the client, and plays the application: it submits
// writes, kills the client, restarts it, and records in the books what the client reported (books.go). At the end of a
// case it reads the ledger, bypassing the proxy, and compares (audit.go).
//
// The cases are in the files whose names begin with cases, and their building blocks are in bed.go. The proxy is that
// of package faultproxy; copies.go inspects the writes that pass.
// [Drive] is the client program for the Writer of package client/writer.
package conformance
