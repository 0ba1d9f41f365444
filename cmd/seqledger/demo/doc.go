// Package demo shows on one machine what the ledger is for. It runs a server,
// clients that pay, and a proxy between them that does what networks do; it
// kills the server and the clients; and then it compares what the clients meant
// to pay with what the ledger has.
//
// It does all of that twice, side by side. The clients of one column write
// through a Writer with a journal. Those of the other know nothing but to send
// again what was not answered, as a new write: so does a plain POST with
// retries. The server is the same for both, because it has no switch that would
// turn its protection off.
//
// Run (demo.go) is the parent: column.go is one side of the table, child.go the
// processes, audit.go the comparison. Everything that a client knows is in its
// book (book.go), a file that has nothing to do with the ledger or the journal,
// so that the audit does not ask the accused. The proxy is proxy.go for single
// calls and relay.go for write streams; what it does to which request comes
// from a shuffled deck (deck.go). Pay (payer.go) is a client process.
package demo
