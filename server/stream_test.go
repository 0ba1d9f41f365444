package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

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
		if err != nil {
			t.Fatalf("after %d of %d results: %v", len(results), n, err)
		}
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
	if err := stream.CloseRequest(); err != nil {
		t.Error(err)
	}
	if m, err := stream.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the half-close: got %v, %v; want a clean end", m, err)
	}
	if err := stream.CloseResponse(); err != nil {
		t.Error(err)
	}
}

func TestStreamAnswersInOrder(t *testing.T) {
	t.Parallel()
	h := start(t)
	for name, options := range wire {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url, options...)
			stream := client.WriteStream(within(t))
			const frames, size = 50, 7
			var group sync.WaitGroup
			group.Go(func() {
				for f := range frames {
					var writes []*seqledgerv1.WriteRequest
					for i := range size {
						writes = append(writes,
							writeOf("client of "+name, uint64(f*size+i)+1, appendOp(fmt.Sprint(f, i))))
					}
					if err := stream.Send(frameOf(writes...)); err != nil {
						t.Error(err)
						return
					}
				}
			})
			for i, r := range receive(t, stream, frames*size) {
				if got := r.GetReceipt().GetSequence(); got != uint64(i)+1 {
					t.Fatalf("result %d is %v, want sequence %d", i, r, i+1)
				}
			}
			group.Wait()
			end(t, stream)
		})
	}
}

func TestStreamGoesOnAfterARefusal(t *testing.T) {
	t.Parallel()
	h := start(t)
	stream := h.client.WriteStream(within(t))
	proven := writeOf("c", 2, appendOp("x"), setOp("k", "v"))
	proven.IncludeProof = true
	err := stream.Send(frameOf(
		writeOf("c", 1, appendOp("x")),
		writeOf("c", 3, appendOp("x")), // a gap
		writeOf("c", 0, appendOp("x")), // invalid
		proven,
		writeOf("c", 1, appendOp("x")), // a retry
		writeOf("c", 2, appendOp("y")), // another payload
	))
	if err != nil {
		t.Fatal(err)
	}
	r := receive(t, stream, 6)
	if r[0].GetReceipt().GetSequence() != 1 || r[0].GetReceipt().GetReplayed() {
		t.Error("first write:", r[0])
	}
	if e := r[1].GetError(); e.GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_GAP ||
		e.LastCommittedSequence != 1 {
		t.Error("gap:", r[1])
	}
	if e := r[2].GetError(); e.GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT ||
		e.Field != "sequence" {
		t.Error("invalid write:", r[2])
	}
	if m := r[3].GetReceipt(); m.GetSequence() != 2 || len(m.GetResults()) != 2 || m.GetProof() == nil ||
		m.GetBlockHeader() == nil {
		t.Error("write with a proof:", r[3])
	}
	if m := r[4].GetReceipt(); !m.GetReplayed() || m.GetTxId() != r[0].GetReceipt().GetTxId() || m.GetProof() != nil {
		t.Error("retry:", r[4])
	}
	if e := r[5].GetError(); e.GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_REUSED {
		t.Error("other payload:", r[5])
	}
	end(t, stream)
}

// TestStreamRefusesInPlace sends writes that do not even decode between good ones.
func TestStreamRefusesInPlace(t *testing.T) {
	t.Parallel()
	h := start(t)
	stream := h.client.WriteStream(within(t))
	bad := writeOf("c", 2, appendOp("x"))
	bad.Operations[0].ProtoReflect().SetUnknown(
		protowire.AppendVarint(protowire.AppendTag(nil, 50, protowire.VarintType), 1))
	if err := stream.Send(frameOf(writeOf("c", 1, appendOp("x")), bad, writeOf("c", 2, appendOp("y")))); err != nil {
		t.Fatal(err)
	}
	r := receive(t, stream, 3)
	if e := r[1].GetError(); e.GetField() != "operations[0].50" {
		t.Error("unknown field:", r[1])
	}
	if r[0].GetReceipt() == nil || r[2].GetReceipt().GetSequence() != 2 {
		t.Error("the neighbours must be committed:", r)
	}
	end(t, stream)
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
		if err := stream.Send(frameOf(writeOf("before "+field, 1, appendOp("x")))); err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(frame); err != nil {
			t.Fatal(err)
		}
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

func TestHalfCloseAnswersEverything(t *testing.T) {
	t.Parallel()
	h := start(t)
	stream := h.client.WriteStream(within(t))
	const frames = 100
	for i := range frames {
		if err := stream.Send(frameOf(writeOf("c", uint64(i)+1, appendOp("x")))); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	if r := receive(t, stream, frames); r[frames-1].GetReceipt().GetSequence() != frames {
		t.Error(r[frames-1])
	}
	end(t, stream)
}

func TestEmptyStreamsAndFrames(t *testing.T) {
	t.Parallel()
	h := start(t)
	end(t, h.client.WriteStream(within(t)))
	stream := h.client.WriteStream(within(t))
	for range 3 {
		if err := stream.Send(frameOf()); err != nil {
			t.Fatal(err)
		}
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
	if err := stream.Send(frameOf(writeOf("c", 1, appendOp("x")))); err != nil {
		t.Fatal(err)
	}
	receive(t, stream, 1)
	h.awaitStreams(t, "1")
	disconnect()
	h.awaitStreams(t, "0") // the handler has returned, and it joins its reader
	if _, err := stream.Receive(); err == nil {
		t.Error("a result from a closed connection")
	}
}

// TestNeverReadingClient: a client that reads no results is stopped by what it has not read, and the others go on.
func TestNeverReadingClient(t *testing.T) {
	t.Parallel()
	h := start(t)
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	lone, disconnect := loneClient()
	stream := seqledgerv1connect.NewLedgerServiceClient(lone, h.url).WriteStream(ctx)
	blocked := make(chan struct{})
	var sent uint64
	var group sync.WaitGroup
	group.Go(func() {
		defer close(blocked)
		// More than every buffer between here and the ledger can hold: the test ends by the disconnect below, or never.
		for i := uint64(0); ; i += 500 {
			var writes []*seqledgerv1.WriteRequest
			for j := range uint64(500) {
				writes = append(writes, writeOf("deaf", i+j+1, appendOp("x")))
			}
			if stream.Send(frameOf(writes...)) != nil {
				return
			}
			sent = i + 500
		}
	})
	// Until the ledger takes no more from it: two equal checks in a row, with a write of another client between them.
	var last uint64
	for sequence := uint64(1); ; sequence++ {
		state, err := h.client.GetClientState(ctx, connect.NewRequest(
			&seqledgerv1.GetClientStateRequest{Scope: scope(), ClientId: "deaf"}))
		if err != nil {
			t.Fatal(err)
		}
		if now := state.Msg.State.LastCommittedSequence; now != 0 && now == last && sequence > 200 {
			break
		} else if now != last {
			sequence = max(sequence, 1)
			last = now
		}
		other := seqledgerv1connect.NewLedgerServiceClient(h.h1, h.url)
		if _, err := other.Write(ctx, connect.NewRequest(writeOf("other", sequence, appendOp("x")))); err != nil {
			t.Fatal("the others must go on:", err)
		}
	}
	select {
	case <-blocked:
		t.Error("the sender must be held back")
	default:
	}
	// Not by a cancel: while a request body waits for its window, the transport does not notice that its context has
	// ended.
	disconnect()
	group.Wait()
	if last > sent+500 || last == 0 {
		t.Errorf("%d writes are committed of %d sent", last, sent)
	}
	h.awaitStreams(t, "0")
}

func TestDrainEndsStreamsWithTheirResults(t *testing.T) {
	t.Parallel()
	for name, options := range wire {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := start(t)
			client := seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url, options...)
			stream := client.WriteStream(within(t))
			if err := stream.Send(frameOf(writeOf("c", 1, appendOp("x")))); err != nil {
				t.Fatal(err)
			}
			receive(t, stream, 1)
			stopped := make(chan error, 1)
			go func() { stopped <- h.stop() }() // ends with the drain; received below
			_, err := stream.Receive()
			mustRefuse(t, err, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
			_ = stream.CloseRequest()
			_ = stream.CloseResponse()
			if err := <-stopped; err != nil {
				t.Error("Serve must end without an error once all is answered:", err)
			}
		})
	}
}

// TestDrainUnderLoad: whatever a stream sent, its results are a prefix of receipts, then DRAINING, then the end; and
// every receipt is in the ledger.
func TestDrainUnderLoad(t *testing.T) {
	t.Parallel()
	t.Run("HTTP/2", func(t *testing.T) {
		t.Parallel()
		h := start(t)
		stream := h.client.WriteStream(within(t))
		drainUnderLoad(t, h, stream.Send, stream.Receive, stream.CloseResponse)
	})
	t.Run("upgraded", func(t *testing.T) {
		t.Parallel()
		h := start(t)
		stream := mustOpenUpgraded(t, h)
		drainUnderLoad(t, h, func(frame *seqledgerv1.WriteStreamRequest) error { return stream.Send(frame) },
			func() (*seqledgerv1.WriteStreamResponse, error) {
				m := new(seqledgerv1.WriteStreamResponse)
				return m, stream.Receive(m)
			}, stream.Close)
	})
}

func drainUnderLoad(
	t *testing.T, h *harness, send func(*seqledgerv1.WriteStreamRequest) error,
	receive func() (*seqledgerv1.WriteStreamResponse, error), end func() error,
) {
	var group sync.WaitGroup
	// Ends with the stream; joined below.
	group.Go(func() {
		for i := uint64(1); ; i++ {
			if send(frameOf(writeOf("c", i, appendOp("x")))) != nil {
				return
			}
		}
	})
	stopped := make(chan error, 1)
	var committed uint64
	draining := false
	for {
		m, err := receive()
		if err != nil {
			mustRefuse(t, err, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
			break
		}
		for _, r := range m.Results {
			if r.GetReceipt() == nil {
				if r.GetError().GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING {
					t.Fatal(r)
				}
				draining = true
				continue
			}
			if committed++; draining || r.GetReceipt().Sequence != committed {
				t.Fatal("after", committed, r)
			}
			if committed == 100 {
				go func() { stopped <- h.stop() }() // ends with the drain; received below
			}
		}
	}
	_ = end()
	group.Wait()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	status, found := ledgerState(t, h.ledger, "c")
	if !found || status.Last != committed {
		t.Errorf("%d receipts, and the ledger has %d writes", committed, status.Last)
	}
}

func TestDrainRefusesNewWrites(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.mustWrite(t, writeOf("c", 1, setOp("k", "v")))
	if err := h.server.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := h.client.Write(t.Context(), connect.NewRequest(writeOf("c", 2, appendOp("x"))))
	mustRefuse(t, err, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
	_, err = h.client.OpenSession(t.Context(), connect.NewRequest(&seqledgerv1.OpenSessionRequest{
		Scope: scope(), ClientId: "c", AttemptId: make([]byte, 16),
	}))
	mustRefuse(t, err, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
	_, err = h.admin.UpdateConfig(t.Context(), connect.NewRequest(new(seqledgerv1.UpdateConfigRequest)))
	mustRefuse(t, err, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
	if _, err := h.client.GetEntity(t.Context(), connect.NewRequest(
		&seqledgerv1.GetEntityRequest{Scope: scope(), Key: "k"})); err != nil {
		t.Error("reads go on:", err)
	}
	if status, _ := h.get(t, "/readyz"); status != 503 {
		t.Error("a draining server is not ready:", status)
	}
	if status, _ := h.get(t, "/healthz"); status != 200 {
		t.Error("a draining server is alive:", status)
	}
}

func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{MaxStreams: 1, Ledger: openLedger(t, ledger.Options{})})
	first := h.client.WriteStream(within(t))
	if err := first.Send(frameOf(writeOf("c", 1, appendOp("x")))); err != nil {
		t.Fatal(err)
	}
	receive(t, first, 1)
	second := h.client.WriteStream(within(t))
	_ = second.Send(frameOf(writeOf("c", 2, appendOp("x"))))
	if _, err := second.Receive(); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Error("the second stream must be refused:", err)
	}
	_ = second.CloseRequest()
	_ = second.CloseResponse()
	end(t, first)
}

// TestSlowPathDecodesTheSame: a frame that has one bad write is decoded write by write, and the good ones must come out
// as ever.
func TestSlowPathDecodesTheSame(t *testing.T) {
	t.Parallel()
	h := start(t)
	client := seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url, connect.WithCodec(rawJSON{}))
	stream := client.WriteStream(within(t))
	one := `{"scope":{"organization":"acme","vault":"main"},"clientId":"c","sequence":"%d",` +
		`"operations":[{"append":{"payload":"eA=="}}]}`
	body := fmt.Sprintf(`{"writes":[`+one+`,{"typo":1},`+one+`]}`, 1, 2)
	if err := stream.Send(frameOf(writeOf(body, 0))); err != nil {
		t.Fatal(err)
	}
	r := receive(t, stream, 3)
	if r[0].GetReceipt().GetSequence() != 1 || r[1].GetError().GetField() != "typo" ||
		r[2].GetReceipt().GetSequence() != 2 {
		t.Error(r)
	}
	again, err := h.client.Write(t.Context(), connect.NewRequest(writeOf("c", 2, appendOp("x"))))
	if err != nil || !again.Msg.Receipt.Replayed {
		t.Error("the same write in binary must be a retry:", again, err)
	}
	end(t, stream)
}

// rawJSON sends the client id of the first write as the whole body, so that a test can send what no client would.
type rawJSON struct{}

func (rawJSON) Name() string { return "json" }

func (rawJSON) Marshal(m any) ([]byte, error) {
	frame, ok := m.(*seqledgerv1.WriteStreamRequest)
	if !ok {
		return nil, fmt.Errorf("unexpected %T", m)
	}
	return []byte(strings.TrimSpace(frame.Writes[0].ClientId)), nil
}

func (rawJSON) Unmarshal(data []byte, m any) error { return unmarshalJSON(data, m.(proto.Message)) }

// TestDrainIsBounded: a client that never reads cannot hold the server up.
func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{DrainTimeout: 100 * time.Millisecond})
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	// With a small window, a few results fill it.
	transport := h.h2.Transport.(*http.Transport)
	transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 64 << 10}
	stream := h.client.WriteStream(ctx)
	if err := stream.Send(frameOf(writeOf("deaf", 1, appendOp("x")))); err != nil {
		t.Fatal(err)
	}
	receive(t, stream, 1)
	var group sync.WaitGroup
	group.Go(func() { // ends when the server closes the connection; waited for below
		// The results of a million writes fit into no window.
		for i := uint64(2); i < 1_000_000; i += 1_000 {
			var writes []*seqledgerv1.WriteRequest
			for j := range uint64(1_000) {
				writes = append(writes, writeOf("deaf", i+j, appendOp("x")))
			}
			if stream.Send(frameOf(writes...)) != nil {
				return
			}
		}
	})
	// The committed writes have results larger than the 64 KiB that may be under way, so the stream cannot end before
	// the client reads.
	for {
		if s, _ := ledgerState(t, h.ledger, "deaf"); s.Last > 2_000 {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the writes are not committed:", ctx.Err())
		}
	}
	// Mostly Serve times out. A result that is sent only in the drain has less time to be read, and then only the
	// stream is cut off.
	if err := h.stop(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Error("Serve must give up, and say so:", err)
	}
	var end error
	for end == nil {
		_, end = stream.Receive()
	}
	if errors.Is(end, io.EOF) {
		t.Error("the stream has ended as if its client had read its results")
	}
	cancel()
	_ = stream.CloseRequest()
	_ = stream.CloseResponse()
	group.Wait()
}
