// Package archive keeps copies of sealed block files in a directory: a mounted bucket, a share of another machine, a
// second disk. Files come in the order of their numbers, and never change.
//
// # What is in it
//
// The files have the names and the bytes that they have in the ledger's directory. INDEX has a line for each:
// FORMAT.md of package ledger gives its bytes. Each line has a hash of itself and of all lines before it, so
// that none can be changed, left out or exchanged without the ones after it.
//
// A file is confirmed once it is in INDEX. [Archive.Add] copies it under another name, syncs it, reads all of the
// copy, and only then gives it its name and its line. A crash at any step leaves what is confirmed as it was, and
// the next Add begins anew. The ledger removes nothing that is not confirmed.
//
// INDEX is made once, by [Create], and has a random id. A directory without it is no archive, so that the empty mount
// point of a missing file system is not taken for one.
//
// # Two ledgers
//
// An archive belongs to one ledger. A process that adds a file holds LOCK, with flock, and must find the index as it
// left it. So of two processes with one archive the second gets ErrBusy, and later ErrOther. Some mounted file systems
// have no locks; there only the comparison protects, and not for the instant after it.
package archive
