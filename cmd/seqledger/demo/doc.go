// Package demo shows on one machine what the ledger prevents. It runs a server, clients
// that pay, and a proxy between them that injects network faults. It kills the server and the
// clients, and then compares the intended payments with the ledger.
//
// It does all of that twice, side by side. The clients of one side write through a Writer
// with a journal. Those of the other repeat an unanswered request as a new write, like a plain
// POST with retries. Both use the same server.
//
// Run (demo.go) is the parent: side.go is one side of the table, package child has the
// processes, audit.go the comparison. Everything that a client knows is in its payment log, a file that is
// independent of the ledger and the journal, so that the audit is independent too. The proxy is
// that of package faultproxy; proxy.go decides the faults.
// Pay (payer.go) is a client process, and its work is that of the example in client/payments.
package demo
