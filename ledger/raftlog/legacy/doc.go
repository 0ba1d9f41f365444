// Package legacy reads the logs of data directories of format 1, which were written by
// [github.com/hashicorp/raft] over [github.com/hashicorp/raft-wal]. Package raftlog
// converts them at the first start. Nothing writes them any more, but for the tests of
// this package, which have what did (writer_*_test.go).
//
// # How to read it
//
// read.go reads a copy of a log: it repairs the end (tail.go, frames.go), looks whether it
// is the one that belongs to the state store (disk.go, index.go, inspect.go), and visits
// its entries.
//
// # What holds
//
//   - Everything that was acknowledged is found. The remains of a write that was
//     interrupted are left out, and never taken for damage because of what a client put
//     into them (frames.go says how far that goes). Whole batches behind something
//     unreadable were acknowledged: such a log is refused.
//   - A log that is missing, foreign, shorter than the state store, or has a gap
//     behind it is refused with a [*DamageError].
//   - Every command carries a CRC-32C (checksum.go), checked for the whole log.
//   - A newest segment that held acknowledged entries and was deleted, emptied or
//     cut off is refused (segmentfiles.go), and so are snapshots whose metadata
//     changed (snapshot.go).
//
// What cannot be told apart: damage to the very last batch, with nothing whole
// behind it, looks like an interrupted write and is left out like one, unless the
// state store or the newest snapshot is known to be further (inspect.go).
//
// # On disk
//
//	Dir/wal/wal-meta.db   segments, Raft's term and vote, the identity
//	Dir/wal/*.wal         segments of entries
//	Dir/wal.tmp/          a creation that was interrupted; never read
//	Dir/snapshots/        positions up to which the state store is durable
//
// A local snapshot holds no state: only the identity and the position of the
// last command that the state store held durably when it was taken.
package legacy
