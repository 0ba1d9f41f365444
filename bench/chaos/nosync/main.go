//go:build linux && amd64

// Command nosync runs a program whose syncs do nothing and say that they are done: the control of bench chaos -power,
// which must find that writes are lost.
//
//	nosync PROGRAM ARGUMENT…
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nosync:", err)
		os.Exit(1)
	}
}

// syncs are the system calls that make something durable.
var syncs = []uint32{
	unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC, unix.SYS_SYNCFS, unix.SYS_SYNC_FILE_RANGE, unix.SYS_MSYNC,
}

// filter is a seccomp program that answers syncs with 0 and lets all else pass.
func filter() []unix.SockFilter {
	const architecture, number = 4, 0 // offsets in struct seccomp_data
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: architecture},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AUDIT_ARCH_X86_64, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
	}
	for _, n := range syncs {
		program = append(program,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: n, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO}, // with the number 0
		)
	}
	return append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
}

func run(command []string) error {
	if len(command) == 0 {
		return errors.New("the program is missing")
	}
	runtime.LockOSThread() // the filter is this thread's, and goes on through exec
	program := filter()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&f)), 0, 0)
	if err != nil {
		return err
	}
	return syscall.Exec(command[0], command, os.Environ())
}
