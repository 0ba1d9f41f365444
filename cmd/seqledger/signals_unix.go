//go:build unix

package main

import (
	"os"
	"syscall"
)

// notForServers are signals that would end a server without a drain, although the system call
// that raised them returns an error that is handled: the reader of the output may go away, and
// a limit of the file size must be an ordinary storage failure. SIGHUP asks a service to read
// its files again, which must not end a server that has none.
var notForServers = []os.Signal{syscall.SIGPIPE, syscall.SIGXFSZ, syscall.SIGHUP}

// forwardedSignals are signals that a guard passes to its server in addition to SIGINT and SIGTERM.
var forwardedSignals = []os.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}
