package main

import (
	"slices"
	"testing"
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
			lines := measured(t, o, attacks[i].measure)
			for _, l := range lines[len(lines)-2:] { // refused calls, and what the server holds afterwards
				if l["verdict"] != "reached" {
					t.Error(l)
				}
			}
		})
	}
}
