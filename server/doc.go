// Package server serves a ledger over Connect, gRPC and gRPC-Web, on one port,
// over HTTP/1.1 and HTTP/2, in cleartext or over TLS.
//
//	s, err := server.New(server.Options{Ledger: l, Version: "1.0.0"})
//	listener, err := net.Listen("tcp", "127.0.0.1:7400")
//	err = s.Serve(ctx, listener) // until ctx ends and everything is answered
//
// It is the only package in which the generated types and the core's own types
// meet. A request goes through these files:
//
//   - listener.go and host.go refuse what must not come from other machines,
//     cors.go lets pages of other origins in,
//   - authenticate.go finds out who calls, with the package auth,
//   - codec.go decodes it, and strict.go says which field is wrong with it,
//   - requestid.go gives it the id by which the log names it,
//   - rpc.go joins procedures and handlers, and sees every call come and go,
//   - access.go has the table of what each procedure asks of its caller;
//     permits.go remembers the answers for the writes of a stream,
//   - convert.go turns requests into commands, render.go turns state into
//     answers,
//   - write.go, stream.go, reads.go, lists.go, watch.go and admin.go are the
//     procedures,
//   - errors.go is the one place where outcomes and errors become Connect codes
//     and WriteErrors,
//   - metrics.go counts what the server does, collector.go asks the ledger what
//     it did, debug.go has the profiles, on a listener of their own.
//
// A request that is refused as malformed has changed nothing: it never reached
// the log.
//
// A WriteStream can have a connection to itself (package internal/direct, which
// says how it is asked for): everything above is the same for it.
//
// There are two ways to read and write protobuf. What a write consists of, in
// both directions, has code generated for it (vtprotobuf, the methods that end
// in VT), because walking a message by reflection was a good part of what a
// write costs. Everything else goes by package proto: it is rarer, and a second
// copy of all that code would have to be trusted as well. The generated decoder
// is the more lenient one: it checks no UTF-8, takes numbers that are too long,
// and keeps what it does not know. So it is only given what fits the shape in
// hot.go, which has all this looked at already; anything else takes the slow
// way, which says what is wrong. Tests hold the two against each other.
package server
