package main

import (
	"encoding/json"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// The committed figures must be there for every row, and no others.
func TestAllocsAreCommitted(t *testing.T) {
	t.Parallel()
	var allowed map[string]float64
	must.Do(t, json.Unmarshal(allowedAllocations, &allowed))
	for _, r := range allocRows() {
		if allowed[r.name] <= 0 {
			t.Errorf("%s: %s has no figure; go run ./bench allocs -update", r.name, allowedFile)
		}
		delete(allowed, r.name)
	}
	if len(allowed) > 0 {
		t.Errorf("%s has rows that are not measured: %v", allowedFile, allowed)
	}
}

// Every row must commit what it counts. The figures themselves are for
// go run ./bench allocs, which nothing else disturbs.
func TestAllocRowsRun(t *testing.T) {
	t.Parallel()
	for _, r := range allocRows() {
		n, err := r.measure(t.Context(), quickOptions(t), 1, 3)
		if err != nil || n <= 0 {
			t.Errorf("%s: %v allocations, %v", r.name, n, err)
		}
	}
}
