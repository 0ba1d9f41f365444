package harness

import "syscall"

// attributes puts a process into a group of its own, so that an interrupt reaches only this process, which then ends
// it in order, and has it killed when this process dies.
func attributes(user *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: user}
}
