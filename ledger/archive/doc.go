// Package archive keeps copies of sealed block files, states, and the log on a target: a directory, which may be a
// mounted share or a second disk, or a bucket of an S3 store (package s3). A ledger is restored from them alone, as it
// was at any moment.
//
// # What is in it
//
// Everything lies below the id of the ledger, so that one target may serve many ledgers. FORMAT has a random id, with
// which the ledger knows its archive again, and the ids that the ledger had before it was restored or recovered. The
// names of files have the number, the last ledger index and the hash: FORMAT.md of package ledger gives the bytes.
//
//	<ledger id>/FORMAT
//	<ledger id>/blocks/<number>-<last index>-<hash>.blocks
//	<ledger id>/state/<ledger index>-<log index>-<ledger time>-<random>/00001 and so on
//	<ledger id>/state/<ledger index>-<log index>-<ledger time>-<random>.state
//	<ledger id>/log/<day>/<first>-<last log index>-<hash>.log
//
// An object .state lists the parts of a state. It is put after them and the block files of the state, and removed
// before them. The log has the entries after the oldest state.
//
// An object has its name only once it is whole and durable, and no object ever changes. So a crash at any step loses
// nothing, a repeated copy is the same copy, and the nodes of a cluster may share an archive.
//
// A file is confirmed if a list of the target has it under its name with its size, and all files before it. The ledger
// removes nothing that is not confirmed. A target without FORMAT is no archive, so that the empty mount point of a
// missing file system is not taken for one.
//
// # Two histories
//
// A restored ledger has a new id, and so never meets the objects of the ledger that it was restored from. Two copies of
// one data directory have the same id: the second process is refused with ErrOther at the first file that differs.
package archive
