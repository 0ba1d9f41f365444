package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	"github.com/seqledger/seqledger/internal/wire"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// serveAddress serves on a real listener until the test ends.
func serveAddress(t *testing.T, s *Server) (address string) {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, listener) }() // ends with cancel; received below
	t.Cleanup(func() {
		cancel()
		check.Is(t, <-served, nil)
	})
	return listener.Addr().String()
}

// serveTest is serveAddress with a client that takes hardly anything that it does not read.
func serveTest(t *testing.T, s *Server) seqledgerv1connect.LedgerServiceClient {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}}
	t.Cleanup(transport.CloseIdleConnections)
	return seqledgerv1connect.NewLedgerServiceClient(&http.Client{Transport: transport}, "http://"+serveAddress(t, s))
}

// incompressible returns bytes that gzip makes no smaller, so that they do not fit where they are not read.
func incompressible(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // it never fails
	return string(b)
}

// soon bounds a test that waits for something to happen.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func appends(payload string) *seqledgerv1.WriteStreamRequest {
	return &seqledgerv1.WriteStreamRequest{Writes: []*seqledgerv1.WriteRequest{{
		Scope: &seqledgerv1.Scope{Organization: "acme"}, ClientId: "c", Sequence: 1,
		Operations: []*seqledgerv1.Operation{{Operation: &seqledgerv1.Operation_Append{
			Append: &seqledgerv1.Append{Payload: []byte(payload)},
		}}},
	}}}
}

// TestStalledWatcherIsDisconnected: a client that leaves a block unread for too long is disconnected, although its
// connection answers.
func TestStalledWatcherIsDisconnected(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	s.stall = 20 * time.Millisecond
	api := serveTest(t, s)
	write := appends(incompressible(1 << 20)).Writes[0]
	must.Get(api.Write(soon(t), connect.NewRequest(write)))(t)
	watcher := must.Get(api.Watch(soon(t), connect.NewRequest(&seqledgerv1.WatchRequest{Scope: write.Scope,
		FromHeight: 1})))(t)
	must.Do(t, s.admission.AwaitStreams(soon(t)), "the watcher keeps its place")
	for watcher.Receive() {
		t.Error("a block that was cut off is received")
	}
	if watcher.Err() == nil {
		t.Error("the watcher must learn that it was disconnected")
	}
}

// TestDeafUpgradedStreamIsDisconnected: a stream on an upgraded connection that leaves its results unread loses its
// place as every other.
func TestDeafUpgradedStreamIsDisconnected(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	s.stall = 20 * time.Millisecond
	address := serveAddress(t, s)
	conn, err := net.Dial("tcp", address)
	must.Do(t, err)
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	request := "GET /seqledger.v1.LedgerService/WriteStream HTTP/1.1\r\nHost: localhost\r\n" + prototest.Upgrade +
		"\r\n"
	must.Get(conn.Write([]byte(request)))(t)
	// Gaps, because their answers are longer than they are.
	frame := new(seqledgerv1.WriteStreamRequest)
	for range wire.MaxFrameWrites {
		write := appends("x").Writes[0]
		write.Sequence = 7
		frame.Writes = append(frame.Writes, write)
	}
	message := prototest.Frame(prototest.FrameBinary, prototest.Enveloped(frame))
	for err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(2 * time.Minute))
		_, err = conn.Write(message)
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		t.Error("a stream that reads nothing keeps its place")
	}
	must.Do(t, s.admission.AwaitStreams(soon(t)), "the stream keeps its place")
}
