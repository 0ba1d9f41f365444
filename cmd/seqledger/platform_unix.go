//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives a file the owner and the group of another. Only root may change an owner.
func keepOwner(f *os.File, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil // not from this system
	}
	return f.Chown(int(stat.Uid), int(stat.Gid))
}

// lockFile takes the lock of a file until it is closed, and returns false if another open file has it.
func lockFile(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// notForServers are signals that would end a server without a drain, although the system call
// that raised them returns an error that is handled: the reader of the output may go away, and
// a limit of the file size must be an ordinary storage failure. SIGHUP asks a service to read
// its files again, which must not end a server that has none.
var notForServers = []os.Signal{syscall.SIGPIPE, syscall.SIGXFSZ, syscall.SIGHUP}

// forwardedSignals are signals that a guard passes to its server in addition to SIGINT and SIGTERM.
var forwardedSignals = []os.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}
