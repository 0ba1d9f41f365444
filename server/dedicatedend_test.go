package server_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/direct"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server"
)

// rawRequest asks for a connection of its own.
const rawRequest = "POST /seqledger.v1.LedgerService/WriteStream HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: " +
	"Upgrade\r\n" +
	"Upgrade: " + direct.Protocol + "\r\nContent-Type: application/connect+proto\r\nContent-Length: 0\r\n\r\n"

// rawFrame is a frame as it stands on a connection.
func rawFrame(t *testing.T, m *seqledgerv1.WriteStreamRequest) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// dialRaw opens a connection, sends the request for it and what follows.
func (h *harness) dialRaw(t *testing.T, behind ...[]byte) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second)) // a test must not hang
	if _, err := c.Write(append([]byte(rawRequest), bytes.Join(behind, nil)...)); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// stall keeps the ledger from deciding anything, as a slow disk does, until release
// is called.
func (h *harness) stall(t *testing.T) (release func()) {
	t.Helper()
	stalled, over := make(chan struct{}), make(chan struct{})
	// Ends with release, which the test calls.
	go func() {
		_ = h.ledger.View(context.Background(), func(machine.View) error {
			close(stalled)
			<-over
			return nil
		})
	}()
	<-stalled
	return func() { close(over) }
}

// TestDedicatedHalfCloseAnswersEverything: the end of what a client sends is not
// the end of what it is told.
func TestDedicatedHalfCloseAnswersEverything(t *testing.T) {
	t.Parallel()
	h := start(t)
	const frames = 200
	var all [][]byte
	for i := range frames {
		all = append(all, rawFrame(t, frameOf(writeOf("c", uint64(i)+1, appendOp("x")))))
	}
	c := h.dialRaw(t, all...)
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(c)
	if n := bytes.Count(data, []byte("system:anonymous")); err != nil || n != frames ||
		!bytes.HasSuffix(data, []byte("{}")) {
		t.Errorf("%d of %d writes were answered: %v, and at the end %q", n, frames, err, data[max(0, len(data)-100):])
	}
}

// TestTheEndOfADedicatedStreamArrives although the client has sent data that the server no
// longer reads, and reads late.
func TestTheEndOfADedicatedStreamArrives(t *testing.T) {
	t.Parallel()
	h := start(t)
	var good, bad []*seqledgerv1.WriteRequest
	for i := range 1000 {
		good = append(good, writeOf("c", uint64(i)+1, appendOp("x")))
	}
	for range 1001 {
		bad = append(bad, writeOf("c", 1, appendOp("x")))
	}
	c := h.dialRaw(t, rawFrame(t, frameOf(good...)), rawFrame(t, frameOf(bad...)), make([]byte, 200_000))
	for ctx := within(t); ctx.Err() == nil; {
		if status, found := ledgerState(t, h.ledger, "c"); found && status.Last == 1000 &&
			h.metric(t, "seqledger_streams_open") == "0" {
			break
		}
	}
	data, err := io.ReadAll(c)
	if err != nil || !bytes.Contains(data, []byte(`"invalid_argument"`)) {
		t.Errorf("the end was thrown away: %d bytes, %v", len(data), err)
	}
}

// slowLog is a log that takes its time, as a pipe does that is full.
type slowLog struct{ slog.Handler }

func (slowLog) Enabled(context.Context, slog.Level) bool { return true }

func (slowLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "request" {
		<-time.After(50 * time.Millisecond)
	}
	return nil
}

func (l slowLog) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l slowLog) WithGroup(string) slog.Handler { return l }

// TestAShutdownTellsADedicatedStream why it ends, however long the server takes to
// put that into words.
func TestAShutdownTellsADedicatedStream(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{Logger: slog.New(slowLog{slog.DiscardHandler})})
	stream := mustOpenDirect(t, h)
	ask(t, stream, writeOf("c", 1, appendOp("x")))
	stopped := make(chan error, 1)
	go func() { stopped <- h.stop() }() // ends with the drain; received below
	err := stream.Receive(new(seqledgerv1.WriteStreamResponse))
	mustRefuse(t, err, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestASlowDiskIsNoSilence: with more under way than a stream takes, and nothing
// decided, the server still says that it is there; and everything is answered in
// the end.
func TestASlowDiskIsNoSilence(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.server.SetSignEvery(10 * time.Millisecond)
	release := h.stall(t)
	stream := mustOpenDirect(t, h)
	const frames = 400
	for i := range frames {
		if err := stream.Send(frameOf(writeOf("c", uint64(i)+1, appendOp("x")))); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		m := new(seqledgerv1.WriteStreamResponse)
		if err := stream.Receive(m); err != nil || len(m.Results) != 0 {
			t.Fatalf("%v, %v: want a keepalive", m, err)
		}
	}
	release()
	for next := uint64(1); next <= frames; {
		m := new(seqledgerv1.WriteStreamResponse)
		if err := stream.Receive(m); err != nil {
			t.Fatal(err)
		}
		for _, r := range m.Results {
			if r.GetReceipt().GetSequence() != next {
				t.Fatal(r)
			}
			next++
		}
	}
}
