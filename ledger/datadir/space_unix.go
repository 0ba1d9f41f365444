//go:build linux || darwin

package datadir

import "golang.org/x/sys/unix"

// space returns the free bytes and the size of the file system of a path.
func space(path string) (free, size uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, 0, err
	}
	block := uint64(s.Bsize)
	return s.Bavail * block, s.Blocks * block, nil
}
