// Package child runs processes that must not outlive this one: servers and clients of the demo and
// of the conformance cases, which kill them.
package child

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
)

// Options describe a process. Name, Command and Log are required.
type Options struct {
	// Name is what errors call it.
	Name string
	// Command is the program and its arguments.
	Command []string
	// Log is the path of a file to which its standard error is appended.
	Log string
	// Output gets its standard output until it has ended, and is called by one goroutine; nil
	// means that Started reads what matters.
	Output io.Writer
	// Started reads from standard output, without Output, that the process has started. It returns
	// before the process is waited for; nil means at once.
	Started func(stdout io.Reader) error
	// Failed gets the reason if the process ends without having been told to, unless the channel
	// is full; nil drops it.
	Failed chan<- error
}

// Child is a process.
type Child struct {
	name  string
	log   string // path of its standard error
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{} // closed once it has been waited for
	err   error         // of the wait; after ended
	// expected: the process was told to end.
	expected atomic.Bool
}

// Start starts a process. It is killed when ctx ends, and on Linux when this process dies.
func Start(ctx context.Context, o Options) (*Child, error) {
	p := &Child{
		name: o.Name, log: o.Log, ended: make(chan struct{}),
		cmd: exec.CommandContext(ctx, o.Command[0], o.Command[1:]...),
	}
	p.cmd.Cancel = func() error { return killAll(p.cmd.Process) }
	p.cmd.Env = Environment()
	p.cmd.SysProcAttr = attributes()
	log, err := os.OpenFile(p.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own
	p.cmd.Stderr, p.cmd.Stdout = log, o.Output
	var stdout io.Reader
	if o.Started != nil {
		if stdout, err = p.cmd.StdoutPipe(); err != nil {
			return nil, err
		}
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if o.Started != nil {
		err = o.Started(stdout)
	}
	if err != nil {
		p.expected.Store(true)
	}
	// Ends with the process, which Kill or ctx ends; Kill waits for it.
	go func() {
		p.err = p.cmd.Wait()
		if !p.expected.Load() && ctx.Err() == nil {
			select {
			case o.Failed <- p.Explain("ended by itself"):
			default: // one reason is enough
			}
		}
		close(p.ended)
	}()
	if err != nil {
		p.Kill()
		return nil, fmt.Errorf("%w: %w", p.Explain("did not start"), err)
	}
	return p, nil
}

// Environment returns the variables for these processes. Those that the user's shell sets for other commands must not
// affect them.
func Environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SEQLEDGER_") })
}

// Address returns an Options.Started that reads the ready line of seqledger serve --json.
func Address(address *string) func(io.Reader) error {
	return func(stdout io.Reader) error {
		line, err := bufio.NewReader(stdout).ReadBytes('\n')
		if err != nil {
			return err
		}
		var ready struct{ Address string }
		if err := json.Unmarshal(line, &ready); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		*address = ready.Address
		return nil
	}
}

// Write writes to the process's standard input.
func (p *Child) Write(data []byte) (int, error) { return p.stdin.Write(data) }

// Ended is closed once the process has ended and its output was read.
func (p *Child) Ended() <-chan struct{} { return p.ended }

// IsAbsent reports whether the process has ended because a shell has found no program to run, or may not run it.
func (p *Child) IsAbsent() bool {
	select {
	case <-p.ended:
		code := p.cmd.ProcessState.ExitCode()
		return code == 126 || code == 127
	default:
		return false
	}
}

// Kill is kill -9, on Linux of the processes that it has started too, and waits.
func (p *Child) Kill() {
	p.expected.Store(true)
	_ = killAll(p.cmd.Process) // fails when it has ended
	<-p.ended
}

// CloseInput closes the process's standard input, which tells a client to end.
func (p *Child) CloseInput() {
	p.expected.Store(true)
	_ = p.stdin.Close() // fails when it has ended
}

// Finish tells a client to end, by closing its standard input, and waits.
func (p *Child) Finish(ctx context.Context) error {
	p.CloseInput()
	return p.await(ctx)
}

// Stop tells a server to end, and waits.
func (p *Child) Stop(ctx context.Context) error {
	p.expected.Store(true)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return p.Explain("cannot be stopped: " + err.Error())
	}
	return p.await(ctx)
}

// await waits until the process has exited.
func (p *Child) await(ctx context.Context) error {
	select {
	case <-p.ended:
	case <-ctx.Done():
		return p.Explain(context.Cause(ctx).Error())
	}
	if p.err != nil {
		return p.Explain(p.err.Error())
	}
	return nil
}

// Explain returns an error with what happened and the end of the process's log.
func (p *Child) Explain(what string) error {
	content, _ := os.ReadFile(p.log) // no log, nothing to add
	const enough = 600
	if len(content) > enough {
		content = content[len(content)-enough:]
	}
	return fmt.Errorf("%s %s; its log ends with: %s", p.name, what, strings.Join(strings.Fields(string(content)), " "))
}
