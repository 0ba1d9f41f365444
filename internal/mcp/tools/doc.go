// Package tools offers a ledger to agents as tools of the Model Context Protocol: reservations, keyed writes and the
// state of streams. Every error says what the agent should do next.
package tools
