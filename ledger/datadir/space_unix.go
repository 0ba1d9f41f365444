//go:build linux || darwin

package datadir

import "golang.org/x/sys/unix"

// space returns what is left, and how much there is, of the file system
// that a path is on.
func space(path string) (free, size uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, 0, err
	}
	block := uint64(s.Bsize)
	return s.Bavail * block, s.Blocks * block, nil
}
