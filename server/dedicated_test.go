package server_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/direct"
	"github.com/seqledger/seqledger/internal/prototest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// openDirect asks for a WriteStream with a connection to itself.
func openDirect(t *testing.T, h *harness, token string) (*direct.Stream, error) {
	t.Helper()
	header := make(http.Header)
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	transport := direct.NewTransport(new(http.Transport))
	stream, err := direct.Open(within(t), transport,
		h.url+seqledgerv1connect.LedgerServiceWriteStreamProcedure, header, prototest.Codec{})
	if err == nil {
		t.Cleanup(func() { _ = stream.Close() })
	}
	return stream, err
}

func mustOpenDirect(t *testing.T, h *harness) *direct.Stream {
	t.Helper()
	stream, err := openDirect(t, h, "")
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// ask sends a frame and returns the results of the next message.
func ask(t *testing.T, stream *direct.Stream, writes ...*seqledgerv1.WriteRequest) []*seqledgerv1.WriteResult {
	t.Helper()
	if err := stream.Send(frameOf(writes...)); err != nil {
		t.Fatal(err)
	}
	response := new(seqledgerv1.WriteStreamResponse)
	if err := stream.Receive(response); err != nil {
		t.Fatal(err)
	}
	return response.Results
}

// TestDedicatedStream decides as every other: commits, repeats, refusals. An empty frame is a
// keepalive and changes nothing.
func TestDedicatedStream(t *testing.T) {
	t.Parallel()
	h := start(t)
	stream := mustOpenDirect(t, h)
	if err := stream.Send(frameOf()); err != nil {
		t.Fatal(err)
	}
	first := ask(t, stream, writeOf("c", 1, appendOp("x")))
	if len(first) != 1 || first[0].GetReceipt().GetSequence() != 1 {
		t.Fatal(first)
	}
	r := ask(t, stream, writeOf("c", 1, appendOp("x")), writeOf("c", 3, appendOp("x")),
		writeOf("", 1), writeOf("c", 2, appendOp("x")))
	if len(r) != 4 {
		t.Fatal(r)
	}
	if again := r[0].GetReceipt(); !again.GetReplayed() || again.GetTxId() != first[0].GetReceipt().GetTxId() {
		t.Error("the repeat:", r[0])
	}
	if e := r[1].GetError(); e.GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_GAP {
		t.Error("the gap:", r[1])
	}
	if e := r[2].GetError(); e.GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT {
		t.Error("the bad write:", r[2])
	}
	if r[3].GetReceipt().GetSequence() != 2 {
		t.Error("the good write:", r[3])
	}
	h.awaitStreams(t, "1")
	if got := h.metric(t, "seqledger_write_streams_own_connection"); got != "1" {
		t.Errorf("%s streams have a connection to themselves", got)
	}
	_ = stream.Close()
	h.awaitStreams(t, "0")
	if got := h.metric(t, "seqledger_write_streams_own_connection"); got != "0" {
		t.Errorf("%s streams have a connection to themselves after the end", got)
	}
}

// TestDedicatedStreamNeedsTheSameCredential as any request, and has the same rights.
func TestDedicatedStreamNeedsTheSameCredential(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, nil)
	for name, token := range map[string]string{"none": "", "wrong": "slk_nobody"} {
		// Connect's streams have their errors in the body of a success.
		var refused *direct.RefusedError
		if _, err := openDirect(t, g.harness, token); !errors.As(err, &refused) || refused.Status != http.StatusOK {
			t.Errorf("with %s: %v, want Connect's own refusal", name, err)
		}
	}
	stream, err := openDirect(t, g.harness, g.keys["writer"])
	if err != nil {
		t.Fatal(err)
	}
	if r := ask(t, stream, writeOf("till-1", 1, appendOp("x"))); r[0].GetReceipt() == nil {
		t.Error(r)
	}
	if r := ask(t, stream, writeOf("other", 1,
		appendOp("x"))); r[0].GetError().GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED {
		t.Error("a client id of others:", r)
	}
	var refused *direct.RefusedError
	if _, err := openDirect(t, g.harness, g.keys["reader"]); !errors.As(err, &refused) || refused.Status != http.StatusOK {
		t.Error("a reader opened a stream of writes:", err)
	}
}

// TestDedicatedStreamsAreBounded like the others.
func TestDedicatedStreamsAreBounded(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{MaxStreams: 1})
	first := mustOpenDirect(t, h)
	ask(t, first, writeOf("c", 1, appendOp("x")))
	second := mustOpenDirect(t, h)
	if err := second.Receive(new(seqledgerv1.WriteStreamResponse)); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("the second stream ended with %v", err)
	}
	ask(t, first, writeOf("c", 2, appendOp("x")))
}

// TestABadFrameEndsADedicatedStream and says what is wrong with it.
func TestABadFrameEndsADedicatedStream(t *testing.T) {
	t.Parallel()
	h := start(t)
	stream := mustOpenDirect(t, h)
	var many []*seqledgerv1.WriteRequest
	for i := range 1001 {
		many = append(many, writeOf(fmt.Sprint(i), 1, appendOp("x")))
	}
	if err := stream.Send(frameOf(many...)); err != nil {
		t.Fatal(err)
	}
	err := stream.Receive(new(seqledgerv1.WriteStreamResponse))
	mustRefuse(t, err, connect.CodeInvalidArgument, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT)
}
