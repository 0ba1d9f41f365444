package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/seqledger/seqledger/internal/testkit/process"
)

// syncCounter counts how often processes have a file synced, with strace. It slows them down, so a measurement of
// speed must not have one.
type syncCounter struct {
	process *process.Process
	output  string
}

// countSyncs begins to count, or returns nil where there is no strace. scratch is a directory for the counter's files.
func countSyncs(pids []int, scratch string) (_ *syncCounter, err error) {
	path := process.Find("strace", "")
	if path == "" {
		return nil, nil
	}
	c := &syncCounter{output: filepath.Join(scratch, "strace")}
	command := exec.Command(path, "-f", "-c", "-e", "trace=fsync,fdatasync", "-o", c.output)
	for _, pid := range pids { // it leaves out those that have ended meanwhile
		command.Args = append(command.Args, "-p", strconv.Itoa(pid))
	}
	if c.process, err = process.Launch(command, c.output+".log", nil); err != nil {
		return nil, err
	}
	c.process.Signal = os.Interrupt
	return c, nil
}

// count ends the counting and returns the number of syncs.
func (c *syncCounter) count() (int64, error) {
	if err := c.process.Stop(); err != nil {
		return 0, err
	}
	b, err := os.ReadFile(c.output)
	if err != nil {
		return 0, err
	}
	return parseStrace(string(b))
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
