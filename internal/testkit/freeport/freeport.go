// Package freeport finds addresses for servers that are started as processes of their own, or again at the same
// address.
package freeport

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The ports from lowest on. They are none of those that the kernel gives to connections and to listeners without a port
// (net.ipv4.ip_local_port_range, by default from 32,768 on): one of those would soon be another process's, which is
// then taken for the server that this one starts.
const lowest, ports = 10_000, 22_767

// tried counts the ports that this process has tried.
var tried atomic.Uint64

// Address returns a host and port of loopback on which nothing listens. It returns no address twice, before all ports
// were tried, because the one it was returned to may not listen yet, or not at the moment; and it is unlikely that
// another process which runs at the same time gets the same.
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

// Unreachable returns a host and port of loopback that refuses connections until the test ends: the socket that holds
// the port does not listen. The address of a listener that was closed may be another server's soon, and answers then.
func Unreachable(t testing.TB) (address string) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	defer listener.Close() //nolint:errcheck // Its connection below outlives it.
	for {
		address, err = Address()
		must(err)
		local, err := net.ResolveTCPAddr("tcp", address)
		must(err)
		// The dialer binds its own end before it connects.
		conn, err := (&net.Dialer{LocalAddr: local}).DialContext(t.Context(), "tcp", listener.Addr().String())
		if errors.Is(err, syscall.EADDRINUSE) { // by another process meanwhile; Address tries another port each time
			continue
		}
		must(err)
		t.Cleanup(func() { _ = conn.Close() })
		return address
	}
}

// Listen listens at an address of loopback, "" for one from [Address], also if a listener of this process was closed
// there just now. A process that is being started meanwhile has the closed one, too, until it runs its own program, so
// that the address may be in use for a moment. Listen tries again for as long as that could take, or until ctx ends.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	const patience, pause = 10 * time.Second, 5 * time.Millisecond
	if address == "" {
		free, err := Address()
		if err != nil {
			return nil, err
		}
		address = free
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		l, err := net.Listen("tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}
