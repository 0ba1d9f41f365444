package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// process is a server in a process of its own.
type process struct {
	command *exec.Cmd
	stdin   io.Closer
	address string
	opened  time.Duration // from the start of the process until it listened
	ended   bool
}

// startServer starts a server on a data directory, with more arguments if there are
// any, and waits until it listens.
func startServer(ctx context.Context, o *options, dir string, more ...string) (*process, error) {
	arguments := append([]string{"-serve", dir, "-checkpoint-bytes", strconv.FormatInt(o.checkpointBytes, 10)}, more...)
	if o.profile != "" {
		arguments = append(arguments, "-profile", o.profile+"-server")
	}
	p := &process{command: exec.Command(os.Args[0], arguments...)}
	p.command.Stderr = os.Stderr
	// In a group of its own, so that an interrupt reaches us alone and the
	// server is told by its standard input.
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdin, err := p.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the server did not start: %w", err), p.stop(), context.Cause(ctx))
	}
	p.opened, p.address = time.Since(began), strings.TrimSpace(address)
	return p, nil
}

// stop ends the server cleanly. After kill it does nothing.
func (p *process) stop() error {
	if p.ended {
		return nil
	}
	p.ended = true
	return errors.Join(p.stdin.Close(), p.command.Wait())
}

// kill ends the server like a crash.
func (p *process) kill() error {
	p.ended = true
	if err := p.command.Process.Kill(); err != nil {
		return err
	}
	_ = p.command.Wait() // says that it was killed
	return nil
}

// procField returns a number from a file in /proc/<pid>.
func (p *process) procField(file, name string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.command.Process.Pid, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("/proc/%d/%s has no %s", p.command.Process.Pid, file, name)
}

// anonymous returns how many bytes of memory the server has without mapped files: the state
// file is mapped, and its pages belong to the kernel.
func (p *process) anonymous() (int64, error) {
	kibibytes, err := p.procField("status", "RssAnon")
	return kibibytes << 10, err
}

// written returns how many bytes the server has made dirty for the disk. The
// kernel counts whole pages.
func (p *process) written() (int64, error) { return p.procField("io", "write_bytes") }

// memoryWatch samples a server's memory until it is stopped.
type memoryWatch struct {
	largest atomic.Int64
	cancel  context.CancelFunc
	done    sync.WaitGroup
}

// watchMemory begins to sample.
func (p *process) watchMemory(ctx context.Context) *memoryWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &memoryWatch{cancel: cancel}
	// Ended by stop, which waits for it.
	w.done.Go(func() {
		for ctx.Err() == nil {
			if bytes, err := p.anonymous(); err == nil {
				w.largest.Store(max(w.largest.Load(), bytes))
			}
			pause(ctx, 20*time.Millisecond)
		}
	})
	return w
}

// stop returns the largest sample.
func (w *memoryWatch) stop() int64 {
	w.cancel()
	w.done.Wait()
	return w.largest.Load()
}
