// Package ledgermodel is a model of the ledger for tests.
//
// A [Model] computes the outcome of every command: the rules of the ledger in maps and slices, as plain as possible. It
// shares no code with the state machine, so that a mistake in either shows where they are compared.
//
// A [Ledger] is the state machine with a state in memory, for tests that need right answers and neither a log nor a
// disk.
package ledgermodel
