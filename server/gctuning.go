package server

import "runtime/debug"

const (
	// collectPercent is the GC percentage. It is less than the default of 100, because most of a large heap are changes
	// that wait for a checkpoint, which are long-lived and cheap to scan.
	collectPercent = 50
	// collectFloor allows this much garbage even on a small heap. Without it a server with a heap of 20 MB would
	// collect after each 10 MB, thirty times a second under load, which took a sixth of its processor time.
	collectFloor = 32 << 20
)

// ballast counts as heap but is never touched, so it takes address space and no memory.
var ballast []byte //nolint:unused // It is only held, never read.

// TuneCollector tunes the garbage collector of a process that only serves: the heap may grow to half more than the live
// data plus 32 MiB.
func TuneCollector() {
	debug.SetGCPercent(collectPercent)
	ballast = make([]byte, collectFloor*100/collectPercent)
}
