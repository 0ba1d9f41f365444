package boltstore

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapPage returns a page of memory from the system, and the mapping that it is a part of. Without one it returns nil.
func mapPage() (page, mapping []byte) {
	// A huge page begins at a multiple of its size. The rest of the mapping is never touched and takes no memory.
	mapping, err := unix.Mmap(
		-1, 0, 2*hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil
	}
	skip := -uintptr(unsafe.Pointer(&mapping[0])) % hugePage
	page = mapping[skip : skip+hugePage : skip+hugePage]
	// An error is a system without huge pages.
	_ = unix.Madvise(page, unix.MADV_HUGEPAGE)
	return page, mapping
}

// unmap gives a mapping back. Without it the address space would leak, and nothing else.
func unmap(mapping []byte) { _ = unix.Munmap(mapping) }
