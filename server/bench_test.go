package server_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// BenchmarkWriteStream measures writes over one stream on loopback, client and server in one process, with so many
// writes outstanding in frames of so many.
func BenchmarkWriteStream(b *testing.B) {
	for _, shape := range []struct{ frames, writes int }{{1, 1}, {16, 1}, {64, 1}, {4, 64}, {4, 256}} {
		b.Run(fmt.Sprintf("frames=%d/writes=%d", shape.frames, shape.writes), func(b *testing.B) {
			h := start(b)
			stream := h.client.WriteStream(b.Context())
			window := make(chan struct{}, shape.frames)
			var group sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			group.Go(func() {
				payload := string(make([]byte, 128))
				for first := 0; first < b.N; first += shape.writes {
					frame := new(seqledgerv1.WriteStreamRequest)
					for i := first; i < min(b.N, first+shape.writes); i++ {
						w := writeOf("client", uint64(i)+1, appendOp(payload))
						w.IdempotencyKey = fmt.Sprintf("00000000-0000-4000-8000-%012x", i)
						frame.Writes = append(frame.Writes, w)
					}
					window <- struct{}{}
					if err := stream.Send(frame); err != nil {
						b.Error(err)
						return
					}
				}
			})
			for done, left := 0, 0; done < b.N; {
				answer := must.Get(stream.Receive())(b)
				for _, r := range answer.Results {
					if r.GetReceipt() == nil {
						b.Fatal(r)
					}
				}
				done += len(answer.Results)
				left += len(answer.Results)
				for ; left >= shape.writes || done == b.N && left > 0; left -= shape.writes {
					<-window
				}
			}
			group.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
			_ = stream.CloseRequest()
			_ = stream.CloseResponse()
		})
	}
}

// BenchmarkWrite measures unary writes on loopback with so many callers.
func BenchmarkWrite(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			h := start(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			var group sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for i := range callers {
				group.Go(func() {
					payload := string(make([]byte, 128))
					for sequence := uint64(1); left.Add(-1) >= 0; sequence++ {
						m := writeOf(fmt.Sprint("client-", i), sequence, appendOp(payload))
						if _, err := h.client.Write(b.Context(), connect.NewRequest(m)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			group.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
		})
	}
}
