//go:build !linux

package segment

import "os"

// allocate sets a file's size; its blocks are allocated by later writes.
func allocate(f *os.File, size int64) error { return f.Truncate(size) }

func syncData(f *os.File) error { return f.Sync() }
