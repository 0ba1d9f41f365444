// Package server serves a ledger over Connect, gRPC and gRPC-Web, on one port, over HTTP/1.1 and HTTP/2, in cleartext
// or over TLS.
//
//	s, err := server.New(server.Options{Ledger: l, Version: "1.0.0"})
//	listener, err := net.Listen("tcp", "127.0.0.1:7400")
//	err = s.Serve(ctx, listener) // until ctx ends and everything is answered
//
// Package internal/wire decodes the requests, turns them into commands, and renders the answers: there the generated
// types and the ledger's own types meet. A request goes through these files:
//
//   - serve.go refuses listeners, and origins.go requests, that must not come from
//     other machines; origins.go lets pages of other origins in,
//   - authenticate.go finds out who calls, with the package auth,
//   - call.go gives it the id that the log uses, and has what its handlers share,
//   - routes.go connects procedures with handlers, and observes every call,
//   - route.go passes calls that only the leader can answer on to it, after all of the above,
//   - authorize.go has the table of what each procedure requires of its caller,
//     and caches the answers for the writes of a stream,
//   - messages.go charges the memory of messages to their callers,
//   - write.go, stream.go with batch.go, reads.go, lists.go, watch.go and admin.go
//     are the procedures,
//   - errors.go converts all outcomes and errors to Connect codes
//     and WriteErrors,
//   - metrics.go counts what the server does, collector.go asks the ledger and the
//     parts of the server what they did, debug.go has the profiles, on a listener of
//     their own.
//
// A malformed request changes nothing: it never reaches the log.
//
// A WriteStream can use an upgraded connection (see package internal/upgrade). Everything above holds for it too.
// upgrade.go checks what a browser says before it gets one.
package server
