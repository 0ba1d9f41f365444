//go:build unix

package client

import (
	"errors"
	"net"
	"syscall"
)

// isOpen reports, without blocking, whether an idle connection is still open and its peer has
// sent nothing.
func isOpen(conn net.Conn) bool {
	if c, ok := conn.(*connection); ok {
		conn = c.Conn
	}
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return true // a closed connection shows when it is used
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	open := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		open = errors.Is(err, syscall.EAGAIN)
		return true
	})
	return err == nil && open
}
