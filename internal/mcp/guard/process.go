package guard

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"

	"github.com/seqledger/seqledger/client/idempotency"
)

// Process is a server that is a child process, with one message per line on its standard input and output.
type Process struct {
	cmd    *exec.Cmd
	stdout io.ReadCloser

	mu    sync.Mutex // held while a line is written
	stdin io.WriteCloser
}

// StartProcess starts a server. Its standard error goes to stderr, and it inherits the guard's environment and working
// directory.
func StartProcess(command []string, stderr io.Writer) (*Process, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Process{cmd: cmd, stdout: stdout, stdin: stdin}, nil
}

// Run implements [Upstream]. It returns the error of [exec.Cmd.Wait].
func (p *Process) Run(receive func(line []byte, rest *bufio.Reader) error) error {
	r := bufio.NewReaderSize(p.stdout, 64<<10)
	for {
		line, tooLong, err := readLine(r, MaxMessage)
		switch {
		case tooLong:
			_ = receive(line, r) // a client that has disconnected does not end the server's work
		case len(line) > 0:
			_ = receive(line, nil)
		}
		if err != nil {
			break
		}
	}
	_, _ = io.Copy(io.Discard, r) // copies nothing, unless reading has failed
	return p.cmd.Wait()
}

// Send implements [Upstream].
func (p *Process) Send(m *message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.stdin.Write(append(m.raw, '\n'))
	if err != nil && n <= len(m.raw) { // without its line end it is not a message
		return fmt.Errorf("%w: %w", err, idempotency.ErrNotExecuted)
	}
	return err
}

// Call implements [Upstream].
func (p *Process) Call(m *message) error { return p.Send(m) }

// CloseSend implements [Upstream].
func (p *Process) CloseSend() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return ignoreClosed(p.stdin.Close())
}

// ignoreClosed drops the error of a file that is already closed.
func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Signal sends a signal to the process.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }
