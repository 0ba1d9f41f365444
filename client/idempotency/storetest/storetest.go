// Package storetest has the tests that every store of package idempotency must pass.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) idempotency.Store { return idempotency.NewStore(openBackend(t)) })
//	}
//
// The tests use leases and TTLs of a second and wait until the store's clock has passed them. Each test uses its own
// keys, so one database can serve them all.
package storetest

import (
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/storetest"
)

// Run runs all tests in parallel, each with its own store returned by open.
func Run(t *testing.T, open func(t *testing.T) idempotency.Store) {
	t.Helper()
	storetest.Run(t, open)
}

// Listing is a store that can list its records.
type Listing = storetest.Listing

// RunList checks the lists of a store: a list contains the records of its scope that match the request, as Get would
// return them. No other test may use the organizations acme and other of the store.
func RunList(t *testing.T, s Listing) {
	t.Helper()
	storetest.RunList(t, s)
}

// RunQuota checks a store whose principals may have two open keys each. No other test may use the organization acme of
// the store.
func RunQuota(t *testing.T, s idempotency.Resolver) {
	t.Helper()
	storetest.RunQuota(t, s)
}
