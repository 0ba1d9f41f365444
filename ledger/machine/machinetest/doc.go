// Package machinetest is for tests of everything that stands on the state machine.
//
// A [Model] says what every command ought to give: the rules of the ledger once
// more, in maps and slices and as plainly as can be. It decides nothing by the
// machine's code, so that a mistake in either shows where they are compared.
//
// A [Ledger] is the machine itself over a state in memory, for tests that need
// right answers and neither a log nor a disk.
package machinetest
