package server_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/coder/websocket"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	"github.com/seqledger/seqledger/internal/upgrade"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// openUpgraded asks for a WriteStream on an upgraded connection.
func openUpgraded(t *testing.T, h *harness, token string) (*upgrade.ClientConn, error) {
	t.Helper()
	header := make(http.Header)
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	transport := upgrade.NewTransport(new(http.Transport))
	stream, err := upgrade.Dial(within(t), transport,
		h.url+seqledgerv1connect.LedgerServiceWriteStreamProcedure, header, prototest.Codec{})
	if err == nil {
		t.Cleanup(func() { _ = stream.Close() })
	}
	return stream, err
}

func mustOpenUpgraded(t *testing.T, h *harness) *upgrade.ClientConn {
	t.Helper()
	stream := must.Get(openUpgraded(t, h, ""))(t)
	return stream
}

// ask sends a frame and returns the results of the next message.
func ask(t *testing.T, stream *upgrade.ClientConn, writes ...*seqledgerv1.WriteRequest) []*seqledgerv1.WriteResult {
	t.Helper()
	must.Do(t, stream.Send(frameOf(writes...)))
	response := new(seqledgerv1.WriteStreamResponse)
	must.Do(t, stream.Receive(response))
	return response.Results
}

// TestUpgradedStreamsAreCounted. An empty frame is a keepalive and is not answered.
func TestUpgradedStreamsAreCounted(t *testing.T) {
	t.Parallel()
	h := start(t)
	stream := mustOpenUpgraded(t, h)
	must.Do(t, stream.Send(frameOf()))
	if r := ask(t, stream, writeOf("c", 1, appendOp("x"))); len(r) != 1 || r[0].GetReceipt().GetSequence() != 1 {
		t.Fatal(r)
	}
	h.awaitStreams(t, "1")
	check.Equal(t, h.metric(t, "seqledger_write_streams_own_connection"), "1", "%s upgraded connections")
	_ = stream.Close()
	h.awaitStreams(t, "0")
	check.Equal(t, h.metric(t, "seqledger_write_streams_own_connection"), "0", "%s upgraded connections after the end")
}

// rawRequest asks for an upgraded connection.
const rawRequest = "GET " + seqledgerv1connect.LedgerServiceWriteStreamProcedure +
	" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + prototest.Upgrade + "\r\n"

// rawFrame is a frame as it is sent on a connection.
func rawFrame(m *seqledgerv1.WriteStreamRequest) []byte {
	return prototest.Frame(prototest.FrameBinary, prototest.Enveloped(m))
}

// dialRaw opens a connection, sends the request for it and what follows.
func (h *harness) dialRaw(t *testing.T, behind ...[]byte) *net.TCPConn {
	t.Helper()
	c := must.Get(net.Dial("tcp", strings.TrimPrefix(h.url, "http://")))(t)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute)) // a test must not hang
	must.Get(c.Write(append([]byte(rawRequest), bytes.Join(behind, nil)...)))(t)
	return c.(*net.TCPConn)
}

// stall keeps the ledger from deciding anything, as a slow disk does, until release is called.
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

// TestUpgradedHalfCloseAnswersEverything: the end of what a client sends, by an envelope or by the end of its side of
// the connection, is not the end of what it is told. The close frame comes last.
func TestUpgradedHalfCloseAnswersEverything(t *testing.T) {
	t.Parallel()
	for name, last := range map[string][]byte{
		"connection": nil, "envelope": prototest.Frame(prototest.FrameBinary, prototest.Envelope(2, []byte("{}"))),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := start(t)
			const frames = 200
			var all [][]byte
			for i := range frames {
				all = append(all, rawFrame(frameOf(writeOf("c", uint64(i)+1, appendOp("x")))))
			}
			c := h.dialRaw(t, append(all, last)...)
			if last == nil {
				must.Do(t, c.CloseWrite())
			}
			data, err := io.ReadAll(c)
			if n := bytes.Count(data, []byte("system:anonymous")); err != nil || n != frames ||
				!bytes.HasSuffix(data, []byte("{}\x88\x02\x03\xe8")) {
				t.Errorf("%d of %d writes were answered: %v, and at the end %q", n, frames, err,
					data[max(0, len(data)-100):])
			}
		})
	}
}

// TestTheEndOfAnUpgradedStreamArrives although the client has sent data that the server no longer reads, and reads
// late.
func TestTheEndOfAnUpgradedStreamArrives(t *testing.T) {
	t.Parallel()
	h := start(t)
	var good, bad []*seqledgerv1.WriteRequest
	for i := range 1000 {
		good = append(good, writeOf("c", uint64(i)+1, appendOp("x")))
	}
	for range 1001 {
		bad = append(bad, writeOf("c", 1, appendOp("x")))
	}
	c := h.dialRaw(t, rawFrame(frameOf(good...)), rawFrame(frameOf(bad...)), make([]byte, 200_000))
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

// TestAShutdownTellsAnUpgradedStream why it ends, however long the server takes to put that into words.
func TestAShutdownTellsAnUpgradedStream(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{Logger: slog.New(slowLog{slog.DiscardHandler})})
	stream := mustOpenUpgraded(t, h)
	ask(t, stream, writeOf("c", 1, appendOp("x")))
	stopped := make(chan error, 1)
	go func() { stopped <- h.stop() }() // ends with the drain; received below
	err := stream.Receive(new(seqledgerv1.WriteStreamResponse))
	mustRefuse(t, err, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
	must.Do(t, <-stopped)
}

// TestASlowDiskIsNoSilence: with more under way than a stream takes, and nothing decided, the server still says that it
// is there; and everything is answered in the end.
func TestASlowDiskIsNoSilence(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.server.SetPingEvery(200 * time.Millisecond)
	release := h.stall(t)
	pings := make(chan struct{}, 1000)
	ws := h.page(t, &websocket.DialOptions{OnPingReceived: func(context.Context, []byte) bool {
		select {
		case pings <- struct{}{}:
		default:
		}
		return true
	}})
	const frames = 400
	for i := range frames {
		sendMessage(t, ws, prototest.Enveloped(frameOf(writeOf("c", uint64(i)+1, appendOp("x")))))
	}
	answers := make(chan *seqledgerv1.WriteStreamResponse, frames)
	// Ends with the answers, or with the connection at the end of the test.
	go func() {
		defer close(answers)
		for n := 0; n < frames; {
			m := new(seqledgerv1.WriteStreamResponse)
			if _, err := receiveMessage(ws, m); err != nil {
				return
			}
			n += len(m.Results)
			answers <- m
		}
	}()
	for range 3 {
		select {
		case <-pings:
		case m := <-answers:
			t.Fatalf("%v: want a ping", m)
		}
	}
	release()
	next := uint64(1)
	for m := range answers {
		for _, r := range m.Results {
			if r.GetReceipt().GetSequence() != next {
				t.Fatal(r)
			}
			next++
		}
	}
	check.Equal(t, next, frames+1, "%d of %d writes were answered: %v", next-1, frames)
}
