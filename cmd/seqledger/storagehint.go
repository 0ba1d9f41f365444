package main

import (
	"errors"
	"net"
	"syscall"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/verify"
)

// isA reports whether an error is or wraps one of a type.
func isA[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}

// storageHint says what to do about a data directory that cannot be opened, or whose storage
// has failed. Each cause has its own hint, because a hint that fits every error helps with
// none.
func storageHint(err error, path string) string {
	const lossless = "and start again: nothing that was acknowledged is lost"
	is := func(errnos ...error) bool {
		for _, errno := range errnos {
			if errors.Is(err, errno) {
				return true
			}
		}
		return false
	}
	switch {
	case errors.Is(err, datadir.ErrClock):
		return "set the system's clock right; if it is right, give --accept-clock once; " +
			"if the ledger's own time is wrong, restore --ledger-time sets it back"
	case errors.Is(err, datadir.ErrInUse):
		return "another process has " + path + " open; stop it, or name another directory with --data"
	case errors.Is(err, datadir.ErrRestoring):
		return "run seqledger restore FILE --data " + path + " again, with the same backup or another"
	case errors.Is(err, datadir.ErrRecovering):
		return "run seqledger recover --data " + path + " --accept-lost-writes again"
	case isA[*cluster.OtherLedgerError](err):
		return "to join that cluster, name an empty directory with --data; to serve the ledger in " + path +
			", leave --join away and give clients other addresses than those of that cluster"
	case errors.Is(err, datadir.ErrOldCopy), isA[*raftlog.ForgottenError](err):
		return "put back the directory that this node had last; if it is gone, take the node out with " +
			"seqledger cluster remove, and let the machine join again with an empty directory; " +
			"never start a node on a copy of " + path
	case errors.Is(err, cluster.ErrRemoved):
		return "the other nodes go on without this one; to let the machine join again, empty " + path +
			" and start it with --join"
	case isA[*net.OpError](err):
		return "the network of this machine failed (the system's log may tell more); start again: nothing that was " +
			"acknowledged is lost"
	case is(syscall.ENOSPC, syscall.EDQUOT):
		return "the disk is full: make room on the file system of " + path +
			", but remove nothing inside that directory, " + lossless
	case is(syscall.EMFILE, syscall.ENFILE):
		return "there are too few file descriptors: raise the limit (ulimit -n, LimitNOFILE= of systemd) " + lossless
	case is(syscall.EROFS):
		return "the file system of " + path + " is mounted read-only, which systems do after an error of the disk: " +
			"read the system's log, repair the disk, mount it for writing, " + lossless
	case is(syscall.EACCES, syscall.EPERM):
		return "this user may not access all of " + path + ": give it back to the user who runs the server, " + lossless
	case errors.Is(err, cluster.ErrDiffers):
		return "keep " + path + " for the cause; take this node out with seqledger cluster remove, and let the " +
			"machine join again with an empty directory; if the program was just replaced, put the old one back before"
	case errors.Is(err, machine.ErrDiverged):
		return "if the program was just replaced, put the old one back, start and stop it, and replace it then; " +
			"otherwise keep " + path + " as it is, and restore the directory from a backup"
	case errors.Is(err, boltstore.ErrVersion):
		return "keep " + path + " as it is, and start the seqledger that wrote it: nothing is lost"
	case errors.Is(err, boltstore.ErrSums):
		return "nothing is lost: move state.sum out of " + path + ", run seqledger verify --data " + path +
			", and start again if that finds nothing"
	case verify.IsDamage(err):
		return "keep " + path + " unchanged, run seqledger verify --data " + path + " to see the damage, " +
			"and restore the directory from a backup; do not start a server on it before"
	case errors.Is(err, ledger.ErrFailed):
		return "repair the disk under " + path + " (the system's log may tell more) " + lossless
	case is(syscall.EIO):
		return "the disk under " + path +
			" cannot be read: the system's log may tell more; if the error persists, restore the directory from a " +
			"backup"
	}
	return ""
}
