// Package segment stores the entries of a replicated log in files of a fixed size, together with Raft's term and vote,
// so that one sync makes both durable. It imports only the standard library and golang.org/x/sys; goroutines, clock and
// randomness are left to the caller.
//
// # How to read it
//
// record.go has the byte format, log.go the writes, open.go recovery at a start, read.go the reads. [Disk] is the
// storage under a log: a directory or, in tests, package simdisk, which loses unsynced data.
//
// # What holds
//
//   - Everything appended before a [Log.Sync] that returned nil survives a crash at any
//     moment (TestLogIsItsModel, TestKilledProcess).
//   - A crash leaves a prefix of what was appended. In each such prefix the commit
//     index covers no entry that was to be replaced (TestCommitComesWithItsEntries).
//   - The first error is final: nothing is written after it (TestFirstErrorIsFinal,
//     TestFullDisk).
//   - The next start removes the remains of an interrupted write, and writes and syncs the
//     valid tail again, because a failed sync or a killed process may have left it in the
//     system's cache only (TestTornTail, TestLogIsItsModel).
//   - Any other change of synced data is refused with a [DamageError]: flipped bits,
//     cuts, lost and swapped sectors and files (TestDamage_*). A later record that was written
//     when the damaged bytes were durable distinguishes damage from an interrupted write. No
//     payload can be mistaken for such a record, because each segment has a random salt that no
//     client sees.
//   - Damage may silently lose the last record of a log that was not closed, because it
//     looks like an interrupted write. Close writes one more record, so that in a closed log
//     this cannot happen to an entry.
//   - A newest segment that held synced entries and is lost or emptied is refused: the previous
//     segment is sealed only when the next one has durable records, and before they are
//     acknowledged (TestDamage_SegmentFiles).
//   - The term of any entry is known without reading the disk. The index in memory is bounded:
//     one point for each 64 KiB, for each change of term and for each segment.
//
// The salt is visible to anyone who can read the files. It protects against clients, not against someone who edits the
// disk.
//
// # On disk
//
// Files are named by number, 16 hexadecimal digits and ".log". All numbers are little endian. A file begins with a
// header of 4,096 bytes, durable before the file has its name:
//
//	 0  magic "seqseg\x00\x01"; the last byte is the version
//	 8  number of the segment, 1 for the first
//	16  size of the file in bytes
//	24  salt, 8 bytes; each checksum in the file begins with it
//	32  marker, 4 bytes, in each record
//	36  checksum of the last record before this segment
//	40  1 if everything before this segment is obsolete, else 0
//	48  index and term of the entry before this segment's first
//	64  term, vote and commit index at the start of this segment
//	88  index and term of the checkpoint
//	104 length of the checkpoint's data, length of the identity
//	120 the checkpoint's data and the identity, then zeros
//	4092 CRC-32C of the preceding bytes
//
// Records follow, each padded with zeros to a multiple of 8 bytes:
//
//	 0  CRC-32C of the salt and everything after this field
//	 4  marker of the segment
//	 8  checksum of the previous record: the records are a chain
//	12  length of the payload in bytes
//	16  durable length of the file when the record was written, 8 bytes
//	20  kind, the caller's kind of entry, 2 zeros
//	24  index, term
//	40  payload
//
// The kinds are: 1, an entry; 2, term, vote and commit index; 3, a rewind: the entries after the index are replaced; 4,
// a checkpoint; 5, a seal, the last record of a file.
package segment
