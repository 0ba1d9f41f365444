//go:build !unix

package admission

// openFilesLimit returns 0: this system has no limit of that kind.
func openFilesLimit() uint64 { return 0 }
