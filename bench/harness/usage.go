package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/internal/load"
)

// Usage reads what servers and this process, their client, have used so far: processor time in
// µs, the bytes that the kernel charges to the servers, in whole pages, and the bytes that the
// block device of a directory has written for any process. Where pids has this process, the
// client's time is part of the server's. Other load on the machine disturbs processor time less
// than the rate.
func Usage(dir string, pids ...int) load.Meter {
	return func() (map[string]float64, error) {
		v := map[string]float64{"cpu_us_per_write": 0, "client_cpu_us_per_write": 0}
		for _, pid := range pids {
			cpu, err := processorTime(pid)
			v["cpu_us_per_write"] += float64(cpu.Microseconds())
			charged, errIO := procField(pid, "io", "write_bytes")
			v["charged_bytes_per_write"] += float64(charged)
			if err := errors.Join(err, errIO); err != nil && !gone(err) {
				return nil, err
			}
		}
		if self := os.Getpid(); !slices.Contains(pids, self) {
			cpu, err := processorTime(self)
			if err != nil {
				return nil, err
			}
			v["client_cpu_us_per_write"] = float64(cpu.Microseconds())
		}
		written, err := diskBytes(dir)
		v["bytes_per_write"] = float64(written)
		return v, err
	}
}

// gone reports whether all that failed is that a process has ended meanwhile.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// Memory adds up a size in the status of processes: VmRSS is what they have now, where shared pages count for each of
// them, and RssAnon is without mapped files, whose pages the kernel can drop.
func Memory(name string, pids ...int) (bytes int64) {
	for _, pid := range pids {
		if kibibytes, err := procField(pid, "status", name); err == nil { // otherwise it has ended
			bytes += kibibytes << 10
		}
	}
	return bytes
}

// procField returns a number from a file in /proc/<pid>.
func procField(pid int, file, name string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			return strconv.ParseInt(number, 10, 64)
		}
	}
	return 0, fmt.Errorf("/proc/%d/%s has no %s", pid, file, name)
}

// processorTime returns the processor time of a process so far: in hundredths of a second of
// others, and more exactly of this one.
func processorTime(pid int) (time.Duration, error) {
	if pid == os.Getpid() {
		var usage syscall.Rusage
		err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// From the last bracket, because the name of the program, in brackets, may
	// have anything in it.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const user, system = 11, 12
	if len(fields) <= system {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	userTicks, errUser := strconv.ParseInt(fields[user], 10, 64)
	systemTicks, errSystem := strconv.ParseInt(fields[system], 10, 64)
	const ticksPerSecond = 100 // of the kernel's interface, on every architecture that Go runs on
	return time.Duration(userTicks+systemTicks) * time.Second / ticksPerSecond, errors.Join(errUser, errSystem)
}

// diskBytes returns the bytes written by any process to the block device of a directory, or 0 if it has none. The
// kernel's count for a process is not suitable, because it counts a whole large page for every few dirty bytes.
func diskBytes(dir string) (int64, error) {
	var info syscall.Stat_t
	if err := syscall.Stat(dir, &info); err != nil {
		return 0, err
	}
	major, minor := info.Dev>>8&0xfff, info.Dev&0xff|info.Dev>>12&0xfff00
	b, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", major, minor))
	if err != nil {
		return 0, nil
	}
	fields := strings.Fields(string(b))
	const sectorsWritten = 6
	if len(fields) <= sectorsWritten {
		return 0, fmt.Errorf("statistics of the disk: %q", b)
	}
	sectors, err := strconv.ParseInt(fields[sectorsWritten], 10, 64)
	return sectors * 512, err
}
