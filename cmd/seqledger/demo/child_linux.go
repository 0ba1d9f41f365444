package demo

import "syscall"

// attributes puts a child out of reach of the terminal's Ctrl-C, which is the
// demo's to handle, and lets it die with the demo even when that is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
