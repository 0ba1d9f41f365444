package storetest

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/load"
)

// Benchmark measures a Reserve and a Complete per key, with 1, 16 and 64 concurrent callers, beside bare: the least
// that the server of the store does to store something under a new key. bare may be nil.
func Benchmark(b *testing.B, store idempotency.Store, bare func(ctx context.Context, key string) error) {
	b.Helper()
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("pair/callers=%d", callers), func(b *testing.B) {
			measure(b, callers, func() error { return reserveAndComplete(b, store) })
		})
		if bare != nil {
			b.Run(fmt.Sprintf("bare/callers=%d", callers), func(b *testing.B) {
				measure(b, callers, func() error { return bare(b.Context(), rand.Text()) })
			})
		}
	}
}

func measure(b *testing.B, callers int, operation func() error) {
	var begun atomic.Int64
	var group sync.WaitGroup
	var mu sync.Mutex // guards latencies
	latencies := load.NewLatencies()
	b.ReportAllocs()
	b.ResetTimer()
	for range callers {
		// Ends with the last key; the Wait below joins it.
		group.Go(func() {
			for begun.Add(1) <= int64(b.N) {
				began := time.Now()
				if err := operation(); err != nil {
					b.Error(err)
					return
				}
				took := time.Since(began)
				mu.Lock()
				latencies.Record(took)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	b.ReportMetric(latencies.Milliseconds(50), "p50-ms")
	b.ReportMetric(latencies.Milliseconds(99), "p99-ms")
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
