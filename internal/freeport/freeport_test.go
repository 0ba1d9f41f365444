package freeport_test

import (
	"net"
	"testing"

	"github.com/seqledger/seqledger/internal/freeport"
)

// No address is given to two, also if the first does not listen yet.
func TestAddressesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		a, err := freeport.Address()
		if err != nil {
			t.Fatal(err)
		}
		if seen[a] {
			t.Fatalf("%s is given twice", a)
		}
		seen[a] = true
	}
}

// The address is one to listen on.
func TestAddress(t *testing.T) {
	t.Parallel()
	a, err := freeport.Address()
	if err != nil {
		t.Fatal(err)
	}
	if host, port, err := net.SplitHostPort(a); err != nil || host != "127.0.0.1" || port == "0" {
		t.Error(a)
	}
}
