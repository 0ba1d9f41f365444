package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The time that a server has to start and to end.
const (
	StartsWithin = 60 * time.Second
	endsWithin   = 60 * time.Second
)

// Process is a program that the harness has started and will end.
type Process struct {
	// Signal tells it to end; nil closes its standard input instead, as the programs that are the
	// harness itself want it, because they also end when the harness dies.
	Signal os.Signal
	Pid    int

	command *exec.Cmd
	stdin   io.Closer
	killed  bool
	ended   chan struct{}
	err     error  // of the process, once ended is closed
	log     string // a file with its output; "" where that goes to our standard error
}

// Script writes a program of the shell that a test starts. A shell of its own writes it: a process that another test
// starts at that moment would inherit the open file, and a file that is open for writing is not executed.
func Script(path, text string) error {
	write := exec.Command("/bin/sh", "-c", `cat >"$0" && chmod 700 "$0"`, path)
	write.Stdin = strings.NewReader("#!/bin/sh\n" + text)
	return write.Run()
}

// Launch starts a command whose output goes into a file, or "" to our standard error.
// credential is the user that it runs as, and may be nil.
func Launch(command *exec.Cmd, log string, credential *syscall.Credential) (*Process, error) {
	out := os.Stderr
	if log != "" {
		f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // The process has its own descriptor.
		out = f
	}
	if command.Stdout == nil {
		command.Stdout = out
	}
	command.Stderr = out
	command.SysProcAttr = attributes(credential)
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	p := &Process{Pid: command.Process.Pid, command: command, stdin: stdin, ended: make(chan struct{}), log: log}
	// Ends with the process, which Stop and Kill end and wait for.
	go func() {
		defer close(p.ended)
		p.err = command.Wait()
	}()
	return p, nil
}

// LaunchServer is Launch for a server that prints a line once it answers, and returns the line.
func LaunchServer(ctx context.Context, command *exec.Cmd, log string) (p *Process, line string, err error) {
	// Not StdoutPipe, because Launch waits at once, and Wait closes that pipe.
	out, in, err := os.Pipe()
	if err != nil {
		return nil, "", err
	}
	defer out.Close() //nolint:errcheck // Only the first line matters.
	command.Stdout = in
	p, err = Launch(command, log, nil)
	_ = in.Close() // the child has its own, so that the read below ends with the child
	if err != nil {
		return nil, "", err
	}
	err = out.SetReadDeadline(time.Now().Add(StartsWithin))
	stop := context.AfterFunc(ctx, func() { _ = out.SetReadDeadline(time.Now()) })
	defer stop()
	if err == nil {
		line, err = bufio.NewReader(out).ReadString('\n')
	}
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("%s did not start: %w; %s", command.Args, err, p.Tail()), p.Stop(),
			context.Cause(ctx))
	}
	return p, strings.TrimSpace(line), nil
}

// Self is a command that runs this program with other arguments, so that a server's usage is not mixed with the
// client's.
func Self(arguments ...string) *exec.Cmd { return exec.Command("/proc/self/exe", arguments...) }

// UntilStdinEnds is the life of a server that [Launch] has started from this program: it ends
// with ctx, or when the parent closes our standard input or dies.
func UntilStdinEnds(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	go func() { // ends with the standard input; the process outlives it by the drain
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return ctx, stop
}

// Ready waits until the process answers.
func (p *Process) Ready(ctx context.Context, answers func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, StartsWithin)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.ended:
			return fmt.Errorf("%s ended: %s; %s", p.command.Path, p.command.ProcessState, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w; %s", p.command.Path, err, p.Tail())
		}
	}
}

// Stop ends the process in an orderly way and returns how it ended. It may be called on nil, and
// again, and after Kill.
func (p *Process) Stop() error {
	if p == nil {
		return nil
	}
	if p.Signal == nil {
		_ = p.stdin.Close() // it may have ended already
	} else {
		_ = p.command.Process.Signal(p.Signal) // likewise
	}
	timer := time.NewTimer(endsWithin)
	defer timer.Stop()
	select {
	case <-p.ended:
		if p.err != nil && !p.killed && p.Signal == nil { // others say by it which signal it was
			return fmt.Errorf("%s: %w; %s", p.command.Args, p.err, p.Tail())
		}
		return nil
	case <-timer.C:
	}
	return errors.Join(fmt.Errorf("%s did not end within %s and was killed; %s", p.command.Path, endsWithin, p.Tail()),
		p.Kill())
}

// Kill ends the process like a crash.
func (p *Process) Kill() error {
	p.killed = true
	err := p.command.Process.Kill()
	<-p.ended
	return err
}

// Tail returns the end of what the process has said.
func (p *Process) Tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return "its output is above"
	}
	const most = 600
	return "its last words: " + string(b[max(0, len(b)-most):])
}

// Tree returns the process and all below it.
func (p *Process) Tree() []int {
	pids := []int{p.Pid}
	for i := 0; i < len(pids); i++ {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pids[i])) // an error is a bad pattern alone
		for _, task := range tasks {
			b, err := os.ReadFile(task)
			if err != nil {
				continue // it has ended meanwhile
			}
			for field := range strings.FieldsSeq(string(b)) {
				if child, err := strconv.Atoi(field); err == nil {
					pids = append(pids, child)
				}
			}
		}
	}
	return pids
}
