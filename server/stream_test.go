package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

type clientStream = connect.BidiStreamForClient[seqledgerv1.WriteStreamRequest, seqledgerv1.WriteStreamResponse]

func frameOf(writes ...*seqledgerv1.WriteRequest) *seqledgerv1.WriteStreamRequest {
	return &seqledgerv1.WriteStreamRequest{Writes: writes}
}

// receive returns the next n results.
func receive(t testing.TB, stream *clientStream, n int) []*seqledgerv1.WriteResult {
	t.Helper()
	var results []*seqledgerv1.WriteResult
	for len(results) < n {
		m, err := stream.Receive()
		must.Do(t, err, "after %d of %d results", len(results), n)
		results = append(results, m.Results...)
	}
	if len(results) > n {
		t.Fatalf("got %d results, want %d", len(results), n)
	}
	return results
}

// end half-closes and expects a clean end without further results.
func end(t testing.TB, stream *clientStream) {
	t.Helper()
	must.Do(t, stream.CloseRequest())
	if m, err := stream.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the half-close: got %v, %v; want a clean end", m, err)
	}
	must.Do(t, stream.CloseResponse())
}

// A stream whose writes come one at a time is committed and answered by its reader. Whoever answers, the results are in
// order, also where several writes come at once.
func TestReaderCommitsLoneWrites(t *testing.T) {
	t.Parallel()
	var byReader atomic.Int64
	l := openLedger(t, ledger.Options{ObserveApply: func() func() {
		stack := make([]byte, 16<<10)
		if strings.Contains(string(stack[:runtime.Stack(stack, false)]), "(*writeStream).read(") {
			byReader.Add(1)
		}
		return func() {}
	}})
	h := startWith(t, server.Options{Ledger: l})
	for name, options := range wire {
		// Without a deadline, at which the reader could not end a wait for the disk.
		stream := seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url, options...).WriteStream(t.Context())
		sequence, before := uint64(0), byReader.Load()
		for round := range 80 {
			together := 1
			if round >= 40 {
				together = 1 + round%3
			}
			for i := range together {
				w := writeOf("client of "+name, sequence+uint64(i)+1, appendOp("x"))
				must.Do(t, stream.Send(frameOf(w)), "%v", name)
			}
			for _, r := range receive(t, stream, together) {
				if sequence++; r.GetReceipt().GetSequence() != sequence {
					t.Fatalf("%s: the result of write %d is %v", name, sequence, r)
				}
			}
		}
		end(t, stream)
		if byReader.Load() == before {
			t.Errorf("%s: the reader committed nothing", name)
		}
	}
}

func TestStreamRefusesWhatIsNoFrame(t *testing.T) {
	t.Parallel()
	h := start(t)
	many := make([]*seqledgerv1.WriteRequest, 1_001)
	for i := range many {
		many[i] = writeOf("many", uint64(i)+1, appendOp("x"))
	}
	unknown := frameOf(writeOf("unknown", 1, appendOp("x")))
	unknown.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 50, protowire.VarintType), 1))
	for field, frame := range map[string]*seqledgerv1.WriteStreamRequest{"writes": frameOf(many...), "50": unknown} {
		stream := h.client.WriteStream(within(t))
		must.Do(t, stream.Send(frameOf(writeOf("before "+field, 1, appendOp("x")))))
		must.Do(t, stream.Send(frame))
		if r := receive(t, stream, 1); r[0].GetReceipt() == nil {
			t.Error("what came before must be answered:", r)
		}
		_, err := stream.Receive()
		e := mustRefuse(t, err, connect.CodeInvalidArgument,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT)
		if got, _ := badRequest(err); e.Field != field || got != field {
			t.Errorf("got the fields %q and %q, want %q", e.Field, got, field)
		}
		_ = stream.CloseRequest()
		_ = stream.CloseResponse()
	}
	state, err := h.client.GetClientState(t.Context(), connect.NewRequest(
		&seqledgerv1.GetClientStateRequest{Scope: scope(), ClientId: "many"}))
	if err != nil || state.Msg.State.Status != seqledgerv1.ClientStatus_CLIENT_STATUS_UNKNOWN {
		t.Error("a refused frame must change nothing:", state, err)
	}
}

func TestEmptyStreamsAndFrames(t *testing.T) {
	t.Parallel()
	h := start(t)
	end(t, h.client.WriteStream(within(t)))
	stream := h.client.WriteStream(within(t))
	for range 3 {
		must.Do(t, stream.Send(frameOf()))
	}
	end(t, stream)
}

// awaitStreams waits until the server has so many open streams.
func (h *harness) awaitStreams(t testing.TB, want string) {
	t.Helper()
	for ctx := within(t); ctx.Err() == nil; {
		if h.metric(t, "seqledger_streams_open") == want {
			return
		}
	}
	t.Fatalf("there are %s open streams, want %s", h.metric(t, "seqledger_streams_open"), want)
}

// loneClient returns an HTTP client with HTTP/2 connections of its own and a function that closes them, as when the
// process is killed. Calls that begin together open one each and use the first: a server that is shut down waits for
// the others, too.
func loneClient() (client *http.Client, disconnect func()) {
	var mu sync.Mutex
	var connections []net.Conn
	closed := false
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client = &http.Client{Transport: &http.Transport{
		Protocols: protocols,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			if connections = append(connections, c); closed {
				_ = c.Close()
			}
			return c, nil
		},
	}}
	return client, func() {
		mu.Lock()
		defer mu.Unlock()
		closed = true
		closeAll(connections)
	}
}

func TestDisconnectEndsTheStream(t *testing.T) {
	t.Parallel()
	h := start(t)
	lone, disconnect := loneClient()
	stream := seqledgerv1connect.NewLedgerServiceClient(lone, h.url).WriteStream(within(t))
	must.Do(t, stream.Send(frameOf(writeOf("c", 1, appendOp("x")))))
	receive(t, stream, 1)
	h.awaitStreams(t, "1")
	disconnect()
	h.awaitStreams(t, "0") // the handler has returned, and it joins its reader
	if _, err := stream.Receive(); err == nil {
		t.Error("a result from a closed connection")
	}
}
