package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// delaySyncs runs the same command with slower syncs, those of its servers too: strace holds each up before the disk
// hears of it, as the tests of faults do. What strace adds to a sync is some tens of microseconds, and nothing to
// other system calls.
func delaySyncs(ctx context.Context, delay time.Duration, kind string, flags *flag.FlagSet, stdout io.Writer) error {
	strace, err := exec.LookPath("strace")
	if err != nil {
		return errors.New("-sync-delay needs strace: apt-get install strace")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	arguments := []string{
		"-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", "signal=none", "-e", "trace=fsync,fdatasync",
		"-e", "inject=fsync,fdatasync:delay_enter=" + strconv.FormatInt(delay.Microseconds(), 10), self,
	}
	if kind != "" {
		arguments = append(arguments, kind)
	}
	flags.Visit(func(f *flag.Flag) {
		if f.Name != "sync-delay" {
			arguments = append(arguments, fmt.Sprintf("-%s=%s", f.Name, f.Value))
		}
	})
	if _, err := fmt.Fprintf(stdout, "Each sync takes %v longer.\n\n", delay); err != nil {
		return err
	}
	c := exec.CommandContext(ctx, strace, arguments...)
	c.Stdout, c.Stderr = stdout, os.Stderr
	// An interrupt rather than a kill, so that it removes what it has written and ends its servers.
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	return c.Run()
}
