package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/seqledger/seqledger/bench/harness"
)

// syncCounter counts how often processes have had a file synced. It slows them
// down, so that a measurement of speed must not have one.
type syncCounter struct {
	process *harness.Process
	control *os.File // perf alone: tells it when to count
	answers *bufio.Reader
	output  string
	parse   func(output string) (int64, error)
}

// errNoCounter says that there is nothing to count with.
var errNoCounter = errors.New(
	"syncs are not counted: neither perf (with tracepoints) nor strace is here; on Debian: apt-get install strace")

// countSyncs begins to count; nothing counts before it returns. dir is where the
// processes write, scratch where the counter may.
func countSyncs(pids []int, dir, scratch string) (*syncCounter, error) {
	if c, err := countWithPerf(pids, dir, scratch); err == nil || !errors.Is(err, errNoCounter) {
		return c, err
	}
	return countWithStrace(pids, scratch)
}

// syncEvents returns the tracepoints for a sync: that of the file system, which
// also sees writes to files opened with O_SYNC, or else the calls.
func syncEvents(dir string) []string {
	events := []string{"syscalls:sys_enter_fsync", "syscalls:sys_enter_fdatasync"}
	var info syscall.Statfs_t
	if syscall.Statfs(dir, &info) == nil {
		const ext4, xfs = 0xef53, 0x58465342
		switch info.Type {
		case ext4:
			events = []string{"ext4:ext4_sync_file_enter"}
		case xfs:
			events = []string{"xfs:xfs_file_fsync"}
		}
	}
	for _, event := range events {
		if _, err := os.Stat("/sys/kernel/tracing/events/" + strings.ReplaceAll(event, ":", "/")); err != nil {
			return nil
		}
	}
	return events
}

func countWithPerf(pids []int, dir, scratch string) (*syncCounter, error) {
	events := syncEvents(dir)
	path, err := exec.LookPath("perf")
	if err != nil || events == nil {
		return nil, errNoCounter
	}
	controlOut, control, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	answers, answersIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c := &syncCounter{control: control, answers: bufio.NewReader(answers),
		output: filepath.Join(scratch, "perf"), parse: parsePerf}
	command := exec.Command(path, "stat", "-x", ",", "-o", c.output, "-D", "-1", "--control", "fd:3,4",
		"-e", strings.Join(events, ","), "-p", joined(pids))
	command.ExtraFiles = []*os.File{controlOut, answersIn}
	c.process, err = harness.Launch(command, c.output+".log", nil)
	_, _ = controlOut.Close(), answersIn.Close() // perf has its own
	if err != nil {
		return nil, err
	}
	c.process.Signal = os.Interrupt
	if err := c.tell("enable"); err != nil {
		return nil, errors.Join(fmt.Errorf("perf: %w; %s", err, c.process.Tail()), c.process.Stop())
	}
	return c, nil
}

// tell sends perf a command and waits until it is done.
func (c *syncCounter) tell(order string) error {
	if _, err := c.control.WriteString(order + "\n"); err != nil {
		return err
	}
	_, err := c.answers.ReadString('\n')
	return err
}

func countWithStrace(pids []int, scratch string) (*syncCounter, error) {
	path, err := exec.LookPath("strace")
	if err != nil {
		return nil, errNoCounter
	}
	c := &syncCounter{output: filepath.Join(scratch, "strace"), parse: parseStrace}
	command := exec.Command(path, "-f", "-c", "-e", "trace=fsync,fdatasync", "-o", c.output, "-p", joined(pids))
	if c.process, err = harness.Launch(command, c.output+".log", nil); err != nil {
		return nil, err
	}
	c.process.Signal = os.Interrupt
	return c, nil
}

// count ends the counting and returns the number of syncs.
func (c *syncCounter) count() (int64, error) {
	var err error
	if c.control != nil {
		err = c.tell("disable")
	}
	if err := errors.Join(err, c.process.Stop()); err != nil {
		return 0, err
	}
	b, err := os.ReadFile(c.output)
	if err != nil {
		return 0, err
	}
	return c.parse(string(b))
}

// parsePerf adds up the counts of perf stat -x ,.
func parsePerf(output string) (sum int64, err error) {
	found := false
	for line := range strings.Lines(output) {
		value, rest, ok := strings.Cut(line, ",")
		if !ok || !strings.Contains(rest, ":") {
			continue
		}
		found = true
		if value == "<not counted>" {
			continue // the processes did not run in all that time, and so synced nothing
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("perf: %q", line)
		}
		sum += n
	}
	if !found {
		return 0, fmt.Errorf("perf counted nothing: %q", output)
	}
	return sum, nil
}

// parseStrace adds up the calls of strace -c.
func parseStrace(output string) (sum int64, err error) {
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if len(fields) < 5 || !slices.Contains([]string{"fsync", "fdatasync"}, fields[len(fields)-1]) {
			continue
		}
		n, err := strconv.ParseInt(fields[3], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("strace: %q", line)
		}
		sum += n
	}
	return sum, nil
}

func joined(pids []int) string {
	var b strings.Builder
	for i, pid := range pids {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); errors.Is(err, fs.ErrNotExist) {
			continue // it has ended meanwhile, and the counters take living ones alone
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(pid))
	}
	return b.String()
}
