package freeport_test

import (
	"net"
	"testing"

	"github.com/seqledger/seqledger/internal/freeport"
)

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
