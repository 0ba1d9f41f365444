package client_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

// BenchmarkWriters measures writes of many Writers, each with one outstanding,
// against the fake on loopback in the same process.
func BenchmarkWriters(b *testing.B) {
	for _, writers := range []int{1, 64, 256, 1024} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			_, c := start(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			open := make([]func() error, writers)
			for i := range open {
				w := newWriter(b, c, fmt.Sprintf("w%d", i))
				op := payload("0123456789012345678901234567890123456789012345678901234567890123")
				open[i] = func() error { _, err := w.Write(b.Context(), op); return err }
			}
			b.ReportAllocs()
			b.ResetTimer()
			var group sync.WaitGroup
			for _, write := range open {
				// Ends when no write is left; the benchmark waits for it.
				group.Go(func() {
					for left.Add(-1) >= 0 {
						if err := write(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			group.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
		})
	}
}
