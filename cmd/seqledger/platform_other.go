//go:build !unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner does nothing, because on this system a new file has the permissions of its directory.
func keepOwner(*os.File, fs.FileInfo) error { return nil }

// lockFile returns false, because on this system the lock would keep the file from being written.
func lockFile(*os.File) bool { return false }

// notForServers are signals that must not end a server.
var notForServers = []os.Signal{syscall.SIGPIPE}

// forwardedSignals are signals that a guard passes to its server in addition to the interrupt.
var forwardedSignals []os.Signal
