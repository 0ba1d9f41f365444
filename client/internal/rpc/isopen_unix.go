//go:build unix

package rpc

import (
	"errors"
	"net"
	"syscall"
)

// openCheck returns a function that reports, without blocking, whether an idle connection is
// still open and its peer has sent nothing. It is not safe for concurrent use.
func openCheck(conn net.Conn) func() bool {
	if c, ok := conn.(*connection); ok {
		conn = c.Conn
	}
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return func() bool { return true } // a closed connection shows when it is used
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return func() bool { return false }
	}
	var open bool
	var one [1]byte
	peek := func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		open = errors.Is(err, syscall.EAGAIN)
		return true
	}
	return func() bool { return raw.Read(peek) == nil && open }
}
