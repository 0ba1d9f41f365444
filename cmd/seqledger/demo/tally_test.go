package demo

import (
	"reflect"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
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

func TestTally(t *testing.T) {
	t.Parallel()
	tally := newTally()
	tally.sent(write("a", 1), write("a", 2), write("a", 1))
	tally.sent(write("a", 2), &seqledgerv1.WriteRequest{})
	tally.answered(&seqledgerv1.Receipt{Replayed: true}, &seqledgerv1.Receipt{}, nil)
	check.Equal(t, tally.snapshot(), (Counts{Payments: 2, Retried: 2, Replayed: 1}))
}
