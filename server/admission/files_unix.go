//go:build unix

package admission

import "syscall"

// openFilesLimit returns how many files the process may have open, 0 if nobody
// can tell. Go has raised the limit to the highest that it may have.
func openFilesLimit() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return uint64(limit.Cur) //nolint:unconvert // Signed on some systems.
}
