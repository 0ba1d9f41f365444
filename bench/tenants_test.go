package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/bench/harness"
)

// The rows about tenants run, and those with findings of their own have them. What they find out needs a quiet machine.
func TestTenantRowsRun(t *testing.T) {
	t.Parallel()
	for name, finds := range map[string]string{
		"batches of writes": "", "waiting reservations": "", "deleted keys": "",
		"tight disk, opens sessions": "stored by the bad one", "tight disk, reserves keys": "stored by the bad one",
		"foreign transactions": "not_found of 10 bytes, from the disk",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := slices.IndexFunc(tenantAttacks, func(a attack) bool { return a.name == name })
			o := quickOptions(t)
			o.fraction = quickFraction
			var lines []harness.Line
			err := onBed(t.Context(), o, func(ctx context.Context, b *bed) (err error) {
				lines, err = tenantAttacks[i].measureTenant(ctx, b)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			found := finds == ""
			for _, l := range lines {
				measure, _ := l["measure"].(string)
				found = found || strings.Contains(measure, finds)
				if measure == "refused of the good one" && l["verdict"] != "reached" {
					t.Errorf("the good tenant is refused: %v", l)
				}
			}
			if !found {
				t.Errorf("nothing tells %q: %v", finds, lines)
			}
		})
	}
}
