// Package pagesum keeps a checksum of every page of a bbolt file that is in use, in a file beside it.
//
// bbolt has no checksums of pages. A flipped bit in an inner page, or in the header of a leaf, can
// lead past an existing record, and a write that was acknowledged would be run again. With the
// checksums a page is checked before it is used for the first time, and all of them can be read
// again in the background.
//
// # The rule
//
// bbolt never changes a page in place: a transaction writes new pages, and those that it replaces
// are then free for the next transactions. So a page that is in use before and after a
// transaction has not changed, and only the pages that a transaction has taken into use get a new
// checksum: those that were not in use before it.
//
// # The file
//
// All numbers are little-endian. The file is a header and a record for each transaction, in order:
//
//	header                                    record
//	offset bytes                              offset bytes
//	     0    16  "seqledger sums 1"               0     8  transaction id
//	    16     8  tag of the ledger                8     4  n
//	    24     4  CRC-32C of these bytes          12  12 n  number of a page and its CRC-32, 8 and 4 bytes
//	                                              12+12 n  4  CRC-32C, continued
//
// The checksum of a page is CRC-32 (IEEE 802.3), because its records end with their CRC-32C: see sumOf.
//
// The CRC-32C of a record continues that of what is before it, and each transaction is the one that
// comes next. So nothing can be missing between two records, nor be of another time. A file that has
// become more than twice as long as the checksums of all pages is replaced by a new one, which begins
// with those after the transaction before.
//
// # A crash
//
// The checksums are written and synced after the bbolt transaction, and nothing relies on that
// transaction before. A crash in between leaves the checksums of the previous transaction, perhaps
// with a part of the next record after them. They are right for the pages that were in use before;
// the others get theirs when the file is opened. Any other difference is refused: one of the files
// is damaged or an old copy, or the disk has lost what it had synced.
package pagesum
