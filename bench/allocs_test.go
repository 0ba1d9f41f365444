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
	must.Do(t, json.Unmarshal(committedAllocations, &allowed))
	for _, r := range allAllocRows {
		if allowed[r.name] <= 0 {
			t.Errorf("%s has no figure in allocs.json", r.name)
		}
		delete(allowed, r.name)
	}
	if len(allowed) > 0 {
		t.Errorf("allocs.json has rows that are not measured: %v", allowed)
	}
}

// Every row must commit what it counts. The figures themselves are for
// go run ./bench allocs, which nothing else disturbs.
func TestAllocRowsRun(t *testing.T) {
	t.Parallel()
	o := quickOptions(t)
	o.fraction = 0.1
	for _, r := range allocRows(o) {
		if n := measured(t, o, r.measure)[0]["allocs_per_write"].(float64); n <= 0 {
			t.Errorf("%s: %v allocations", r.name, n)
		}
	}
}

// Within a few hundredths is well, a row without a committed figure is not.
func TestAllocationsThatGrow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		found, committed float64
		want             bool
	}{
		"the same": {100, 100, true}, "fewer": {10, 100, true}, "within the rest": {103.05, 100, true},
		"more": {103.2, 100, false}, "of none": {0.2, 0, false},
	} {
		if acceptable(test.found, test.committed) != test.want {
			t.Errorf("%s: want %v", name, test.want)
		}
	}
}
