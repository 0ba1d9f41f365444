// Package machine is the deterministic state machine of a ledger: it decides
// every command and changes the state accordingly.
//
// A Machine is fed log entries by its host, in order:
//
//	m, err := machine.Open(tx)        // loads the head of the state
//	outcomes, err := m.Apply(tx, entry)
//
// An entry holds commands (AppendWrite, AppendOpenSession, …) and the time that
// the leader stamped on it. An outcome tells what became of a command:
// committed, replayed, or refused and why. An error comes from the storage
// alone, means that the state can no longer be trusted, and must stop the node.
//
// The same entries give the same state and digest on every node and at every
// replay. Therefore nothing here reads a clock, draws a random number, starts a
// goroutine, ranges over a map where order could show, uses floats or does I/O
// other than through Tx; a linter rule keeps the imports to the standard
// library, xxh3 and internal/keyed, which is as pure and holds the rules of
// keyed records. Whatever a decision needs is in the state or the command.
//
// The tables and every byte of keys and values are described in FORMAT.md, the
// reasons in DESIGN.md, both in the ledger directory.
package machine
