package child

import (
	"os"
	"syscall"
)

// attributes keeps the terminal's Ctrl-C, which the parent handles, from a child, and ends the
// child with the parent even if that is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// killAll kills a process and those that it has started, such as the program that a shell runs.
func killAll(p *os.Process) error { return syscall.Kill(-p.Pid, syscall.SIGKILL) }
