package demo

import "syscall"

// attributes keeps the terminal's Ctrl-C, which the demo handles, from a child, and ends the
// child with the demo even if that is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
