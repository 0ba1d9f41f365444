package main

import (
	"context"
	"slices"
	"testing"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// Attacks of each kind run and have findings. Whether a target is reached takes a quiet machine.
func TestAbuseRowsRun(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"half bodies, no key", "stalled watchers", "deaf streams", "waiting reservations"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := slices.IndexFunc(attacks, func(a attack) bool { return a.name == name })
			o := quickOptions(t)
			o.fraction = quickFraction
			var lines []harness.Line
			must.Do(t, onBed(t.Context(), o, func(ctx context.Context, b *bed) (err error) {
				lines, err = attacks[i].measure(ctx, b)
				return err
			}))
			for _, l := range lines[len(lines)-2:] { // refused calls, and what the server holds afterwards
				if l["verdict"] != "reached" {
					t.Error(l)
				}
			}
		})
	}
}
