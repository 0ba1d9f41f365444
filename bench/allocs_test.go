package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// The committed figures must be there for every row, and no others.
func TestAllocsAreCommitted(t *testing.T) {
	t.Parallel()
	var allowed map[string]float64
	if err := json.Unmarshal(allowedAllocations, &allowed); err != nil {
		t.Fatal(err)
	}
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

func TestJudgeAllocs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		found map[string]float64
		says  string // empty: no complaint
	}{
		"the same":         {found: map[string]float64{"alone": 61, "many": 2.4}},
		"within the noise": {found: map[string]float64{"alone": 62, "many": 2.5}},
		"fewer":            {found: map[string]float64{"alone": 30, "many": 1}},
		"one more for many": {found: map[string]float64{"alone": 61, "many": 3.4},
			says: "many: 3.4, committed 2.4"},
		"some more alone":       {found: map[string]float64{"alone": 64, "many": 2.4}, says: "alone: 64.0"},
		"without anything said": {found: map[string]float64{"new": 1}, says: "new has no committed figure"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			err := judgeAllocs(&out, test.found, map[string]float64{"alone": 61, "many": 2.4})
			switch {
			case test.says == "" && err != nil:
				t.Errorf("want no complaint, got %v", err)
			case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says) ||
				!strings.Contains(err.Error(), "-update")):
				t.Errorf("want a complaint with %q and what to do, got %v", test.says, err)
			}
		})
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
