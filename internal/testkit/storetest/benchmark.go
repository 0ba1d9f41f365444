package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
)

// Benchmark measures a Reserve and a Complete per key, with 1, 16 and 64 concurrent callers.
func Benchmark(b *testing.B, store idempotency.Store) {
	b.Helper()
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			var begun atomic.Int64
			var group sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for range callers {
				// Ends with the last key; the Wait below joins it.
				group.Go(func() {
					for begun.Add(1) <= int64(b.N) {
						if err := reserveAndComplete(b, store); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			group.Wait()
		})
	}
}

func reserveAndComplete(b *testing.B, store idempotency.Store) error {
	request := &idempotency.ReserveRequest{
		Key: idempotency.RecordKey{
			Scope: idempotency.Scope{Organization: "storetest"}, Namespace: "benchmark",
			Key: idempotency.NewKey("b", 1),
		},
		AttemptID: idempotency.NewAttemptID(), Fingerprint: idempotency.Fingerprint{Algorithm: 1},
	}
	r, err := store.Reserve(b.Context(), request)
	if err != nil {
		return err
	}
	if r.Outcome != idempotency.Acquired {
		return fmt.Errorf("outcome of Reserve: %v", r.Outcome)
	}
	owner := &idempotency.Ownership{Key: request.Key, Token: r.Token, AttemptID: request.AttemptID}
	a, err := store.Complete(b.Context(), owner, idempotency.Result{Response: []byte("done")})
	if err == nil && a.Outcome != idempotency.OK {
		err = fmt.Errorf("outcome of Complete: %v", a.Outcome)
	}
	return err
}
