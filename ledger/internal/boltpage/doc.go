// Package boltpage reads the pages of a bbolt file and checks each before it is
// used. It writes nothing.
//
// bbolt has checksums on its two meta pages alone. Everywhere else it takes what a
// page says: it looks for a record where a damaged inner page leads and finds
// nothing, leaves out the last records of a page whose count is too low, follows a
// page that leads back to itself until the stack is full, and frees as many pages
// as a header says. But it also writes pages in one way only, and says most things
// twice. This package knows them:
//
//   - A page has its own number and one of four kinds, no two of which differ
//     in one bit.
//   - The first key of a page directly follows its elements, whose number is in the
//     header. Each key and value directly follows the previous one, and the last one
//     ends in the last of the pages that the header counts.
//   - The keys of a page ascend. They are not below the key that its parent has for
//     it, and below the one that the parent has for the next page.
//   - A page belongs to one place of one tree, or to the list of free pages.
//
// [Cursor] checks the first three on its way, so that a miss is a miss: the keys on
// both sides of the gap are where the inner pages lead, and in the right order.
// [Pages.Check] reads all inner pages and the list of free ones, and finds what one
// path does not show: a page number that leads to an old copy of a page, or a list
// of free pages that has a page in use. The contents of keys and values are left to
// the caller's checksums.
//
// The layout is that of the file format's version 2, which has been bbolt's since
// 2013; it depends on the byte order of the machine.
package boltpage
