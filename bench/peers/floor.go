package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// floorBytes is preallocated, and written once before, so that a sync has no
// journal of the file system to wait for.
const floorBytes = 64 << 20

// floor is what no ledger on this disk can beat: one loop that appends and
// syncs. With many callers it writes what waits with one sync.
type floor struct {
	file   *os.File
	at     int64
	writes uint64
}

func (f *floor) start(_ context.Context, dir string) (err error) {
	if f.file, err = os.Create(filepath.Join(dir, "floor")); err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < floorBytes; at += int64(len(zeros)) {
		if _, err := f.file.WriteAt(zeros, at); err != nil {
			return err
		}
	}
	return f.file.Sync()
}

func (f *floor) restart(context.Context) error { return nil }

func (f *floor) processes() []int { return []int{os.Getpid()} }

func (f *floor) stop() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

func (f *floor) connect(_ context.Context, at placement) (conn, error) {
	c := &floorConn{floor: f}
	if at.callers > 1 {
		c.loop = newBatcher(c.send)
	}
	return c, nil
}

// append writes all payloads and syncs once.
func (f *floor) append(payloads []byte) error {
	if f.at+int64(len(payloads)) > floorBytes {
		f.at = 0
	}
	if _, err := f.file.WriteAt(payloads, f.at); err != nil {
		return err
	}
	f.at += int64(len(payloads))
	return unix.Fdatasync(int(f.file.Fd()))
}

// floorConn appends for one caller directly, for many in one loop.
type floorConn struct {
	floor  *floor
	loop   *batcher
	buffer []byte
}

func (c *floorConn) send(calls []*call) {
	c.buffer = c.buffer[:0]
	for _, one := range calls {
		c.buffer = append(c.buffer, one.job.payload...)
	}
	err := c.floor.append(c.buffer)
	for _, one := range calls {
		c.floor.writes++
		one.answer, one.err = answer{reply: strconv.FormatUint(c.floor.writes, 10)}, err
	}
}

func (c *floorConn) do(ctx context.Context, j *job, repeat bool) (answer, error) {
	switch {
	case repeat:
		return answer{}, errors.New("the floor keeps no replies")
	case c.loop != nil:
		return c.loop.do(ctx, j, repeat)
	}
	c.floor.writes++
	return answer{reply: strconv.FormatUint(c.floor.writes, 10)}, c.floor.append(j.payload)
}

func (c *floorConn) close() error {
	if c.loop != nil {
		c.loop.close()
	}
	return nil
}
