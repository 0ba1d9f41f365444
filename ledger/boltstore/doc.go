// Package boltstore keeps the state of the ledger in one bbolt file with an
// in-memory write-back overlay in front of it, and its blocks in files beside it. It
// implements [machine.Reader]
// and [machine.Tx].
//
// # Where durability comes from
//
// The replicated log is the only durability point; the file is a checkpoint.
// [Store.Update] applies one log entry to an overlay in memory and returns
// without touching the disk, because the entry is already durable in the log.
// [Store.Flush] writes the gathered changes, sorted by key, in one fsynced bbolt
// transaction together with their log position. In a large file a large Flush
// uses a journal and several transactions (journal.go). After a crash the
// file holds the state at [Store.Checkpoint] exactly, and the owner of the
// store replays the log after that position.
//
// # Three layers, one view
//
//	active overlay   what Update writes
//	frozen overlay   what a running or interrupted Flush is writing (absent otherwise)
//	bbolt file       the last checkpoint
//
// A read takes the first layer that has the key; a layer can also have a deletion (a
// tombstone). A Flush moves active to frozen, commits frozen to bbolt, and only
// then drops frozen. In between the same data is in two layers, which is
// harmless because frozen hides bbolt key by key with equal values: a read is
// the same whether its bbolt transaction began before or after the commit, or between
// two of the commits of a Flush that has a journal.
// Frozen is dropped under the exclusive lock, so no View can have begun before
// the drop and still need it.
//
// # Memory of the overlay
//
// Hundreds of thousands of changes gather before a Flush. They are in blocks of
// memory without pointers (arena.go), found by a map of hashes (overlaytable.go): as Go values
// in a map they took twice the memory, three times the time to insert, and most of the
// garbage collector's time. The large blocks are outside of Go's heap (pool.go) and are
// reused once the overlay has been flushed, so a slice that a View or Update was given
// must not be kept. The keys are sorted when a read needs their order; nothing depends
// on the order of the hash table.
//
// # Blocks
//
// The records of machine.TableBlocks are in no table of the file and in no overlay.
// An Update appends them to the block files beside the state file (package blockfile),
// where reads find them; they become visible to a View when the Update has ended. A
// Flush syncs the block files first and records in its transaction how far they reach.
// Blocks after that are not part of the state until the log has made them again,
// byte for byte; [Store.EndReplay] checks that it has made all of them.
// [Store.SyncBlocks] syncs between two flushes, so that a flush has less to wait for.
//
// # Locks
//
// In this order:
//
//	flushMu → presorting → mu → bbolt's own locks
//
// Flush commits while it holds flushMu but not mu, so Update and View run beside it.
// bbolt waits for open read transactions when it must map a larger file; a View or Update
// therefore opens at most one and never waits for a Flush while it is open. ViewBlocks takes
// a lock that Close alone takes for itself. View must not be called inside another View or
// Update of the same store: with a waiting Update between the two it would deadlock.
//
// # Damage
//
// Every value carries a CRC-32C over its table, key and bytes, checked at each read.
// bbolt has checksums on its two meta pages alone, so its other pages are read by
// package boltpage, which checks each on the way to a record. A miss proves itself
// (checkGap): the records on both sides of the gap are what was written and enclose
// the key. A walk checks its beginning in the same way, and every record that it
// passes. Open reads the inner pages and the list of free ones as a whole, and a
// flush checks the pages that it is about to write again (leafGuard). bbolt itself
// is left with writing, and with what has been checked before; its panics and memory
// faults of its map become errors that wrap [machine.ErrCorrupt].
//
// Damage that leads to an old copy of a page while the file is open is not noticed
// before the next Open. Damage of several bits may go unnoticed if the result is
// valid: only a check of the whole state (its chains of hashes) finds it.
//
// An error in Update, Flush or a read stops the store for good ([Store.Err]):
// half an entry in the overlay must never reach the file.
//
// # Format
//
// One bucket per table, named by the table's number in one byte; keys as they
// are; values followed by the checksum, four bytes, little endian. One bucket
// "seqledger" with the records "format" (magic, version), "identity", "applied"
// (index, term) and "blocks" (how far the block files reach), sealed in the same way
// under table number 255. The table of blocks has no bucket. One bucket "files" with what is
// sealed of the block files (sealedfiles.go). In the middle of a Flush, one bucket "journal".
package boltstore
