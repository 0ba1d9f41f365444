package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/bench/harness"
)

// Attacks of each kind run and have findings. Whether a target is reached takes a quiet machine.
func TestAbuseRowsRun(t *testing.T) {
	t.Parallel()
	for name, finds := range map[string]string{
		"half bodies, no key": "healthy", "unread pages": "healthy", "deaf streams": "healthy",
		"stream of writes":     "healthy",
		"waiting reservations": "healthy", "tight disk, opens sessions": "stored by the bad tenant",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := slices.IndexFunc(attacks, func(a attack) bool { return a.name == name })
			o := quickOptions(t)
			o.fraction = quickFraction
			var lines []harness.Line
			err := onBed(t.Context(), o, func(ctx context.Context, b *bed) (err error) {
				lines, err = attacks[i].measure(ctx, b)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, l := range lines {
				measure, _ := l["measure"].(string)
				found = found || strings.Contains(measure, finds)
				if measure == "calls refused to the good tenant" && l["verdict"] != "reached" {
					t.Errorf("the good tenant is refused: %v", l)
				}
			}
			if !found {
				t.Errorf("nothing tells %q: %v", finds, lines)
			}
		})
	}
}
