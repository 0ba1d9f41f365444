//go:build !unix

package listen

// filesLimit returns 0: this system has no limit of that kind.
func filesLimit() uint64 { return 0 }
