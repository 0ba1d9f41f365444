package server_test

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// What a credential stores is bounded, whether by single writes or on a stream, and what others store is not.
func TestStoredBytesAreBounded(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, map[string]string{
		"small": `role: writer, scopes: ["bad/*"], client_ids: ["*"], limits: {stored_bytes: 3000}`,
		"good":  tenantKeys["good"],
	})
	l, admin := g.as("small")
	stream := l.WriteStream(within(t))
	committed := 0
	var refused *seqledgerv1.WriteError
	for sequence := uint64(1); refused == nil; sequence++ {
		must.Do(t, stream.Send(frameOf(writeIn("bad", "c", sequence, appendOp(strings.Repeat("x", 500))))))
		r := must.Get(stream.Receive())(t)
		if refused = r.Results[0].GetError(); refused == nil {
			committed++
		}
	}
	if committed != 4 || refused.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL ||
		refused.RetryAfter == nil ||
		!strings.Contains(refused.Message, "stored_bytes") {
		t.Errorf("%d writes of 500 bytes, then %v", committed, refused)
	}
	_, err := l.Write(within(t), connect.NewRequest(writeIn("bad", "d", 1, appendOp("x"))))
	mustRefuse(t, err, connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
	if again, err := l.GetEntity(within(t),
		connect.NewRequest(&seqledgerv1.GetEntityRequest{Scope: scopeIn("bad"), Key: "k"})); connect.CodeOf(
		err) != connect.CodeNotFound {
		t.Error("reads go on:", again, err)
	}
	status, err := admin.GetStatus(within(t), connect.NewRequest(&seqledgerv1.GetStatusRequest{}))
	if err != nil || status.Msg.Status.Caller.StoredBytesLimit != 3000 || status.Msg.Status.Caller.StoredBytes < 3000 {
		t.Error("the status says", status, err)
	}
	_ = stream.CloseRequest()
	_ = stream.CloseResponse()
	g.mustServe(t, "a")
}

// A committed write that is repeated gets its receipt although its credential may store nothing more, however large it
// is.
func TestRepeatsNeedNoRoom(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, map[string]string{
		"small": `role: writer, scopes: ["bad/*"], client_ids: ["*"], limits: {stored_bytes: 100000}`,
		"good":  tenantKeys["good"],
	})
	l, _ := g.as("small")
	large := strings.Repeat("x", 120_000)
	first := must.Get(l.Write(within(t), connect.NewRequest(writeIn("bad", "c", 1, appendOp(large)))))(t)
	again, err := l.Write(within(t), connect.NewRequest(writeIn("bad", "c", 1, appendOp(large))))
	if err != nil || !again.Msg.Receipt.Replayed || again.Msg.Receipt.TxId != first.Msg.Receipt.TxId {
		t.Errorf("the repeat: %v, %v, want the receipt %v", again, err, first)
	}
	_, err = l.Write(within(t), connect.NewRequest(writeIn("bad", "c", 2, appendOp(large))))
	mustRefuse(t, err, connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
}

// A stream that writes faster than its credential may is slowed, and not refused.
func TestStreamIsSlowed(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, map[string]string{
		"slow": `role: writer, scopes: ["bad/*"], client_ids: ["*"], limits: {writes_per_second: 100}`,
		"good": tenantKeys["good"],
	})
	l, _ := g.as("slow")
	stream := l.WriteStream(within(t))
	for sequence := range uint64(5) {
		frame := frameOf()
		for i := range uint64(25) {
			frame.Writes = append(frame.Writes, writeIn("bad", "c", sequence*25+i+1, appendOp("x")))
		}
		must.Do(t, stream.Send(frame))
	}
	for _, r := range receive(t, stream, 125) {
		if r.GetReceipt() == nil {
			t.Fatal(r)
		}
	}
	if n := g.observe(t, `seqledger_gate_refusals_total{gate="writes_per_second",of="credential"}`); n == 0 {
		t.Error("the stream was not slowed")
	}
	_ = stream.CloseRequest()
	_ = stream.CloseResponse()
	g.mustServe(t, "a")
}

// The ledger is not stopped by a disk that fills: writes are refused, reads go on.
func TestDiskReserve(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{DiskReserve: 1 << 60})
	_, err := h.client.Write(within(t), connect.NewRequest(writeOf("c", 1, appendOp("x"))))
	e := mustRefuse(t, err, connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
	if e.RetryAfter.AsDuration() <= 0 || !strings.Contains(e.Message, "disk") {
		t.Error("the refusal says", e)
	}
	_, err = h.client.OpenSession(within(t),
		connect.NewRequest(&seqledgerv1.OpenSessionRequest{Scope: scope(), ClientId: "c", AttemptId: make([]byte, 16)}))
	mustRefuse(t, err, connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
	// What was committed before the disk was full is answered again.
	known := writeOf("k", 1, appendOp("x"))
	out, err := h.ledger.Write(within(t), &machine.Write{
		Scope: machine.Scope{Organization: known.Scope.Organization, Vault: known.Scope.Vault}, ClientID: "k",
		Sequence: 1,
		Actor:    "client:before", Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte("x")}},
	})
	if err != nil || out.Code != machine.Committed {
		t.Fatal(out, err)
	}
	again, err := h.client.Write(within(t), connect.NewRequest(known))
	if err != nil || !again.Msg.Receipt.Replayed || again.Msg.Receipt.Sequence != 1 {
		t.Error("the repeat of a committed write:", again, err)
	}
	stream := h.client.WriteStream(within(t))
	must.Do(t, stream.Send(frameOf(writeOf("c", 1, appendOp("x")), known, writeOf("d", 1, appendOp("x")))))
	for i, r := range receive(t, stream, 3) {
		if i == 1 {
			if !r.GetReceipt().GetReplayed() {
				t.Error("the repeat in a stream:", r)
			}
			continue
		}
		if r.GetError().GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL {
			t.Error("a write of a stream:", r)
		}
	}
	end(t, stream)
	must.Do(t, check.Err(h.client.GetClientState(within(t),
		connect.NewRequest(&seqledgerv1.GetClientStateRequest{Scope: scope(), ClientId: "c"}))), "a read")
	request := connect.NewRequest(&seqledgerv1.UpdateConfigRequest{
		MaxStreamsSet: &seqledgerv1.UpdateConfigRequest_MaxStreams{MaxStreams: 5},
	})
	must.Do(t, check.Err(h.admin.UpdateConfig(within(t), request)), "what may make room")
	check.Equal(t, h.metric(t, "seqledger_disk_reserve_level"), "2", "the metrics say: %v")
}

// A write whose caller repeatedly timed out, because the disk is slow, is stored once and counted once.
func TestASlowDiskCostsNoQuota(t *testing.T) {
	t.Parallel()
	type client = seqledgerv1connect.LedgerServiceClient
	for way, write := range map[string]func(ctx context.Context, l client, m *seqledgerv1.WriteRequest) error{
		"Write": func(ctx context.Context, l client, m *seqledgerv1.WriteRequest) error {
			return check.Err(l.Write(ctx, connect.NewRequest(m)))
		},
		"WriteBatch": func(ctx context.Context, l client, m *seqledgerv1.WriteRequest) error {
			return check.Err(l.WriteBatch(ctx, batchOf(m)))
		},
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			g := tenants(t, server.Options{})
			l, admin := g.as("bad")
			const size, repeats = 300 << 10, 3
			release := g.stall(t)
			for i := range int64(repeats) {
				ctx, cancel := context.WithCancel(within(t))
				given := make(chan error, 1)
				// Ends with ctx; received below.
				go func() { given <- write(ctx, l, writeIn("bad", "c", 1, appendOp(strings.Repeat("x", size)))) }()
				for g.ledger.Stats().QueuedBytes <= (i+1)*size && ctx.Err() == nil {
					runtime.Gosched()
				}
				cancel()
				check.Equal(t, connect.CodeOf(<-given), connect.CodeCanceled, "a write on a disk that stands still: %v")
			}
			release()
			must.Do(t, write(within(t), l, writeIn("bad", "c", 2, appendOp("x"))))
			const want, more = size + 1, 2_000 // for what there is beside payloads
			for stored, ctx := int64(0), within(t); stored < want; {
				answer := must.Get(admin.GetStatus(ctx, connect.NewRequest(&seqledgerv1.GetStatusRequest{})))(t)
				if stored = int64(answer.Msg.Status.Caller.StoredBytes); stored > want+more {
					t.Fatalf("%d bytes are stored, want %d to %d", stored, want, want+more)
				}
			}
		})
	}
}
