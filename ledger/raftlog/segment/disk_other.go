//go:build !linux

package segment

import "os"

// allocate gives a file its size; its blocks follow with the writes.
func allocate(f *os.File, size int64) error { return f.Truncate(size) }

func syncData(f *os.File) error { return f.Sync() }
