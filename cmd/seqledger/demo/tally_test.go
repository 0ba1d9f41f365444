package demo

import (
	"reflect"
	"testing"
)

// TestTallyComplete: a run is complete once everything that the table shows has
// happened at least once, and not before.
func TestTallyComplete(t *testing.T) {
	t.Parallel()
	fields := reflect.TypeFor[Counts]()
	for missing := range fields.NumField() {
		name := fields.Field(missing).Name
		tally := newTally()
		tally.add(func(c *Counts) {
			for i := range fields.NumField() {
				if i != missing {
					reflect.ValueOf(c).Elem().Field(i).SetUint(1)
				}
			}
		})
		// Retries say that there were payments.
		if got, want := tally.complete(), name == "Payments"; got != want {
			t.Errorf("without %s: want complete %t, got %t", name, want, got)
		}
	}
}
