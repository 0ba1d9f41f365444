// Package freeport finds addresses for servers that are started as processes of their own, or again at the same
// address.
package freeport

import (
	"net"
	"os"
	"strconv"
	"sync/atomic"
)

// The ports from lowest on. They are none of those that the kernel gives to connections and to listeners without a
// port (net.ipv4.ip_local_port_range, by default from 32,768 on): one of those would soon be another process's, which is
// then taken for the server that this one starts.
const lowest, ports = 10_000, 22_767

// tried counts the ports that this process has tried.
var tried atomic.Uint64

// Address returns a host and port of loopback on which nothing listens. It returns no address twice, before all ports
// were tried, because the one it was returned to may not listen yet, or not at the moment; and it is unlikely
// that another process which runs at the same time gets the same.
func Address() (string, error) {
	const tries = 100
	const apart = 14_071 // how far processes with neighbouring ids begin from each other
	var err error
	for range tries {
		var l net.Listener
		port := lowest + int((uint64(os.Getpid())*apart+tried.Add(1))%ports)
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", err
}
