//go:build unix && !linux

package harness

import "syscall"

// attributes puts a process into a group of its own, so that an interrupt reaches only this process, which then ends
// it in order.
func attributes(user *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: user}
}
