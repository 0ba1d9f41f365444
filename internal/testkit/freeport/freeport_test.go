package freeport_test

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// No address is given to two, also if the first does not listen yet.
func TestAddressesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		a := must.Get(freeport.Address())(t)
		if seen[a] {
			t.Fatalf("%s is given twice", a)
		}
		seen[a] = true
	}
}

// Listen waits for an address that is in use for a moment, and for no other.
func TestListen(t *testing.T) {
	t.Parallel()
	first := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := first.Addr().String()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	check.Is(t, check.Err(freeport.Listen(ended, address)), syscall.EADDRINUSE, "an address in use")
	closed := time.AfterFunc(20*time.Millisecond, func() { _ = first.Close() })
	defer closed.Stop()
	again := must.Get(freeport.Listen(t.Context(), address))(t)
	if again.Addr().String() != address {
		t.Errorf("listens on %v, want %s", again.Addr(), address)
	}
	must.Do(t, again.Close())
	if _, err := freeport.Listen(t.Context(), "127.0.0.1:none"); err == nil {
		t.Error("an address without a port is listened on")
	}
}

// Connections to the address are refused, and nothing can listen on it.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	address := freeport.Unreachable(t)
	if _, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a connection: %v, want it refused", err)
	}
	if _, err := net.Listen("tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a listener: %v, want the address in use", err)
	}
}
