// Package operation reads the operations of a write as people give them to the command line: as
// flags (flags.go), or as JSON (json.go), for write --operations and for the lines of an import. It
// checks them as the ledger would (check.go), so that an import stops before its first line and not
// in the middle, and shows them. kinds.go has a line for each kind of operation.
package operation
