package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	startsWithin = 60 * time.Second
	endsWithin   = 30 * time.Second
)

// process is a server that the harness has started and will end.
type process struct {
	command *exec.Cmd
	stdin   io.Closer // of built-in servers: closing it tells them to end
	signal  os.Signal // of the others: what tells them to end
	ended   chan struct{}
	err     error // of the process, once ended is closed
	log     string
}

// launch starts a command whose output goes into a file. credential may be nil.
func launch(command *exec.Cmd, log string, credential *syscall.Credential) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // The process has its own descriptor.
	if command.Stdout == nil {
		command.Stdout = f
	}
	command.Stderr = f
	// In a group of its own, so that an interrupt reaches us alone and we end
	// it in an orderly way; and gone when we are, however we go.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: credential}
	if err := command.Start(); err != nil {
		return nil, err
	}
	p := &process{command: command, ended: make(chan struct{}), log: log, signal: syscall.SIGTERM}
	// Ends with the process, which stop ends and waits for.
	go func() {
		defer close(p.ended)
		p.err = command.Wait()
	}()
	return p, nil
}

// launchSelf starts this program as the server of a system and returns the
// address that it prints once it answers.
func launchSelf(ctx context.Context, serve, dir string) (p *process, address string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	command := exec.Command(self, "-serve", serve, "-dir", dir)
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, "", err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, "", err
	}
	defer out.Close() //nolint:errcheck // Only the first line matters.
	command.Stdout = in
	p, err = launch(command, dir+".log", nil)
	_ = in.Close() // the child has its own
	if err != nil {
		return nil, "", err
	}
	p.stdin = stdin
	if err := out.SetReadDeadline(time.Now().Add(startsWithin)); err != nil {
		return nil, "", errors.Join(err, p.stop())
	}
	stop := context.AfterFunc(ctx, func() { _ = out.SetReadDeadline(time.Now()) })
	defer stop()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("%s did not start: %w; %s", serve, err, p.tail()), p.stop())
	}
	return p, strings.TrimSpace(line), nil
}

// ready waits until the process answers.
func (p *process) ready(ctx context.Context, answers func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startsWithin)
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
			return fmt.Errorf("%s ended: %w; %s", p.command.Path, p.err, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w; %s", p.command.Path, err, p.tail())
		}
	}
}

// stop ends the process and waits for it. It may be called on nil, and again.
func (p *process) stop() error {
	if p == nil {
		return nil
	}
	if p.stdin != nil {
		_ = p.stdin.Close() // it may have gone by itself
	} else {
		_ = p.command.Process.Signal(p.signal) // the same
	}
	timer := time.NewTimer(endsWithin)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
	}
	_ = p.command.Process.Kill()
	<-p.ended
	return fmt.Errorf("%s did not end within %s and was killed; %s", p.command.Path, endsWithin, p.tail())
}

// tail returns the end of what the process has said.
func (p *process) tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	const most = 600
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return "its last words: " + string(b)
}

// tree returns a process and all below it.
func tree(pid int) []int {
	pids := []int{pid}
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

// freePort returns an unused port of loopback. Another process may take it before it is used;
// then the server does not start and says so.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close() //nolint:errcheck // Nothing was sent.
	return l.Addr().(*net.TCPAddr).Port, nil
}

// unprivileged returns a user for servers that refuse to run as root, nil when
// we are not root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUser := strconv.ParseUint(u.Uid, 10, 32)
		gid, errGroup := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(errUser, errGroup); err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
}
