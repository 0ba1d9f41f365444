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
// All numbers are little-endian. The file is a sequence of pairs of slots, of 4,096 bytes each. The
// first pair has headers, pair 1+k has the checksums of the pages from 1,017*k on.
//
//	header                                    checksums
//	offset bytes                              offset bytes
//	     0    16  "seqledger sums 1"               0     4  k
//	    16     8  tag of the ledger                4     4  0
//	    24     8  transaction id                   8     8  tag of the ledger
//	    32     8  pages of the bbolt file         16     8  transaction id
//	    40     4  bytes of a page                 24  4068  CRC-32 of each page, any for a free one
//	    44     4  0                             4092     4  CRC-32C of the 4,092 bytes before
//	    48     8  digest of the pairs
//	    56  4036  0
//	  4092     4  CRC-32C as on the right
//
// The checksum of a page is CRC-32 (IEEE 802.3), because its records end with their CRC-32C: see sumOf.
//
// The transaction id is that of the bbolt transaction after which the slot was written. Of a pair the
// slot is written that is not in use. The digest says which slots belong to a header: it is the sum
// of a hash of k and the transaction id of each pair's slot, so that a header of which some slots did
// not reach the disk does not count. Then the other header counts, whose slots are all there.
//
// # A crash
//
// The checksums are written and synced after the bbolt transaction, and nothing relies on that
// transaction before. A crash in between leaves the checksums of the previous transaction. They are
// right for the pages that were in use before; the others get theirs when the file is opened. Any
// other difference is refused: one of the files is an old copy, or the disk has lost what it had
// synced.
package pagesum
