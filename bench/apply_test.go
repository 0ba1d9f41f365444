package main

import (
	"testing"

	"github.com/seqledger/seqledger/ledger/machine"
)

// TestAttacksRun runs a small attack of each kind: each must reach the applier, and
// none may fail. How long one may take is measured by go run ./bench apply.
func TestAttacksRun(t *testing.T) {
	t.Parallel()
	for _, kind := range attackKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r, err := runAttack(t.Context(), applyAttack{
				Interval: 1, Limit: 10, Window: 4, Streams: 5, Busy: true, Entities: 20, Scopes: 3,
				KeyBytes: machine.MaxKeyBytes,
				Comb:     true, ValueBytes: 33, Tombstones: 10, Rewind: true, Kind: kind, Operations: 2, Commands: 64,
			}, t.TempDir())
			if err != nil || r.Failure != "" || r.Slowest <= 0 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}
