//go:build !linux

package demo

import "syscall"

// attributes leaves a child in the terminal's group, so that a second Ctrl-C,
// which ends the demo at once, reaches it too.
func attributes() *syscall.SysProcAttr { return nil }
