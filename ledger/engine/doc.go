// Package engine decides what has an order on the way of a write: what is admitted, which commands form a log entry,
// when an entry may be proposed beside another, which outcome belongs to which submission, where the ledger time of a
// term begins, which retries are answered without the log, and which checkpoint, truncation of the log or removal of
// block files is next.
//
// It has no clock, goroutine, lock, channel or file. Its host, package ledger, serializes the calls of its methods; the
// simulator, package sim, calls them on one thread and from a seed.
package engine
