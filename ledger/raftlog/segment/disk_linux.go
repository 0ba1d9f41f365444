package segment

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate allocates a file's blocks and sets its size.
func allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		// Not every file system can allocate. A full disk then shows at a write instead of here.
		return f.Truncate(size)
	}
	return err
}

func syncData(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		// An interrupted call is repeated, as package os does, because a signal must not count as a failed sync.
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("fdatasync "+f.Name(), err)
		}
	}
}
