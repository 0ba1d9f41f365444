package chaos

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// guestFile is a file of an initramfs.
type guestFile struct {
	name string // without a leading slash; directories come before what is in them
	mode uint32 // as in struct stat
	data []byte
}

const (
	guestDirectory  = 0o040755
	guestExecutable = 0o100755
)

// writeInitramfs writes files as the kernel unpacks them: a cpio archive in the format newc
// (Documentation/driver-api/early-userspace/buffer-format.rst of Linux).
func writeInitramfs(w io.Writer, files []guestFile) error {
	out := bufio.NewWriter(w)
	pad := func(n int) { _, _ = out.WriteString(strings.Repeat("\x00", (4-n%4)%4)) } // Flush tells the first error
	for i, f := range append(files[:len(files):len(files)], guestFile{name: "TRAILER!!!"}) {
		const headerBytes = 110
		head := []any{
			i + 1, f.mode, 0, 0, 1, 0, len(f.data), 0, 0, 0, 0, // inode, mode, owner, group, links, time, size, devices
			len(f.name) + 1, 0, // with its final zero; no checksum
		}
		_, _ = fmt.Fprintf(out, "070701"+strings.Repeat("%08X", len(head)), head...)
		_, _ = fmt.Fprintf(out, "%s\x00", f.name)
		pad(headerBytes + len(f.name) + 1)
		_, _ = out.Write(f.data)
		pad(len(f.data))
	}
	return out.Flush()
}

// guestModules are the kernel modules of a guest with a disk and a network card of virtio and an ext4: each after
// those that it needs. Those that are built into a kernel are not among its files.
var guestModules = []string{
	"virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_blk",
	"failover", "net_failover", "virtio_net", "crc16", "crc32c_generic", "libcrc32c", "mbcache", "jbd2", "ext4",
}

// modules reads the guest's modules below a directory, such as lib/modules of a package of Debian.
func modules(dir string) (files []guestFile, err error) {
	wanted := map[string]int{}
	for i, name := range guestModules {
		wanted[name] = i
	}
	found := make([]*guestFile, len(guestModules))
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		name, isModule := strings.CutSuffix(filepath.Base(path), ".ko")
		place, ok := wanted[name]
		if err != nil || entry.IsDir() || !isModule || !ok {
			return err
		}
		data, err := os.ReadFile(path)
		// In the order in which they are loaded.
		name = fmt.Sprintf("modules/%02d-%s.ko", place, name)
		found[place] = &guestFile{name: name, mode: guestExecutable, data: data}
		return err
	})
	for _, f := range found {
		if f != nil {
			files = append(files, *f)
		}
	}
	return files, err
}
