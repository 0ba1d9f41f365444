package upgrade

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// bytesCodec sends bytes as they are.
type bytesCodec struct{}

func (bytesCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	return append(dst, *(m.(*[]byte))...), nil
}
func (bytesCodec) Unmarshal(data []byte, m any) error {
	*(m.(*[]byte)) = append((*(m.(*[]byte)))[:0], data...)
	return nil
}

// processorTime is that of this process.
func processorTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// echo answers each envelope with itself.
func echo(r io.Reader, w io.Writer, flush func()) {
	buf := make([]byte, 65536)
	for {
		if _, err := io.ReadFull(r, buf[:5]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint32(buf[1:]))
		if _, err := io.ReadFull(r, buf[5:5+n]); err != nil {
			return
		}
		_, _ = w.Write(buf[:5+n]) // its failure is that of the next read
		flush()
	}
}

// BenchmarkRoundTrip compares a message and its answer over an upgraded connection with the same bytes over a bare one,
// in processor time: the difference is what WebSocket costs on both ends. Most of it is in the library, whose locks
// take a context.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{200, 12_000} {
		b.Run(fmt.Sprint("upgraded/", size), func(b *testing.B) {
			o := Options{Closed: context.Background(), MaxMessageBytes: 1 << 20, PingEvery: PingEvery}
			h := Handler(o, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				echo(r.Body, w, func() { _ = http.NewResponseController(w).Flush() })
			}))
			s := httptest.NewServer(h)
			defer s.Close()
			c := must.Get(Dial(b.Context(), NewTransport(&http.Transport{}), s.URL, http.Header{}, bytesCodec{}))(b)
			msg, got := make([]byte, size), []byte{}
			b.ReportAllocs()
			b.ResetTimer()
			began := processorTime()
			for b.Loop() {
				must.Do(b, c.Send(&msg))
				must.Do(b, c.Receive(&got))
			}
			b.ReportMetric(float64(processorTime()-began)/float64(b.N), "cpu-ns/op")
			must.Do(b, c.Close())
		})
		b.Run(fmt.Sprint("bare/", size), func(b *testing.B) {
			l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(b)
			defer l.Close()
			// Ends with the connection.
			go func() {
				if c, err := l.Accept(); err == nil {
					echo(bufio.NewReaderSize(c, readBytes), c, func() {})
				}
			}()
			c := must.Get(net.Dial("tcp", l.Addr().String()))(b)
			defer c.Close()
			r := bufio.NewReaderSize(c, readBytes)
			msg, got := make([]byte, size+5), make([]byte, size+5)
			binary.BigEndian.PutUint32(msg[1:], uint32(size))
			b.ReportAllocs()
			b.ResetTimer()
			began := processorTime()
			for b.Loop() {
				must.Get(c.Write(msg))(b)
				must.Get(io.ReadFull(r, got))(b)
			}
			b.ReportMetric(float64(processorTime()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}
