package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
)

// A build of the row dedup-off commits what it has committed, and the row is measured beside ours.
func TestDedupIsOff(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the ledger once more")
	}
	dir := t.TempDir()
	binary, err := buildWithoutDedup(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := runRows(t.Context(), binary, "^engine/1$", time.Millisecond, dir); err != nil || len(found) != 1 {
		t.Errorf("%v, %v", found, err)
	}
	_, err = runRows(t.Context(), binary, "^replay/", time.Millisecond, dir)
	if want := "COMMITTED instead of REPLAYED"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("want %s, got %v", want, err)
	}
}

// A slowdown that both sides share is none; one of the tree alone is.
func TestCheckComparesPairs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		now    float64 // speed of this tree, where the baseline has 1000
		broken bool
		says   string
	}{
		"the same":      {now: 1000},
		"faster":        {now: 3000},
		"a bit slower":  {now: 870},
		"much slower":   {now: 840, says: "engine/1"},
		"does not run":  {broken: true, says: "broken"},
		"has other row": {now: -1, says: "no row in common"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls, firsts := 0, [2]int{}
			pairs, err := comparePairs(4, func(side int) (map[string]harness.Values, error) {
				ours := side == 1
				if calls%2 == 0 {
					firsts[side]++
				}
				calls++
				noise := 1 / float64(1+(calls-1)/2) // the machine gets busier, pair by pair
				switch {
				case test.broken:
					return nil, errors.New("broken")
				case ours && test.now < 0:
					return map[string]harness.Values{"other/1": {"throughput_per_s": 1}}, nil
				case ours:
					return map[string]harness.Values{"engine/1": {"throughput_per_s": test.now * noise}}, nil
				}
				return map[string]harness.Values{"engine/1": {"throughput_per_s": 1000 * noise}}, nil
			})
			var out strings.Builder
			if err == nil {
				if firsts[0] != firsts[1] {
					t.Errorf("one side always began: %v", firsts)
				}
				err = judge(&out, pairs, 0.15)
			}
			switch {
			case test.says == "" && err != nil:
				t.Errorf("want no complaint, got %v", err)
			case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
				t.Errorf("want a complaint with %q, got %v", test.says, err)
			}
		})
	}
}
