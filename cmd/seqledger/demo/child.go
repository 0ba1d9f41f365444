package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
)

// child is a process of the demo.
type child struct {
	name  string
	log   string // path of what it says on standard error
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{} // closed once it has been waited for
	err   error         // of the wait; after ended
	// expected: its end is no surprise.
	expected atomic.Bool
}

// spawn starts a process of this program. Its standard output goes to out,
// which is read before the process is waited for. A process that ends although
// nobody told it to is reported to failed.
func (c *column) spawn(ctx context.Context, name string, args []string, out func(io.Reader) error) (*child, error) {
	p := &child{
		name: name, log: filepath.Join(c.dir, name+".log"), ended: make(chan struct{}),
		// Killed with ctx, whatever else goes wrong.
		cmd: exec.CommandContext(ctx, c.options.Program, args...),
	}
	// What the user's own shell sets for other commands is not for these.
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "SEQLEDGER_") {
			p.cmd.Env = append(p.cmd.Env, variable)
		}
	}
	p.cmd.SysProcAttr = attributes()
	log, err := os.OpenFile(p.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own
	p.cmd.Stderr = log
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	err = out(stdout)
	if err != nil {
		p.expected.Store(true)
	}
	// Ends with the process, which kill or ctx ends; kill waits for it.
	go func() {
		p.err = p.cmd.Wait()
		if !p.expected.Load() && ctx.Err() == nil {
			select {
			case c.failed <- p.explain("ended by itself"):
			default: // one reason is enough
			}
		}
		close(p.ended)
	}()
	if err != nil {
		p.kill()
		return nil, fmt.Errorf("%w: %w", p.explain("did not start"), err)
	}
	return p, nil
}

// silent is for a process that says nothing on standard output.
func silent(io.Reader) error { return nil }

// readAddress reads what a server says when it is ready.
func readAddress(address *string) func(io.Reader) error {
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

// kill is kill -9, and waits.
func (p *child) kill() {
	p.expected.Store(true)
	_ = p.cmd.Process.Kill() // fails when it has ended
	<-p.ended
}

// finish lets a client end in its own time, by closing its standard input.
func (p *child) finish(ctx context.Context) error {
	p.expected.Store(true)
	_ = p.stdin.Close() // fails when it has ended
	return p.await(ctx)
}

// stop lets a server end in its own time.
func (p *child) stop(ctx context.Context) error {
	p.expected.Store(true)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return p.explain("cannot be stopped: " + err.Error())
	}
	return p.await(ctx)
}

// await waits until the process has ended by itself.
func (p *child) await(ctx context.Context) error {
	select {
	case <-p.ended:
	case <-ctx.Done():
		return p.explain(context.Cause(ctx).Error())
	}
	if p.err != nil {
		return p.explain(p.err.Error())
	}
	return nil
}

// explain makes an error of what happened and the end of the process's log.
func (p *child) explain(what string) error {
	content, _ := os.ReadFile(p.log) // no log, nothing to add
	const enough = 600
	if len(content) > enough {
		content = content[len(content)-enough:]
	}
	return fmt.Errorf("%s %s; its log ends with: %s", p.name, what, strings.Join(strings.Fields(string(content)), " "))
}
