//go:build unix

package listen

import "syscall"

// filesLimit returns how many files the process may have open, 0 if unknown. The Go runtime has raised the soft limit
// to the hard limit.
func filesLimit() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return uint64(limit.Cur) //nolint:unconvert // Signed on some systems.
}
