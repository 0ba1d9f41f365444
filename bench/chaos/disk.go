package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
)

// smallDisk returns how many bytes the disk that can be full has: room for two files of the log, a state that is
// fetched beside the node's own, and what a run of a duration writes. It takes the longer to fill the more it has.
func smallDisk(duration time.Duration) int64 {
	const files, second = 256 << 20, 3 << 20
	return files + int64(duration.Seconds()*second)
}

// mountSmall makes a small disk in memory at a path. why says why there is none, because that takes more rights than
// most users have.
func mountSmall(ctx context.Context, path string, bytes int64) (why string) {
	if os.Geteuid() != 0 {
		return "it takes a mount, and that takes root"
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err.Error()
	}
	mount := exec.CommandContext(ctx, "mount", "-t", "tmpfs", "-o", fmt.Sprint("size=", bytes), "seqledger-chaos", path)
	out, err := mount.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("mount: %s: %s", err, strings.TrimSpace(string(out)))
	}
	return ""
}

// unmount removes the small disk after a run, unless somebody wants to look at what is on it. It returns err, and its
// own.
func (o *options) unmount(err error, path string, stdout io.Writer) error {
	switch {
	case path == "":
		return err
	case err != nil || o.keep:
		say(stdout, "the last node is on a disk in memory; when it is not needed any more: umount %s\n", path)
		return err
	}
	if out, err := exec.Command("umount", path).CombinedOutput(); err != nil {
		return fmt.Errorf("umount: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// fill takes all that a disk has left with one file.
func fill(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// The last of them take what is too little for a large one.
	for _, size := range []int{1 << 20, 4 << 10} {
		for chunk := make([]byte, size); err == nil; {
			_, err = f.Write(chunk)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return err
		}
		err = nil
	}
	return nil
}

// fillDisk leaves nothing of the disk of the last node to it for a while. It refuses writes or stops, whichever comes
// first, and must have everything when there is room again.
func fillDisk(ctx context.Context, a *adversary) error {
	d, filler := a.c.nodes[len(a.c.nodes)-1], filepath.Join(a.c.small, "filler")
	err := fill(filler)
	harness.Pause(ctx, a.between(time.Second, 4*time.Second))
	if err := errors.Join(err, os.Remove(filler)); err != nil {
		return err
	}
	return errors.Join(d.stop(), a.c.start(ctx, d))
}
