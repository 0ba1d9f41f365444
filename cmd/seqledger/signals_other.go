//go:build !unix

package main

import (
	"os"
	"syscall"
)

// notForServers are signals that must not end a server.
var notForServers = []os.Signal{syscall.SIGPIPE}
