package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client/idempotency"
)

// onStoreBed runs a test on each store whose server is installed.
func onStoreBed(t *testing.T, use func(ctx context.Context, t *testing.T, b *storeBed) error) {
	t.Helper()
	for _, kind := range storeKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			o := quickOptions(t)
			o.dir, o.fraction = "", quickFraction // PostgreSQL's user cannot reach t.TempDir
			err := onBed(t.Context(), o, func(ctx context.Context, b *bed) error {
				s := &storeBed{bed: b}
				if err := kind.start(ctx, s, 2); err != nil {
					return err
				}
				return use(ctx, t, s)
			})
			switch {
			case errors.Is(err, harness.ErrNotInstalled),
				err != nil && strings.Contains(err.Error(), "extended attributes"):
				t.Skip(err)
			case err != nil:
				t.Fatal(err)
			}
		})
	}
}

// Both sides of a store store something, and what they took is told.
func TestStoresMeasure(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: it starts servers, which make test-long does")
	}
	onStoreBed(t, func(ctx context.Context, t *testing.T, b *storeBed) error {
		lines, err := measureStore(ctx, b, 2)
		if err != nil {
			return err
		}
		if len(lines) != 3*len(storeSides)+1 {
			t.Errorf("%v", lines)
		}
		for _, line := range lines {
			if value, _ := line["value"].(string); value == "" || value == "0" {
				t.Errorf("%v is %q", line["measure"], value)
			}
		}
		return nil
	})
}

// A store that does not give the key to its caller ends the measurement.
func TestStoresOfOthers(t *testing.T) {
	t.Parallel()
	if err := reserveAndComplete(t.Context(), takenStore{idempotency.Memory()}); err == nil ||
		!strings.Contains(err.Error(), "Reserve") {
		t.Errorf("%v", err)
	}
	if err := reserveAndComplete(t.Context(), idempotency.Memory()); err != nil {
		t.Error(err)
	}
}

// takenStore is a store whose keys are all taken.
type takenStore struct{ idempotency.Store }

func (takenStore) Reserve(context.Context, *idempotency.ReserveRequest) (*idempotency.Reservation, error) {
	return &idempotency.Reservation{Outcome: idempotency.InFlight}, nil
}
