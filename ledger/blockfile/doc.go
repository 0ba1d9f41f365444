// Package blockfile stores the blocks of a ledger: records that are appended
// once, in the order of their ledger index, and never change.
//
// # Files
//
// A directory holds files of about 64 MiB, numbered from 1 without a gap. A file
// is a header, records, and, once it is sealed, a footer. The header has the
// SHA-256 of the previous file, so that the files form a chain and files of two
// directories cannot be mixed up. The footer has an index of the records and the
// SHA-256 of everything before it. FORMAT.md of package ledger has the bytes.
//
// A record is found by a ledger index: by the file, whose first and last index are
// in memory, then by the file's index, which has one entry for each 16 KiB, then
// by a walk over the headers of the records in between.
//
// # What is durable, and what a start does
//
// [Files.Append] writes to the system's cache. [Files.Sync] makes durable what
// was appended and returns the [Mark] to record: the caller's checkpoint. A crash
// loses any part of what follows the mark, and the caller appends the same
// records again, in the same order, because its log has them.
//
//   - Existing bytes must be the same. A whole record that differs means that the
//     log or the program is not the one that wrote it: an error that names both.
//   - A record whose checksum is wrong was torn by the crash. It is written again.
//   - [Files.Finish] ends this. A whole record after the last one appended proves
//     that the log has lost its end: an error. Other bytes there were torn, and
//     are cut off.
//
// Up to the mark no byte may differ: damage there is an error, at the start for
// the file that is still written, when it is read for a sealed one.
//
// # Concurrency
//
// One goroutine appends. Readers take no lock that an append holds for longer than
// it takes to exchange a pointer, and never see a record before [Files.Publish].
// At most 64 sealed files are open, in addition to those that a [Reader] holds.
package blockfile
