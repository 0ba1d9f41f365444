//go:build !linux

package child

import (
	"os"
	"syscall"
)

// attributes leaves a child in the terminal's group, so that a second Ctrl-C,
// which ends the parent at once, reaches it too.
func attributes() *syscall.SysProcAttr { return nil }

// killAll kills a process.
func killAll(p *os.Process) error { return p.Kill() }
