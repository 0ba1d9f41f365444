package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage is what processes have used up so far.
type usage struct {
	cpu      time.Duration
	written  int64 // bytes, as the kernel charges them to the processes: whole pages
	resident int64 // bytes in memory now; shared ones count for each process
}

// usageOf adds up the usage of processes. One that has ended counts nothing.
func usageOf(pids []int) (sum usage, err error) {
	for _, pid := range pids {
		u, err := usageOfOne(pid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue
		}
		if err != nil {
			return sum, err
		}
		sum.cpu += u.cpu
		sum.written += u.written
		sum.resident += u.resident
	}
	return sum, nil
}

func usageOfOne(pid int) (u usage, err error) {
	stat, errStat := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	status, errIO := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err := errors.Join(errStat, errIO); err != nil {
		return u, err
	}
	// The name of the program, in brackets, may have anything in it.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const user, system, resident = 11, 12, 21
	if len(fields) <= resident {
		return u, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var ticks, pages int64
	for _, field := range []struct {
		to   *int64
		text string
	}{{&ticks, fields[user]}, {&ticks, fields[system]}, {&pages, fields[resident]},
		{&u.written, after(string(status), "\nwrite_bytes: ")}} {
		n, err := strconv.ParseInt(field.text, 10, 64)
		if err != nil {
			return u, fmt.Errorf("/proc/%d: %w", pid, err)
		}
		*field.to += n
	}
	const ticksPerSecond = 100 // of the kernel's interface, on every architecture that Go runs on
	u.cpu = time.Duration(ticks) * time.Second / ticksPerSecond
	u.resident = pages * int64(os.Getpagesize())
	return u, nil
}

// after returns what follows a label on its line.
func after(text, label string) string {
	_, rest, _ := strings.Cut(text, label)
	line, _, _ := strings.Cut(rest, "\n")
	return line
}

// diskBytes returns how many bytes have been written to the block device that a
// directory is on, whoever wrote them; 0 where it is not a device of its own.
func diskBytes(dir string) (int64, error) {
	var info syscall.Stat_t
	if err := syscall.Stat(dir, &info); err != nil {
		return 0, err
	}
	major, minor := info.Dev>>8&0xfff, info.Dev&0xff|info.Dev>>12&0xfff00
	b, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", major, minor))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	fields := strings.Fields(string(b))
	const sectorsWritten = 6
	if err != nil || len(fields) <= sectorsWritten {
		return 0, fmt.Errorf("statistics of the disk: %q %w", b, err)
	}
	sectors, err := strconv.ParseInt(fields[sectorsWritten], 10, 64)
	return sectors * 512, err
}
