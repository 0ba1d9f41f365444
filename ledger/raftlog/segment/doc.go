// Package segment keeps the entries of a replicated log in files of a fixed size,
// with Raft's term and vote beside them, so that one sync makes both durable. It
// imports the standard library and golang.org/x/sys alone; goroutines, clock and
// randomness are the caller's.
//
// # How to read it
//
// record.go has the bytes, log.go what writes, open.go what a start finds, read.go
// what reads. [Disk] is what a log lives on: a directory, or in tests package
// simdisk, which loses what was not synced.
//
// # What holds
//
//   - What was appended before a [Log.Sync] that returned nil is there after a
//     crash at any moment (TestLogIsItsModel, TestKilledProcess).
//   - A crash leaves a first part of what was appended. In each such part the commit
//     index covers no entry that was to be replaced (TestCommitComesWithItsEntries).
//   - The first error is final: nothing is written after it (TestFirstErrorIsFinal,
//     TestFullDisk).
//   - The remains of an interrupted write are removed at the next start, and what
//     counts is written again and synced, because a failed sync or a killed process
//     leaves it in the system's cache alone (TestTornTail, TestLogIsItsModel).
//   - Any other change of what was synced is refused with a [DamageError]: flipped
//     bits, cuts, lost and exchanged sectors and files (TestDamage_*). Damage is told
//     from an interrupted write by a record behind it that was written when the damaged
//     bytes were durable. No payload can be taken for such a record, because each
//     segment has a random salt that no client sees.
//   - The last record of a log that was not closed may be lost by damage without
//     a word, because it looks like an interrupted write. Close writes one more
//     record, so that a log that was closed has no such last entry.
//   - A newest segment that held synced entries and is lost or emptied is refused: the one
//     before is sealed only when the next has durable records, and before they are
//     acknowledged (TestDamage_SegmentFiles).
//   - The term of any entry is known without reading the disk. Memory is bounded
//     by a point for each 64 KiB, for each change of term and for each segment.
//
// The salt is no secret from who can read the files; it keeps clients out, not
// someone who edits the disk.
//
// # On disk
//
// Files are named by number, 16 hexadecimal digits and ".log". All numbers are
// little endian. A file begins with a header of 4,096 bytes, durable before the
// file has its name:
//
//	 0  magic "seqseg\x00\x01"; the last byte is the version
//	 8  number of the segment, 1 for the first
//	16  size of the file in bytes
//	24  salt, 8 bytes; each checksum in the file begins with it
//	32  marker, 4 bytes, in each record
//	36  checksum of the last record before this segment
//	40  1 when nothing before this segment counts, else 0
//	48  index and term of the entry before this segment's first
//	64  term, vote and commit as they are here
//	88  index and term of the checkpoint
//	104 length of the checkpoint's data, length of the identity
//	120 the two, then zeros
//	4092 CRC-32C of what is before
//
// Records follow, each padded with zeros to a multiple of 8 bytes:
//
//	 0  CRC-32C of the salt and of all that follows
//	 4  marker of the segment
//	 8  checksum of the record before: the records are a chain
//	12  length of the payload in bytes
//	16  up to where the file was durable when the record was written, in 8 bytes
//	20  kind, the caller's kind of entry, 2 zeros
//	24  index, term
//	40  payload
//
// The kinds are 1 an entry; 2 term, vote and commit; 3 a rewind: the entries behind
// the index are replaced; 4 a checkpoint; 5 a seal, the last record of a file.
package segment
