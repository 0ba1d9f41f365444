//go:build !unix

package main

import (
	"os"
	"syscall"
)

// notForServers are signals that must not end a server.
var notForServers = []os.Signal{syscall.SIGPIPE}

// forwardedSignals are signals that a guard passes to its server in addition to the interrupt.
var forwardedSignals []os.Signal
