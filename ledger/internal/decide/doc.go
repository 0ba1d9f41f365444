// Package decide has the decisions of the engine that need no disk, no
// goroutine and no clock of their own: what fits in a log entry, where the
// ledger time of a term begins, and which retries are answered without the log.
//
// They stand apart so that the simulator (package sim) runs the very same
// ones, on one thread and from a seed.
package decide
