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
	log   string // path of its standard error
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{} // closed once it has been waited for
	err   error         // of the wait; after ended
	// expected: the process was told to end.
	expected atomic.Bool
}

// spawn starts a process of this program. Its standard output goes to out, which is read before
// the process is waited for. A process that ends without having been told to is reported to
// failed.
func (s *side) spawn(ctx context.Context, name string, args []string, out func(io.Reader) error) (*child, error) {
	p := &child{
		name: name, log: filepath.Join(s.dir, name+".log"), ended: make(chan struct{}),
		// Killed with ctx, whatever else goes wrong.
		cmd: exec.CommandContext(ctx, s.options.Program, args...),
	}
	// Variables that the user's shell sets for other commands must not affect these processes.
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
			case s.failed <- p.explain("ended by itself"):
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

// silent is for a process without standard output.
func silent(io.Reader) error { return nil }

// readAddress reads a server's ready line.
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

// finish tells a client to end, by closing its standard input, and waits.
func (p *child) finish(ctx context.Context) error {
	p.expected.Store(true)
	_ = p.stdin.Close() // fails when it has ended
	return p.await(ctx)
}

// stop tells a server to end, and waits.
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

// explain returns an error with what happened and the end of the process's log.
func (p *child) explain(what string) error {
	content, _ := os.ReadFile(p.log) // no log, nothing to add
	const enough = 600
	if len(content) > enough {
		content = content[len(content)-enough:]
	}
	return fmt.Errorf("%s %s; its log ends with: %s", p.name, what, strings.Join(strings.Fields(string(content)), " "))
}
