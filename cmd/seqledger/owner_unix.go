//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives a file the owner and the group of another. Only root may change an owner.
func keepOwner(f *os.File, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil // not from this system
	}
	return f.Chown(int(stat.Uid), int(stat.Gid))
}
