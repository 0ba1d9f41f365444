package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	limits "github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

func batchOf(writes ...*seqledgerv1.WriteRequest) *connect.Request[seqledgerv1.WriteBatchRequest] {
	return connect.NewRequest(&seqledgerv1.WriteBatchRequest{Writes: writes})
}

// results tells in a word each what became of the writes of a batch.
func results(answer *connect.Response[seqledgerv1.WriteBatchResponse]) string {
	var words []string
	for _, r := range answer.Msg.Results {
		switch receipt := r.GetReceipt(); {
		case receipt == nil:
			words = append(words, strings.TrimPrefix(r.GetError().GetCode().String(), "WRITE_ERROR_CODE_"))
		case receipt.Replayed:
			words = append(words, fmt.Sprint("again ", receipt.Sequence))
		default:
			words = append(words, fmt.Sprint(receipt.Sequence))
		}
	}
	return strings.Join(words, ", ")
}

// What is wrong with the batch as a whole is the error of the call, and nothing of it is decided.
func TestWriteBatchRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.mustWrite(t, writeOf("c", 1, appendOp("x")))
	before := h.state(t)
	many := make([]*seqledgerv1.WriteRequest, limits.MaxFrameWrites+1)
	for i := range many {
		many[i] = writeOf("c", uint64(i)+2, appendOp("x"))
	}
	operations := make([]*seqledgerv1.Operation, machine.MaxOperations)
	for i := range operations {
		operations[i] = appendOp("")
	}
	full := make([]*seqledgerv1.WriteRequest, limits.MaxFrameOperations/machine.MaxOperations+1)
	for i := range full {
		full[i] = writeOf("c", uint64(i)+2, operations...)
	}
	for name, batch := range map[string]*connect.Request[seqledgerv1.WriteBatchRequest]{
		"no write": batchOf(), "too many": batchOf(many...), "too many operations": batchOf(full...),
	} {
		for _, options := range [][]connect.ClientOption{nil, {connect.WithProtoJSON()}} {
			client := seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url, options...)
			_, err := client.WriteBatch(within(t), batch)
			e := mustRefuse(t, err, connect.CodeInvalidArgument,
				seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT)
			if e.Field != "writes" {
				t.Error(name, "is refused for", e)
			}
		}
	}
	status, _, text := h.post(t, seqledgerv1connect.LedgerServiceWriteBatchProcedure, "application/json",
		`{"writes":[],"atomic":true}`)
	if status != 400 || !strings.Contains(text, "atomic") {
		t.Error("an unknown field:", status, text)
	}
	if after := h.state(t); after != before {
		t.Error("a refused batch changed the state from", before, "to", after)
	}
	must.Do(t, h.server.Drain(within(t)))
	_, err := h.client.WriteBatch(within(t), batchOf(writeOf("c", 2, appendOp("x"))))
	mustRefuse(t, err, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
}

// The caller's rights are asked for each write, and its role before any of it arrives.
func TestWriteBatchIsAuthorized(t *testing.T) {
	t.Parallel()
	g := tenants(t, server.Options{})
	good, _ := g.as("good")
	answer, err := good.WriteBatch(within(t), batchOf(writeIn("good", "c", 1, appendOp("x")),
		writeIn("bad", "c", 1, appendOp("x")), writeIn("good", "c", 2, appendOp("x"))))
	if err != nil || results(answer) != "1, PERMISSION_DENIED, 2" {
		t.Fatal(answer, err)
	}
	reader, _ := g.as("reader")
	_, err = reader.WriteBatch(within(t), batchOf(writeIn("bad", "c", 1, appendOp("x"))))
	mustRefuse(t, err, connect.CodePermissionDenied, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED)
	nobody := seqledgerv1connect.NewLedgerServiceClient(g.h2, g.url)
	_, err = nobody.WriteBatch(within(t), batchOf(writeIn("good", "c", 3, appendOp("x"))))
	check.Equal(t, connect.CodeOf(err), connect.CodeUnauthenticated, "%v: %v", err)
}

// The bounds of a credential hold for a batch as for its writes one by one: each counts for the rate, and what is
// refused for lack of room is still answered if it repeats a committed write.
func TestWriteBatchIsBounded(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, map[string]string{
		"slow":  `role: writer, scopes: ["bad/*"], client_ids: ["*"], limits: {writes_per_second: 10}`,
		"small": `role: writer, scopes: ["bad/*"], client_ids: ["*"], limits: {stored_bytes: 3000}`,
		"good":  tenantKeys["good"],
	})
	twenty := make([]*seqledgerv1.WriteRequest, 20)
	for i := range twenty {
		twenty[i] = writeIn("bad", "a", uint64(i)+1, appendOp("x"))
	}
	slow, _ := g.as("slow")
	// More than the rate of a second is allowed if nothing precedes it, or it could never be sent.
	must.Equal(t, len(must.Get(slow.WriteBatch(within(t), batchOf(twenty...)))(t).Msg.Results), 20)
	_, err := slow.WriteBatch(within(t), batchOf(twenty...))
	e := mustRefuse(t, err, connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
	if e.RetryAfter.AsDuration() <= 0 || !strings.Contains(e.Message, "writes_per_second") {
		t.Error(e)
	}
	small, _ := g.as("small")
	large := appendOp(strings.Repeat("x", 2_000))
	for sequence := uint64(1); sequence <= 2; sequence++ {
		must.Get(small.WriteBatch(within(t), batchOf(writeIn("bad", "s", sequence, large))))(t)
	}
	answer, err := small.WriteBatch(within(t), batchOf(writeIn("bad", "s", 2, large), writeIn("bad", "s", 3, large)))
	if err != nil || results(answer) != "again 2, QUEUE_FULL" {
		t.Fatal(answer, err)
	}
	_, err = small.WriteBatch(within(t), batchOf(writeIn("bad", "s", 3, large)))
	mustRefuse(t, err, connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
	g.mustServe(t, "b")
}

// A late answer says on the wire that the outcome is unknown.
func TestLateAnswerIsOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	h := start(t)
	defer h.stall(t)()
	const write = `{"scope":{"organization":"acme","vault":"main"},"clientId":"c","sequence":"1",` +
		`"operations":[{"append":{"payload":"AAAA"}}]}`
	for procedure, body := range map[string]string{
		seqledgerv1connect.LedgerServiceWriteProcedure:      write,
		seqledgerv1connect.LedgerServiceWriteBatchProcedure: `{"writes":[` + write + `]}`,
	} {
		request := must.Get(http.NewRequestWithContext(within(t), http.MethodPost, h.url+procedure,
			strings.NewReader(body)))(t)
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Connect-Timeout-Ms", "1")
		status, _, text := h.do(t, request)
		if status != 504 || !strings.Contains(text, `"deadline_exceeded"`) || !strings.Contains(text, "OUTCOME_UNKNOWN") {
			t.Error(procedure, status, text)
		}
	}
}

// The room that is taken for an answer before it is known is enough for the largest ones.
func TestWriteBatchAnswerFitsItsRoom(t *testing.T) {
	t.Parallel()
	h := start(t)
	key := strings.Repeat("k", machine.MaxKeyBytes)
	exists := setOp(key, "v")
	exists.GetSetEntity().Condition = &seqledgerv1.Condition{
		Condition: &seqledgerv1.Condition_NotExists{NotExists: true},
	}
	client := strings.Repeat("c", machine.MaxClientID)
	var batch []*seqledgerv1.WriteRequest
	for i := range 200 {
		w := writeOf(client, uint64(i)+1, setOp(key, "v"))
		w.Scope = &seqledgerv1.Scope{Organization: strings.Repeat("o", machine.MaxScopePart),
			Vault: strings.Repeat("v", machine.MaxScopePart)}
		w.IncludeProof = true
		refused := writeOf(client, uint64(i)+2, exists)
		refused.Scope = w.Scope
		batch = append(batch, w, refused)
	}
	answer := must.Get(h.client.WriteBatch(within(t), batchOf(batch...)))(t)
	committed, refused := 0, 0
	for _, r := range answer.Msg.Results {
		if r.GetReceipt() != nil {
			committed++
		} else if r.GetError().Code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS {
			refused++
		}
	}
	if committed != 200 || refused != 200 {
		t.Fatal(committed, refused, answer.Msg.Results[1])
	}
	if size, room := proto.Size(answer.Msg), 400*server.MaxResultRoom; size > room {
		t.Errorf("an answer of %d bytes has room for %d", size, room)
	}
}
