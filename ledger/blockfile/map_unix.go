//go:build unix

package blockfile

import "golang.org/x/sys/unix"

// Map implements [File].
func (f systemFile) Map(size int64) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
}

// Unmap implements [File].
func (f systemFile) Unmap(b []byte) error { return unix.Munmap(b) }
