package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/internal/load"
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
			charged, errIO := ProcField(pid, "io", "write_bytes")
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

// Anonymous returns how many bytes of memory processes have without mapped files, whose pages the
// kernel can drop.
func Anonymous(pids ...int) (bytes int64) { return statusBytes("RssAnon", pids) }

// Resident returns how many bytes of memory processes have now. Shared pages count for each
// process, because the kernel does not say whose they are.
func Resident(pids ...int) (bytes int64) { return statusBytes("VmRSS", pids) }

// statusBytes adds up a size in the status of processes.
func statusBytes(name string, pids []int) (bytes int64) {
	for _, pid := range pids {
		if kibibytes, err := ProcField(pid, "status", name); err == nil { // otherwise it has ended
			bytes += kibibytes << 10
		}
	}
	return bytes
}

// ProcField returns a number from a file in /proc/<pid>.
func ProcField(pid int, file, name string) (int64, error) {
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

// Largest samples something until the returned function is called, which returns the largest
// sample.
func Largest(every time.Duration, sample func() int64) (stop func() int64) {
	ending, ended := make(chan struct{}), make(chan int64)
	// Ended by the returned function, which waits for it.
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		largest := sample()
		for {
			select {
			case <-tick.C:
				largest = max(largest, sample())
			case <-ending:
				ended <- largest
				return
			}
		}
	}()
	return func() int64 {
		close(ending)
		return <-ended
	}
}
