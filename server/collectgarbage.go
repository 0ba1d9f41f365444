package server

import "runtime/debug"

const (
	// collectPercent is how much the heap grows until it is collected. It is less
	// than the usual hundred, because most of a large heap are changes that wait for
	// a checkpoint, which live long and are cheap to look at.
	collectPercent = 50
	// collectFloor is what may be garbage however small the heap is. Without it a
	// server that holds 20 MB would collect after each 10 MB, thirty times a second
	// under load, which took a sixth of its processor time.
	collectFloor = 32 << 20
)

// ballast counts as heap and is never touched, so that it takes addresses and no
// memory.
var ballast []byte //nolint:unused // It is there to be held, not to be read.

// TuneCollector sets the garbage collector of a process that does nothing but
// serve: it may use 32 MiB more than it holds, and half as much again.
func TuneCollector() {
	debug.SetGCPercent(collectPercent)
	ballast = make([]byte, collectFloor*100/collectPercent)
}
