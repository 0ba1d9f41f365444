package server_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// In each test clients misbehave while another client works. The test checks that the other one gets correct answers,
// that usage stays within its bound, and that everything is released afterwards.

// neighbour is a client of good manners, which checks that each of its writes is committed once and in order. It works
// beside every client that abuses the server.
type neighbour struct {
	h        *harness
	sequence uint64
}

// work commits some writes, and reads one back.
func (g *neighbour) work(t testing.TB) {
	t.Helper()
	for range 20 {
		g.sequence++
		receipt := g.h.mustWrite(t, writeOf("good", g.sequence, setOp("good", strconv.FormatUint(g.sequence, 10))))
		if receipt.Sequence != g.sequence || receipt.Replayed {
			t.Fatalf("write %d was answered with %v", g.sequence, receipt)
		}
	}
	entity, err := g.h.client.GetEntity(within(t),
		connect.NewRequest(&seqledgerv1.GetEntityRequest{Scope: scope(), Key: "good"}))
	if err != nil || string(entity.Msg.Entity.Value) != strconv.FormatUint(g.sequence, 10) {
		t.Fatalf("after write %d the entity is %v, %v", g.sequence, entity, err)
	}
}

// released waits until nothing is taken any more. The other client and we keep a connection each.
func (h *harness) released(t testing.TB) {
	t.Helper()
	for name, most := range map[string]float64{
		"seqledger_requests_open": 0, "seqledger_streams_open": 0,
		"seqledger_arriving_bytes": 0, "seqledger_connections_open": 2,
	} {
		h.awaitMetric(t, name, func(v float64) bool { return v <= most })
	}
	check.Equal(t, h.metric(t, "seqledger_panics_total"), "0", "panics: %v")
}

func (h *harness) awaitMetric(t testing.TB, name string, enough func(float64) bool) {
	t.Helper()
	last := ""
	for ctx := within(t); ctx.Err() == nil; {
		last = h.metric(t, name)
		if v, err := strconv.ParseFloat(last, 64); err == nil && enough(v) {
			return
		}
	}
	t.Fatalf("%s stays %s", name, last)
}

// connect opens a connection and sends text on it.
func (h *harness) connect(t testing.TB, text string) net.Conn {
	t.Helper()
	c := must.Get(new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(h.url, "http://")))(t)
	t.Cleanup(func() { _ = c.Close() })
	_, _ = io.WriteString(c, text) // a server that refuses reads no further
	return c
}

// status returns the first line that the server sends, "" when it closes.
func status(c net.Conn) string {
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line)
}

// incompressible returns bytes that gzip makes no smaller, so that they do not fit where they are not read.
func incompressible(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // it never fails
	return string(b)
}

func closeAll(connections []net.Conn) {
	for _, c := range connections {
		_ = c.Close()
	}
}

// heap returns the bytes that are reachable. No other test may run beside.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestAbuseIdleConnections: silent clients cannot use up the connections: without room, the oldest silent connection is
// closed for the new one.
func TestAbuseIdleConnections(t *testing.T) {
	t.Parallel()
	const limit = 100
	h := startWith(t, server.Options{MaxConnections: limit})
	g := &neighbour{h: h}
	g.work(t)
	var idle []net.Conn
	for i := range limit + 50 {
		text := "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
		if i%2 == 1 {
			text = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
		}
		c := h.connect(t, text)
		if i%2 == 0 {
			s := status(c)
			// A new one is closed only until the oldest has had its round trip.
			for ctx := within(t); s == "" && i >= limit-2 && ctx.Err() == nil; s = status(c) {
				c = h.connect(t, text)
			}
			must.Contains(t, s, " 200 ", "connection %d", i)
		}
		idle = append(idle, c)
	}
	if _, err := io.Copy(io.Discard, idle[0]); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error("the oldest must be closed:", err)
	}
	g.work(t)
	h.awaitMetric(t, "seqledger_connections_open", func(v float64) bool { return v <= limit })
	h.awaitMetric(t, "seqledger_connections_refused_total", func(v float64) bool { return v >= 50 })
	g.work(t)
	closeAll(idle)
	h.released(t)
}

func TestAbuseHugeHeaders(t *testing.T) {
	t.Parallel()
	h := start(t)
	g := &neighbour{h: h}
	huge := "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Huge: " + strings.Repeat("x", 1<<20) + "\r\n\r\n"
	for range 20 {
		c := h.connect(t, huge)
		if s := status(c); s != "" && !strings.Contains(s, " 431 ") { // a reset may overtake the answer
			t.Errorf("got %q", s)
		}
		_ = c.Close()
	}
	g.work(t)
	h.released(t)
}

// TestAbuseHugeFrames: a hundred thousand empty operations are refused before they are decoded.
func TestAbuseHugeFrames(t *testing.T) { //nolint:paralleltest // It measures the heap.
	h := start(t)
	g := &neighbour{h: h}
	g.work(t)
	before := heap()
	operations := make([]*seqledgerv1.Operation, 100)
	for i := range operations {
		operations[i] = new(seqledgerv1.Operation)
	}
	frame := new(seqledgerv1.WriteStreamRequest)
	for range 1_000 {
		frame.Writes = append(frame.Writes, writeOf("huge", 1, operations...))
	}
	for range 2 {
		stream := h.client.WriteStream(within(t))
		must.Do(t, stream.Send(frame))
		_, err := stream.Receive()
		if field, ok := badRequest(err); !ok || field != "writes" {
			t.Errorf("got %v", err)
		}
		_ = stream.CloseRequest()
		_ = stream.CloseResponse()
		g.work(t)
	}
	h.released(t)
	const bound = 32 << 20 // the frame itself, and what the ledger keeps
	if grown := heap() - before; grown > bound {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	runtime.KeepAlive(frame)
}

// smallWindow returns a client that takes hardly anything it does not read, and what closes its connection.
func smallWindow() (client *http.Client, disconnect func()) {
	client, disconnect = loneClient()
	if tr, ok := client.Transport.(*http.Transport); ok {
		tr.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 128 << 10}
	}
	return client, disconnect
}

// TestAbuseDeafStreams: the memory for writes with unread results is bounded, in operations too.
func TestAbuseDeafStreams(t *testing.T) { //nolint:paralleltest // It measures the heap.
	h := start(t)
	g := &neighbour{h: h}
	g.work(t)
	before := heap()
	operations := make([]*seqledgerv1.Operation, 1_000)
	for i := range operations {
		operations[i] = appendOp("")
	}
	const streams = 4
	var senders sync.WaitGroup
	var disconnects []func()
	for i := range streams {
		client, disconnect := smallWindow()
		disconnects = append(disconnects, disconnect)
		stream := seqledgerv1connect.NewLedgerServiceClient(client, h.url).WriteStream(within(t))
		must.Do(t, stream.Send(nil))
		senders.Go(func() { // ends with the connection
			for sequence := uint64(1); ; {
				frame := frameOf()
				for range 16 {
					frame.Writes = append(frame.Writes, writeOf(fmt.Sprint("deaf-", i), sequence, operations...))
					sequence++
				}
				if stream.Send(frame) != nil {
					return
				}
			}
		})
	}
	// Until the ledger takes nothing more from them: two looks that agree, with work of the other between them.
	for last, now := -1.0, 0.0; now != last || now == 0; {
		last, now = now, 0
		g.work(t)
		for i := range streams {
			s, _ := ledgerState(t, h.ledger, fmt.Sprint("deaf-", i))
			now += float64(s.Last)
		}
	}
	// 4,096 writes of a thousand operations each would be 32 MB a stream.
	const bound = 64 << 20
	if grown := heap() - before; grown > bound {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	for _, disconnect := range disconnects {
		disconnect()
	}
	senders.Wait()
	h.released(t)
	g.work(t)
}
