package process

import "syscall"

// attributes puts a process into a new group, so that an interrupt reaches only this process, which then stops it
// cleanly, and kills it when this process dies.
func attributes(user *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: user}
}
