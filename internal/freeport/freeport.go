// Package freeport finds addresses for servers that are started as processes of their own, or again at the same
// address.
package freeport

import (
	"math/rand/v2"
	"net"
	"strconv"
)

// Address returns a host and port of loopback on which nothing listens. Its port is not one of those that the
// kernel gives to connections and to listeners without a port (net.ipv4.ip_local_port_range, by default from 32,768
// on): one of those would soon be another process's, which is then taken for the server that this one starts.
func Address() (string, error) {
	const lowest, highest, tries = 10_000, 32_767, 100
	var err error
	for range tries {
		var l net.Listener
		port := lowest + rand.IntN(highest-lowest)
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", err
}
