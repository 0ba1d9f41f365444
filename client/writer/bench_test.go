package writer_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// BenchmarkWriters measures writes of many Writers, each with one outstanding,
// against the fake on loopback in the same process.
func BenchmarkWriters(b *testing.B) {
	benchmarkWriters(b, func(testing.TB) writer.JournalFile { return nil })
}

// BenchmarkWritersJournal is the same with a journal that all Writers share, so
// that each write is on the client's disk before it is sent. The fake has no
// disk of its own, so the difference is all there is of the journal.
func BenchmarkWritersJournal(b *testing.B) {
	benchmarkWriters(b, func(b testing.TB) writer.JournalFile {
		return openJournal(b, filepath.Join(b.TempDir(), "journal"), journal.Options{})
	})
}

func benchmarkWriters(b *testing.B, open func(testing.TB) writer.JournalFile) {
	for _, writers := range []int{1, 64, 256, 1024} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			_, c := start(b)
			shared := open(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			writes := make([]func() error, writers)
			for i := range writes {
				w := must.Get(writer.Open(b.Context(),
					c, writer.WithJournal(writer.Options{Scope: org, ClientID: fmt.Sprintf("w%d", i)}, shared)))(b)
				op := payload("0123456789012345678901234567890123456789012345678901234567890123")
				writes[i] = func() error { _, err := w.Write(b.Context(), op); return err }
			}
			b.ReportAllocs()
			b.ResetTimer()
			var group sync.WaitGroup
			for _, write := range writes {
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
