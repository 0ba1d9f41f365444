package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/internal/load"
)

// smallDisk returns how many bytes the disk that can be full has: room for two files of the log, a state that is
// fetched beside the node's own, and what a run of a duration writes. It takes the longer to fill the more it has.
func smallDisk(duration time.Duration) int64 {
	const files, second = 256 << 20, 3 << 20
	return files + int64(duration.Seconds()*second)
}

// diskOf returns where the disk of a node is mounted, or its directory is where it has no disk.
func diskOf(dir string, number int) string { return filepath.Join(dir, fmt.Sprint("node", number)) }

// mountDisks makes a disk for each node: a file with an ext4 in it. why says why there are none, because that takes
// Linux, root, and loop devices.
func mountDisks(ctx context.Context, dir string, n int, bytes int64) (unmount func() error, why string) {
	if os.Geteuid() != 0 {
		return nil, "they take mounts, and those take root"
	}
	var mounted []string
	unmount = func() error {
		var errs []error
		for _, path := range mounted {
			errs = append(errs, run(context.WithoutCancel(ctx), dir, "umount", path))
		}
		return errors.Join(errs...)
	}
	for i := 1; i <= n; i++ {
		path := diskOf(dir, i)
		image := path + ".ext4"
		err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, bytes), os.MkdirAll(path, 0o755))
		if err == nil {
			// Without blocks for root alone: the nodes are root's.
			err = run(ctx, dir, "mkfs.ext4", "-q", "-m", "0", image)
		}
		if err == nil {
			err = run(ctx, dir, "mount", "-o", "loop", image, path)
		}
		if err != nil {
			return nil, errors.Join(err, unmount()).Error()
		}
		mounted = append(mounted, path)
	}
	return unmount, ""
}

// fill takes all that a disk has left with one file.
func fill(ctx context.Context, path string) (err error) {
	var space syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &space); err != nil {
		return err
	}
	// Most of it at once and without writing it; the writes find where it ends.
	const rest = 1 << 20
	if free := int64(space.Bavail) * space.Bsize; free > rest {
		if err := run(ctx, filepath.Dir(path), "fallocate", "-l", fmt.Sprint(free-rest), path); err != nil {
			return err
		}
	}
	// A file system keeps blocks back for a file while it is open, and until it knows where it puts what it has: it is
	// full when a file that is opened anew takes nothing.
	for wrote := int64(1); wrote > 0 && err == nil; {
		wrote, err = fillOnce(path)
	}
	return err
}

// fillOnce appends to a file until there is no room, and returns how many bytes that were.
func fillOnce(path string) (wrote int64, err error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Sync(), f.Close()) }()
	for chunk := make([]byte, 1<<10); ; { // what the smallest file of an ext4 takes
		n, err := f.Write(chunk)
		wrote += int64(n)
		if errors.Is(err, syscall.ENOSPC) {
			return wrote, nil
		}
		if err != nil {
			return wrote, err
		}
	}
}

// diskFaults are what can happen to a disk.
var diskFaults = []fault{
	{"a disk is full", 2, (*adversary).any, (*adversary).fillDisk},
	{"the leader's disk hangs", 2, (*adversary).leader, func(a *adversary, ctx context.Context, d *node) error {
		return a.hang(ctx, d, a.between(time.Second, 4*time.Second))
	}},
	{"the leader's disk is slow", 1, (*adversary).leader, (*adversary).slow},
	{"a disk is slow", 1, (*adversary).any, (*adversary).slow},
}

// fillDisk leaves nothing of its disk to a node for a while. It refuses writes or stops, whichever comes first, and
// must have everything when there is room again.
func (a *adversary) fillDisk(ctx context.Context, d *node) error {
	filler := filepath.Join(filepath.Dir(d.dir), "filler")
	err := fill(ctx, filler)
	load.Pause(ctx, a.between(time.Second, 4*time.Second))
	if err := errors.Join(err, os.Remove(filler)); err != nil {
		return err
	}
	// The file system frees the blocks when its journal commits; an earlier start would find the disk full.
	if err := run(ctx, d.dir, "sync", "--file-system", d.dir); err != nil {
		return err
	}
	return errors.Join(d.stop(), a.c.start(ctx, d))
}

// hang lets no write of a node to its disk end for a while, nor any sync. It answers and sends what it has meanwhile.
func (a *adversary) hang(ctx context.Context, d *node, duration time.Duration) error {
	path := filepath.Dir(d.dir)
	err := run(ctx, path, "fsfreeze", "--freeze", path)
	load.Pause(ctx, duration)
	return errors.Join(err, run(context.WithoutCancel(ctx), path, "fsfreeze", "--unfreeze", path))
}

// slow lets a node's disk hang again and again, so that a sync takes some hundred milliseconds.
func (a *adversary) slow(ctx context.Context, d *node) error {
	for range 10 + a.random.IntN(20) {
		if err := a.hang(ctx, d, a.between(50*time.Millisecond, 300*time.Millisecond)); err != nil {
			return err
		}
		load.Pause(ctx, a.between(time.Millisecond, 20*time.Millisecond))
	}
	return nil
}
